package driver

import (
	"cmp"
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

// InjectorCtxKey and ControllerCtxKey are context keys, used by address:
// ctx.Value(&driver.InjectorCtxKey) is the *InjectorContext, and
// ctx.Value(&driver.ControllerCtxKey) the *ControllerContext.
var InjectorCtxKey, ControllerCtxKey int

// InjectorContext carries the arguments of Patch. It is itself a context with the
// deadline and cancellation of Context, or none if that is nil.
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
	// ProxyCommonName and ProxyUUID identify the proxy to people. ProxyUUID is the zero
	// UUID in offline injection.
	ProxyCommonName certificate.CommonName
	ProxyUUID       uuid.UUID
	// Configurator is the mesh's configuration.
	Configurator Configurator
	// KubeClient is nil in offline injection.
	KubeClient kubernetes.Interface
	// BootstrapCertificate holds the trust bundle and the names of the proxy's future
	// certificate. It never holds a key.
	BootstrapCertificate *certificate.Certificate
	// ContainerPullPolicy is the pull policy of the injected containers.
	ContainerPullPolicy corev1.PullPolicy
	// The exceptions from redirection of the mesh's configuration and the pod's
	// annotations combined, sorted and without duplicates.
	InboundPortExclusionList     []int
	OutboundPortExclusionList    []int
	OutboundIPRangeInclusionList []string
	OutboundIPRangeExclusionList []string
	// OriginalHealthProbes are the application's probes by container, before they were
	// redirected to the agent.
	OriginalHealthProbes map[string]HealthProbes
	// DryRun is set if the pod will not be created.
	DryRun bool

	// The fields below extend the original proposal.

	// OwnerKind and OwnerName are those of the object from whose template the pod will be
	// created. They are empty if the pod itself says what owns it, as at admission.
	OwnerKind, OwnerName string
	// Sidecar is the configuration of this pod's sidecar.
	Sidecar Sidecar
	// Identity is the pod's future identity.
	Identity mesh.Identity
	// Redirection is the complete redirection of the pod's traffic.
	Redirection agentspec.Redirection
	// AppProbes are the application's probes and hooks that the agent must answer.
	AppProbes []agentspec.Probe
	// Templates are the pod templates of the injector's configuration; may be nil.
	Templates Templates
	// Warn shows a message to whoever creates the pod, and injects it nevertheless; may be
	// nil.
	Warn func(message string)
}

// Sidecar is the configuration of one pod's sidecar, resolved from the mesh's
// configuration and the annotations of the namespace and the pod.
type Sidecar struct {
	// Class is the name of the driver.
	Class string
	// Image and InitImage are the images of the sidecar and of the init container.
	Image, InitImage string
	// LogLevel is one of trace, debug, info, warning, error, critical and off.
	LogLevel string
	// Resources are the resources of the sidecar container. The init container gets the same,
	// which adds nothing to what the pod needs, and keeps its class and its quota.
	Resources corev1.ResourceRequirements
	// Concurrency is the requested number of worker threads; 0 means the container's CPU
	// limit, or two without a limit. Drivers may ignore it: the agent substitutes it for
	// ${OUTRIGGER_CONCURRENCY}.
	Concurrency int32
	// Native requests a native sidecar, an init container that keeps running, which
	// Kubernetes supports by default since 1.29. Otherwise the sidecar is an ordinary
	// container.
	Native bool
	// HoldApplication makes an ordinary container block the application until the proxy is
	// ready. A native sidecar always does.
	HoldApplication bool
	// PrivilegedInit requests a privileged init container.
	PrivilegedInit bool
	// CNI is set if Outrigger's CNI plug-in redirects the pod's traffic on the node. The
	// init container then only verifies the redirection and gets no privileges, regardless
	// of PrivilegedInit.
	CNI bool
	// DrainSeconds is how long connections may take to end when the pod is stopped; nil
	// means the driver's default. Package podtemplate puts it into the agent's Spec.
	DrainSeconds *int32
	// PreStopSeconds is how long the sidecar keeps working when the pod is stopped, while
	// clients learn of it.
	PreStopSeconds int32
	// DisabledMTLS is set if the pods of this class use plaintext in the mesh.
	DisabledMTLS bool
	// PodCertificate is set if the kubelet makes the pod's key and requests its certificate;
	// nil if the agent does.
	PodCertificate *PodCertificate
}

// PodCertificate describes what the kubelet requests for a pod.
type PodCertificate struct {
	// Signer is the name of the signer, and Bundle that of the ClusterTrustBundle with the
	// trusted roots.
	Signer, Bundle string
	// MaxSeconds is the longest time from a certificate's begin to its end.
	MaxSeconds int32
}

// Templates renders the pod templates of one configuration. It is safe for concurrent
// use.
type Templates interface {
	// Has reports whether there is a template of that name.
	Has(name string) bool
	// Apply renders the template of that name and merges the result into inj.Pod. The
	// template reads the spec as .Agent; it is nil for templates without an agent.
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

// ControllerContext carries the arguments of Start. It is itself a context with the
// deadline and cancellation of Context, or none if that is nil.
type ControllerContext struct {
	context.Context

	// ProxyServerPort is the port on which to serve the class's proxies. 0 means that the
	// MeshConfig sets none: then the driver uses a default port of its own, which no other
	// driver uses and which Patch configures in the pods.
	ProxyServerPort uint32
	// ProxyServiceCert has the names of the server certificate. The certificate itself is
	// in CertManager's ServerTLS.
	ProxyServiceCert *certificate.Certificate
	// OsmNamespace is the control plane's namespace.
	OsmNamespace string
	// KubeConfig is the configuration for the API server; nil if there is none.
	KubeConfig *rest.Config
	// Configurator is the mesh's configuration.
	Configurator Configurator
	// MeshCatalog provides Snapshots and Views.
	MeshCatalog MeshCataloger
	// CertManager provides the trust bundle and its changes.
	CertManager certificate.Manager
	// MsgBroker publishes the proxies whose Views have changed.
	MsgBroker Broker
	// DebugHandlers receives the driver's debug pages by their full path. It must be
	// filled before Start returns.
	DebugHandlers map[string]http.Handler
	// CancelFunc stops the controller.
	CancelFunc func()
	// Stop is closed when the controller stops.
	Stop chan struct{}

	// The fields below extend the original proposal.

	// SidecarClass is the class to serve; empty means the default class.
	SidecarClass string
	// BindAddress is the IP address to listen on; empty means all addresses.
	BindAddress string
	// Proxies is where the driver reports its connected proxies.
	Proxies ProxyRegistry
	// ServerCertificates has the certificates of gateways; nil if there are none.
	ServerCertificates ServerCertificates
	// Log is the controller's logger.
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

// ServerPort returns the port on which the controller serves the proxies of the pod's
// class: that of the MeshConfig, or else the driver's default.
func (c *InjectorContext) ServerPort(byDefault uint32) uint32 {
	if c.Configurator == nil {
		return byDefault
	}
	return cmp.Or(c.Configurator.GetProxyServerPort(c.Sidecar.Class), byDefault)
}

// Value returns c itself for &InjectorCtxKey, and Context's value for other keys.
func (c *InjectorContext) Value(key any) any {
	if key == &InjectorCtxKey {
		return c
	}
	return orBackground(c.Context).Value(key)
}

// Deadline returns the deadline of Context.
func (c *InjectorContext) Deadline() (time.Time, bool) { return orBackground(c.Context).Deadline() }

// Done returns Context's Done channel.
func (c *InjectorContext) Done() <-chan struct{} { return orBackground(c.Context).Done() }

// Err returns Context's error.
func (c *InjectorContext) Err() error { return orBackground(c.Context).Err() }

// Value returns c itself for &ControllerCtxKey, and Context's value for other keys.
func (c *ControllerContext) Value(key any) any {
	if key == &ControllerCtxKey {
		return c
	}
	return orBackground(c.Context).Value(key)
}

// Deadline returns the deadline of Context.
func (c *ControllerContext) Deadline() (time.Time, bool) { return orBackground(c.Context).Deadline() }

// Done returns Context's Done channel.
func (c *ControllerContext) Done() <-chan struct{} { return orBackground(c.Context).Done() }

// Err returns Context's error.
func (c *ControllerContext) Err() error { return orBackground(c.Context).Err() }

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
