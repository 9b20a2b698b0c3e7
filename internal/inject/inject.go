// Package inject decides whether a pod gets a sidecar and builds the JSON patch that
// adds it. The admission webhook and the offline commands share one Injector.
//
// It calls drivers only through package sidecar and writes nothing to the cluster.
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
	// Namespace is where the pod will run; it takes precedence over the pod's
	// metadata.
	Namespace string
	// Pod is the pod as JSON.
	Pod []byte
	// decoded is the same pod, if it has been decoded already. Inject does not change it.
	decoded *corev1.Pod
	// OwnerKind and OwnerName are those of the object from whose template the pod will be
	// created; empty if the pod itself says what owns it.
	OwnerKind, OwnerName string
	// DryRun says that the pod will not be created.
	DryRun bool
	// KeepForeign keeps third-party changes to the containers of an earlier
	// injection, such as those of webhooks that run between two calls of this one.
	// Otherwise an injected pod is restored first and then injected anew.
	KeepForeign bool
}

// Result is the answer to a Request.
type Result struct {
	// Decision is the outcome and its reason.
	Decision Decision
	// Class is the driver that serves the pod; empty if none does.
	Class string
	// Redirection selects the pod's connections that go through its sidecar.
	Redirection agentspec.Redirection
	// Templates are the names of the templates that were applied, in order.
	Templates []string
	// Warnings are for the user of a pod that is admitted.
	Warnings []Warning
	// Patch turns the pod of the request into the injected one. It is empty
	// unless the decision is to inject and something changes.
	Patch []Operation
	// Added are the names of the added containers, init containers first.
	Added []string
	// Image is that of the sidecar container; empty if there is none.
	Image string
}

// Operation is one operation of a JSON patch (RFC 6902): add, remove, replace or
// move.
type Operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Namespace is the part of a namespace that decisions use.
type Namespace struct {
	Name                string
	Labels, Annotations map[string]string
}

// NamespaceOf returns the part of a namespace that decisions use. It shares the maps.
func NamespaceOf(ns *corev1.Namespace) *Namespace {
	return &Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}
}

// Options are the dependencies and settings of an Injector. Its functions are called
// from many goroutines.
type Options struct {
	// MeshName is the value of the label openservicemesh.io/monitored-by on the
	// namespaces of this mesh.
	MeshName string
	// MeshNamespace is the control plane's namespace, which is never injected.
	MeshNamespace string
	// Revision is this injector's revision.
	Revision string
	// Namespace returns a namespace by its name. An error denies the pod.
	Namespace func(ctx context.Context, name string) (*Namespace, error)
	// Configurator returns the mesh's current configuration.
	Configurator func() driver.Configurator
	// TrustBundle returns the root certificates as PEM, or nil if they are not known.
	TrustBundle func() []byte
	// NativeSidecars reports whether the cluster supports native sidecars.
	NativeSidecars func(ctx context.Context) (bool, error)
	// PodCertificates returns why kubelets cannot get certificates for pods, or nil if they
	// can. Without the function that is not known.
	PodCertificates func(ctx context.Context) error
	// InitImage is the init container's image if neither the mesh's configuration
	// nor the injection config names one.
	InitImage string
	// KubeClient is passed to drivers; nil in offline injection.
	KubeClient kubernetes.Interface
	// Log receives the failures of drivers and templates.
	Log *slog.Logger
}

// Injector decides about pods and builds their patches. It is safe for concurrent use.
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
