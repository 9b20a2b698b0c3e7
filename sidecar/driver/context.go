package driver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// InjectorCtxKey and ControllerCtxKey are the keys whose addresses find the
// arguments in a context: ctx.Value(&driver.InjectorCtxKey) is the
// *InjectorContext, ctx.Value(&driver.ControllerCtxKey) the *ControllerContext.
var InjectorCtxKey, ControllerCtxKey int

// InjectorContext carries the arguments of Patch. It is itself a context: its
// deadline and cancellation are those of Context, or none if that is nil.
type InjectorContext struct {
	context.Context

	// Pod is the pod to patch, in place. Its probes already point at the agent.
	Pod *corev1.Pod
	// MeshName and OsmNamespace are the mesh's name and the control plane's
	// namespace.
	MeshName     string
	OsmNamespace string
	// PodNamespace is the pod's namespace; Pod.Namespace may be empty at
	// admission.
	PodNamespace string
	// PodOS is "linux" or "windows".
	PodOS string
	// ProxyCommonName and ProxyUUID are handles for people. The UUID is the zero
	// UUID in offline injection.
	ProxyCommonName certificate.CommonName
	ProxyUUID       uuid.UUID
	// Configurator is the mesh's configuration.
	Configurator Configurator
	// KubeClient is nil in offline injection.
	KubeClient kubernetes.Interface
	// BootstrapCertificate holds the trust bundle and the names that the proxy
	// will be issued. It never holds a key.
	BootstrapCertificate *certificate.Certificate
	// ContainerPullPolicy is the pull policy of the injected containers.
	ContainerPullPolicy corev1.PullPolicy
	// What is not redirected, from the mesh's configuration and the pod's
	// annotations together, sorted and each once.
	InboundPortExclusionList     []int
	OutboundPortExclusionList    []int
	OutboundIPRangeInclusionList []string
	OutboundIPRangeExclusionList []string
	// OriginalHealthProbes are the app's probes before they were pointed at the
	// agent, by container.
	OriginalHealthProbes map[string]HealthProbes
	// DryRun says that the pod will not be created.
	DryRun bool

	// What follows is beyond the proposal.

	// Sidecar is how this pod's sidecar is to be.
	Sidecar Sidecar
	// Identity is who the pod will be.
	Identity mesh.Identity
	// Redirection is the whole of what is and is not redirected.
	Redirection agentspec.Redirection
	// AppProbes are the app's probes and hooks for the agent to answer.
	AppProbes []agentspec.Probe
	// Templates are the pod templates that the injector was configured with. It
	// may be nil.
	Templates Templates
}

// Sidecar is how the sidecar of one pod is to be, after the mesh's
// configuration, the namespace's and the pod's annotations.
type Sidecar struct {
	// Class is the name of the driver.
	Class string
	// Image and InitImage are the images of the proxy and of the init container.
	Image, InitImage string
	// LogLevel is one of trace, debug, info, warning, error, critical and off.
	LogLevel string
	// Resources are those of the sidecar container.
	Resources corev1.ResourceRequirements
	// Concurrency is the number of the proxy's worker threads that somebody has asked
	// for; 0 means as many as the container's CPU limit, and two without one. A driver
	// need not look at it: the agent puts it in for ${OUTRIGGER_CONCURRENCY}.
	Concurrency int32
	// Native asks for an init container that goes on running, which Kubernetes
	// has by default from 1.29; else the sidecar is an ordinary container.
	Native bool
	// HoldApplication asks that an ordinary container holds the app back until
	// the proxy is ready. A native one always does.
	HoldApplication bool
	// PrivilegedInit asks for a privileged init container.
	PrivilegedInit bool
	// CNI says that Outrigger's CNI plug-in redirects the pod's traffic on the node. The
	// init container then gets no right to, whatever PrivilegedInit says, and only
	// verifies that it was done.
	CNI bool
	// DrainSeconds is how long connections may take to end when the pod is stopped, nil
	// for the driver's own choice. Package podtemplate puts it into the agent's Spec.
	DrainSeconds *int32
	// PreStopSeconds is how long the sidecar goes on as before when the pod is stopped,
	// while clients learn of it.
	PreStopSeconds int32
	// DisabledMTLS says that the pods of this class speak plaintext in the mesh.
	DisabledMTLS bool
}

// Templates renders the pod templates of one configuration. It is safe for use
// by many goroutines.
type Templates interface {
	// Has reports whether there is a template of that name.
	Has(name string) bool
	// Apply renders the template of that name and merges the result into
	// inj.Pod. The spec is what the template finds as .Agent; it is nil for
	// templates without an agent.
	Apply(inj *InjectorContext, name string, spec *agentspec.Spec) error
}

// InjectorFrom returns the arguments of Patch, or the error "missing Injector
// Context".
func InjectorFrom(ctx context.Context) (*InjectorContext, error) {
	inj, ok := ctx.Value(&InjectorCtxKey).(*InjectorContext)
	if !ok || inj == nil {
		return nil, errors.New("missing Injector Context")
	}
	return inj, nil
}

// ControllerContext carries the arguments of Start. It is itself a context: its
// deadline and cancellation are those of Context, or none if that is nil.
type ControllerContext struct {
	context.Context

	// ProxyServerPort is the port to serve the class's proxies on. It is 0 where the
	// MeshConfig names none: then it is one of the driver's own, which no other driver
	// has, and the same that Patch tells the pods.
	ProxyServerPort uint32
	// ProxyServiceCert is what the certificate to serve with is made out to; the
	// certificate itself is in CertManager's ServerTLS.
	ProxyServiceCert *certificate.Certificate
	// OsmNamespace is the control plane's namespace.
	OsmNamespace string
	// KubeConfig reaches the API server; nil where there is none.
	KubeConfig *rest.Config
	// Configurator is the mesh's configuration.
	Configurator Configurator
	// MeshCatalog gives Snapshots and Views.
	MeshCatalog MeshCataloger
	// CertManager gives the trust bundle and its changes.
	CertManager certificate.Manager
	// MsgBroker tells which proxies' Views changed.
	MsgBroker Broker
	// DebugHandlers takes the driver's debug pages, by their whole path. It must
	// be filled before Start returns.
	DebugHandlers map[string]http.Handler
	// CancelFunc ends the controller.
	CancelFunc func()
	// Stop is closed when the controller ends.
	Stop chan struct{}

	// What follows is beyond the proposal.

	// SidecarClass is the class to serve; empty means the installed default.
	SidecarClass string
	// BindAddress is the IP address to listen on; empty means all.
	BindAddress string
	// Proxies is told of the proxies that are served.
	Proxies ProxyRegistry
	// Log is the controller's.
	Log *slog.Logger
}

// ControllerFrom returns the arguments of Start, or the error "missing
// Controller Context".
func ControllerFrom(ctx context.Context) (*ControllerContext, error) {
	ctrl, ok := ctx.Value(&ControllerCtxKey).(*ControllerContext)
	if !ok || ctrl == nil {
		return nil, errors.New("missing Controller Context")
	}
	return ctrl, nil
}

// Value returns c itself for &InjectorCtxKey and asks Context for other keys.
func (c *InjectorContext) Value(key any) any {
	if key == &InjectorCtxKey {
		return c
	}
	return live(c.Context).Value(key)
}

// Deadline is that of Context.
func (c *InjectorContext) Deadline() (time.Time, bool) { return live(c.Context).Deadline() }

// Done is that of Context.
func (c *InjectorContext) Done() <-chan struct{} { return live(c.Context).Done() }

// Err is that of Context.
func (c *InjectorContext) Err() error { return live(c.Context).Err() }

// Value returns c itself for &ControllerCtxKey and asks Context for other keys.
func (c *ControllerContext) Value(key any) any {
	if key == &ControllerCtxKey {
		return c
	}
	return live(c.Context).Value(key)
}

// Deadline is that of Context.
func (c *ControllerContext) Deadline() (time.Time, bool) { return live(c.Context).Deadline() }

// Done is that of Context.
func (c *ControllerContext) Done() <-chan struct{} { return live(c.Context).Done() }

// Err is that of Context.
func (c *ControllerContext) Err() error { return live(c.Context).Err() }

func live(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
