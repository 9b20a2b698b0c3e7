package source

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Live holds the mesh's current configuration. It is safe for concurrent use.
type Live struct {
	current atomic.Pointer[Config]

	// mu is held while functions are called, so that all see changes in the same order.
	mu        sync.Mutex
	functions []func(*Config)
}

var _ driver.Configurator = (*Live)(nil)

// NewLive returns a Live with the given Config.
func NewLive(c *Config) *Live {
	l := &Live{}
	l.current.Store(c)
	return l
}

// Set replaces the Config.
func (l *Live) Set(c *Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.Store(c)
	for _, f := range l.functions {
		f(c)
	}
}

// Current returns the current Config, which is immutable.
func (l *Live) Current() *Config { return l.current.Load() }

// OnChange calls f with the current Config and again after each change. Calls do not
// overlap. f must not block or call Set or OnChange.
func (l *Live) OnChange(f func(*Config)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.functions = append(l.functions, f)
	f(l.current.Load())
}

// GetMeshConfig returns the current object. The caller must not change it.
func (l *Live) GetMeshConfig() *v1alpha2.MeshConfig { return l.Current().GetMeshConfig() }

// GetSidecarClass returns the default class, in lower case.
func (l *Live) GetSidecarClass() string { return l.Current().GetSidecarClass() }

// GetSidecarImage returns the proxy's image on Linux for a class.
func (l *Live) GetSidecarImage(class string) string { return l.Current().GetSidecarImage(class) }

// GetSidecarWindowsImage returns the proxy's image on Windows for a class.
func (l *Live) GetSidecarWindowsImage(class string) string {
	return l.Current().GetSidecarWindowsImage(class)
}

// GetInitContainerImage returns the init container's image for a class.
func (l *Live) GetInitContainerImage(class string) string {
	return l.Current().GetInitContainerImage(class)
}

// GetProxyServerPort returns the port that serves the class's proxies, or 0 if the
// MeshConfig does not set it.
func (l *Live) GetProxyServerPort(class string) uint32 { return l.Current().GetProxyServerPort(class) }

// IsMTLSDisabled reports whether the pods of a class use plaintext.
func (l *Live) IsMTLSDisabled(class string) bool { return l.Current().IsMTLSDisabled(class) }

// IsPrivilegedInitContainer reports whether init containers are privileged.
func (l *Live) IsPrivilegedInitContainer() bool { return l.Current().IsPrivilegedInitContainer() }

// GetSidecarLogLevel returns the proxies' log level.
func (l *Live) GetSidecarLogLevel() string { return l.Current().GetSidecarLogLevel() }

// GetMaxDataPlaneConnections returns the maximum number of connected proxies, 0 for no
// limit.
func (l *Live) GetMaxDataPlaneConnections() int { return l.Current().GetMaxDataPlaneConnections() }

// GetConfigResyncInterval returns the period after which every proxy is sent its whole
// state again, 0 for never.
func (l *Live) GetConfigResyncInterval() time.Duration { return l.Current().GetConfigResyncInterval() }

// GetServiceCertValidityPeriod returns how long a workload's certificate is valid.
func (l *Live) GetServiceCertValidityPeriod() time.Duration {
	return l.Current().GetServiceCertValidityPeriod()
}

// IsDebugServerEnabled reports whether the controller serves its debug pages.
func (l *Live) IsDebugServerEnabled() bool { return l.Current().IsDebugServerEnabled() }

// GetTrustDomain returns the trust domain of the mesh's identities.
func (l *Live) GetTrustDomain() string { return l.Current().GetTrustDomain() }
