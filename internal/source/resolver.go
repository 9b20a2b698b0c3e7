package source

import (
	"sync"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// Resolver resolves MeshConfigs. It keeps the last Config, so that a MeshConfig is resolved
// once for all its readers. It is safe for concurrent use.
type Resolver struct {
	opts ConfigOptions

	mu sync.Mutex
	// last is the Config of the MeshConfig of, which may be nil.
	last *Config
	of   *v1alpha2.MeshConfig
}

// NewResolver returns a Resolver with the given inputs besides the MeshConfig.
func NewResolver(opts ConfigOptions) *Resolver { return &Resolver{opts: opts} }

// Resolve returns the Config that NewConfig returns, the same one as before for the same
// object.
func (r *Resolver) Resolve(obj *v1alpha2.MeshConfig) *Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || r.of != obj {
		r.last, r.of = NewConfig(obj, r.opts), obj
	}
	return r.last
}
