package controller

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// origin is where the objects of a mesh come from, and what that place knows besides. There are
// two: a cluster and a folder.
type origin interface {
	// settings follow the MeshConfig. They count once read is closed, when all that there was
	// at first has been read.
	settings() *source.Live
	read() <-chan struct{}
	// feed reads objects and passes their facts on until ctx ends.
	feed(ctx context.Context, to *catalog.Catalog) error
	// find returns what asks for a workload of which there is no fact yet, or nil.
	find() catalog.Find

	// reviewer says whose a token is, member refuses workloads that are not in the mesh, and
	// roots says where CAs are kept.
	reviewer() identity.TokenReviewer
	member(ctx context.Context, w identity.Workload) error
	roots() rootSources

	// report writes what is found to where the objects are, and the trust bundle, until ctx
	// ends.
	report(ctx context.Context, of *catalog.Catalog, identities *identities) error
	// problems are those that no Snapshot holds.
	problems() []mesh.Problem
	// warn leaves an Event that says why the controller or a driver does not work, and warnPod
	// one about a pod's proxy. Without an API server they do nothing.
	warn(ctx context.Context, err error) error
	warnPod(ctx context.Context, namespace, pod, uid, message string) error
	api() api
}

// api is an API server; its zero value stands for none.
type api struct {
	config *rest.Config
	// review says who may look at proxies.
	review debug.Review
	probes []health.Probes
}
