// Package inject decides whether a pod gets a sidecar, and makes the JSON patch
// that puts it there. The admission webhook and the offline commands are two
// doors to the same Injector.
//
// It calls drivers only through package sidecar, and writes nothing to the
// cluster.
package inject

import (
	"context"
	"log/slog"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Request is one pod to decide about.
type Request struct {
	// UID is the admission request's; empty in offline injection.
	UID string
	// Namespace is where the pod will be; it wins over the pod's own metadata.
	Namespace string
	// Pod is the pod as JSON.
	Pod []byte
	// DryRun says that the pod will not be created.
	DryRun bool
	// KeepForeign keeps what others added to containers that an earlier
	// injection put there, as other webhooks do between two calls of ours. Else
	// an injected pod is taken back to what it was and injected anew.
	KeepForeign bool
}

// Result is the answer to a Request.
type Result struct {
	// Decision says what was decided and why.
	Decision Decision
	// Class is the driver that serves the pod; empty if none does.
	Class string
	// Redirection says which connections of the pod go through its sidecar.
	Redirection agentspec.Redirection
	// Templates are the names of the templates that were applied, in order.
	Templates []string
	// Warnings are things that the user should know though the pod is admitted.
	Warnings []Warning
	// Patch turns the pod of the request into the injected one. It is empty
	// unless the decision is to inject and something changes.
	Patch []Operation
	// Added are the names of the containers that the pod gets, init containers
	// first.
	Added []string
}

// Operation is one step of a JSON patch (RFC 6902): add, remove, replace or
// move.
type Operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Namespace is what the decision needs to know of a namespace.
type Namespace struct {
	Name                string
	Labels, Annotations map[string]string
}

// NamespaceOf returns what decisions need of a namespace. It shares the maps.
func NamespaceOf(ns *corev1.Namespace) *Namespace {
	return &Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}
}

// Options are what an Injector needs from its surroundings. The functions are
// called from many goroutines.
type Options struct {
	// MeshName is the value of the label openservicemesh.io/monitored-by that
	// namespaces of this mesh bear.
	MeshName string
	// MeshNamespace is the control plane's own namespace, never injected.
	MeshNamespace string
	// Revision is this injector's; "default" unless it is told otherwise.
	Revision string
	// Namespace returns a namespace by its name. An error denies the pod.
	Namespace func(ctx context.Context, name string) (*Namespace, error)
	// Configurator returns the mesh's configuration now.
	Configurator func() driver.Configurator
	// TrustBundle returns the PEM of the roots, or nil where it is not known.
	TrustBundle func() []byte
	// NativeSidecars reports whether the cluster runs native sidecars.
	NativeSidecars func(ctx context.Context) (bool, error)
	// InitImage is the init container's image where neither the mesh's configuration
	// nor the injection config names one.
	InitImage string
	// KubeClient is handed to drivers; nil in offline injection.
	KubeClient kubernetes.Interface
	// Log gets what drivers and templates did wrong.
	Log *slog.Logger
}

// Injector decides and patches. It is safe for use by many goroutines.
type Injector struct {
	opts   Options
	config atomic.Pointer[Config]
}

// New returns an Injector that uses the configuration until Use replaces it. A
// nil configuration denies every pod.
func New(opts Options, config *Config) *Injector {
	i := &Injector{opts: opts}
	i.Use(config)
	return i
}

// Use replaces the configuration. Injections under way finish with the old one.
func (i *Injector) Use(config *Config) { i.config.Store(config) }
