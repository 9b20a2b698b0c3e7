package driver

import (
	"context"
	"errors"
	"time"

	configv1alpha2 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Configurator is the mesh's configuration: the MeshConfig with its defaults and its
// older field names resolved. It is safe for use by many goroutines. An
// InjectorContext has that of one moment, which never changes; the one of a
// ControllerContext follows the MeshConfig.
type Configurator interface {
	// GetMeshConfig returns the object itself, which the caller must not change.
	GetMeshConfig() *configv1alpha2.MeshConfig
	// GetSidecarClass returns the default class, in lower case.
	GetSidecarClass() string
	// GetSidecarImage, GetSidecarWindowsImage and GetInitContainerImage return
	// the images of a class, or "" where none is known.
	GetSidecarImage(class string) string
	GetSidecarWindowsImage(class string) string
	GetInitContainerImage(class string) string
	// GetProxyServerPort returns the port that serves the class's proxies, or 0
	// where the configuration does not say.
	GetProxyServerPort(class string) uint32
	// IsMTLSDisabled reports whether the pods of a class speak plaintext.
	IsMTLSDisabled(class string) bool
	// IsPrivilegedInitContainer reports whether init containers are privileged.
	IsPrivilegedInitContainer() bool
	// GetSidecarLogLevel returns one of trace, debug, info, warning, error,
	// critical and off.
	GetSidecarLogLevel() string
	// GetMaxDataPlaneConnections returns how many proxies may be connected to
	// one controller; 0 means any number.
	GetMaxDataPlaneConnections() int
	// GetConfigResyncInterval returns the period after which every proxy is sent
	// its whole state again; 0 means never.
	GetConfigResyncInterval() time.Duration
	// GetServiceCertValidityPeriod returns how long a workload's certificate is
	// valid.
	GetServiceCertValidityPeriod() time.Duration
	// IsDebugServerEnabled reports whether the controller serves its debug pages.
	IsDebugServerEnabled() bool
	// GetTrustDomain returns the trust domain of the mesh's identities.
	GetTrustDomain() string
}

// MeshCataloger gives what proxies may see now. It is safe for use by many
// goroutines.
type MeshCataloger interface {
	// Ready returns a channel that is closed once every object of the mesh has been
	// read. A delivery kit serves no proxy before: it would take the little that is
	// known for all.
	Ready() <-chan struct{}
	// View returns what the proxy may see, or false if no such proxy is known.
	View(proxyUID string) (*mesh.View, bool)
	// AwaitView is View for a proxy that has just connected, whose pod may not have
	// been seen yet: it waits a moment for it, and then asks for it. The error wraps
	// ErrUnknownProxy if there is no such pod in the mesh, or is that of ctx, or says
	// why it could not be asked for.
	AwaitView(ctx context.Context, peer Peer) (*mesh.View, error)
}

// ErrUnknownProxy says that a proxy's pod is not in the mesh. It is permanent for as
// long as the pod does not change.
var ErrUnknownProxy = errors.New("no such proxy in the mesh")

// Broker tells which proxies have a View that changed.
type Broker interface {
	// Subscribe returns a channel of proxy UIDs, until stop is closed. A proxy
	// that changes again before it was received is told once.
	Subscribe(stop <-chan struct{}) <-chan string
}
