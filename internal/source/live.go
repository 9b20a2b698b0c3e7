package source

import (
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Live holds the mesh's current configuration. It is safe for concurrent use.
type Live struct {
	getters
	current atomic.Pointer[Config]

	// mu is held while functions are called, so that all see changes in the same order.
	mu        sync.Mutex
	functions []func(*Config)
}

var _ driver.Configurator = (*Live)(nil)

// NewLive returns a Live with the given Config.
func NewLive(c *Config) *Live {
	l := &Live{}
	l.getters = l.Current
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
