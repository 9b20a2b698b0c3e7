package driver

import (
	"context"
	"errors"
	"time"

	configv1alpha2 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Configurator is the mesh's configuration: the MeshConfig with its defaults and
// deprecated field names resolved. It is safe for concurrent use. In an InjectorContext
// it is an immutable copy; in a ControllerContext it follows the MeshConfig.
type Configurator interface {
	// GetMeshConfig returns the object itself, which must not be changed.
	GetMeshConfig() *configv1alpha2.MeshConfig
	// GetSidecarClass returns the default class, in lower case.
	GetSidecarClass() string
	// GetSidecarImage, GetSidecarWindowsImage and GetInitContainerImage return the images
	// of a class, or "" if none is configured.
	GetSidecarImage(class string) string
	GetSidecarWindowsImage(class string) string
	GetInitContainerImage(class string) string
	// GetProxyServerPort returns the port that serves the class's proxies, or 0 if none is
	// configured.
	GetProxyServerPort(class string) uint32
	// IsMTLSDisabled reports whether the pods of a class use plaintext.
	IsMTLSDisabled(class string) bool
	// IsPrivilegedInitContainer reports whether init containers are privileged.
	IsPrivilegedInitContainer() bool
	// GetSidecarLogLevel returns one of trace, debug, info, warning, error,
	// critical and off.
	GetSidecarLogLevel() string
	// GetMaxDataPlaneConnections returns the maximum number of proxies connected to one
	// controller; 0 means no limit.
	GetMaxDataPlaneConnections() int
	// GetConfigResyncInterval returns the period after which every proxy is sent its
	// complete configuration again; 0 means never.
	GetConfigResyncInterval() time.Duration
	// GetServiceCertValidityPeriod returns the validity period of workload certificates.
	GetServiceCertValidityPeriod() time.Duration
	// IsDebugServerEnabled reports whether the controller serves its debug pages.
	IsDebugServerEnabled() bool
	// GetTrustDomain returns the trust domain of the mesh's identities.
	GetTrustDomain() string
}

// MeshCataloger provides the current state of the mesh. It is safe for concurrent use.
type MeshCataloger interface {
	// Ready returns a channel that is closed once every object of the mesh has been
	// read. A delivery kit serves no proxy before: it would take the little that is
	// known for all.
	Ready() <-chan struct{}
	// View returns the proxy's view of the mesh, or false if the proxy is unknown.
	View(proxyUID string) (*mesh.View, bool)
	// AwaitView is View for a proxy that has just connected, whose pod may not be known
	// yet: it waits a moment for the pod and then looks it up. The error wraps
	// ErrUnknownProxy if there is no such pod in the mesh; otherwise it is that of ctx or
	// of the lookup.
	AwaitView(ctx context.Context, peer Peer) (*mesh.View, error)
}

// ErrUnknownProxy means that a proxy's pod is not in the mesh. It is permanent as long
// as the pod does not change.
var ErrUnknownProxy = errors.New("no such proxy in the mesh")

// Broker publishes the proxies whose View is new, has changed or is gone. A change of what many
// proxies call is published only for those whose View was asked for by MeshCataloger.View or
// AwaitView.
type Broker interface {
	// Subscribe returns a channel of proxy UIDs, which lives until stop is closed. Changes
	// of a proxy that were not received yet are coalesced.
	Subscribe(stop <-chan struct{}) <-chan string
}
