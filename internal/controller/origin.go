package controller

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/ondemand"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// origin is the place where the objects of a mesh are: a cluster or a folder.
type origin interface {
	// settings returns the resolved MeshConfig, which is kept up to date. It is valid once the
	// channel of read is closed, after all existing objects were read.
	settings() *source.Live
	read() <-chan struct{}
	// feed applies the facts of objects to the catalog until ctx ends.
	feed(ctx context.Context, to *catalog.Catalog) error
	// find returns a function that looks up a workload without a fact, or nil.
	find() catalog.Find
	// serverCertificates returns the certificates of gateways with their private keys.
	serverCertificates() driver.ServerCertificates

	// reviewer authenticates tokens. member returns an error for workloads that are not in the
	// mesh. roots returns the storage of CAs.
	reviewer() identity.TokenReviewer
	member(ctx context.Context, w identity.Workload) error
	roots() rootSources
	// learned returns the storage of the services that pods use.
	learned(of *catalog.Catalog) (ondemand.Store, error)

	// report writes Problems to the place of the objects, and publishes the trust bundle, until
	// ctx ends.
	report(ctx context.Context, of *catalog.Catalog, identities *identities) error
	// problems returns the Problems that are not in the Snapshot.
	problems() []mesh.Problem
	// warn records an Event about a failure of the controller or a driver, and warnPod one
	// about a pod's proxy. Without an API server they do nothing.
	warn(ctx context.Context, err error) error
	warnPod(ctx context.Context, namespace, pod, uid, message string) error
	api() api
}

// api has what only an API server provides. It is zero without one.
type api struct {
	config *rest.Config
	// review decides who may read the page of proxies.
	review debug.Review
	probes []health.Probes
}
