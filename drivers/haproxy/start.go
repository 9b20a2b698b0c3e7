package haproxy

import (
	"context"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar/repo"
)

// Start serves the configurations to the agents on the ControllerContext's port, by
// default 6061, until ctx is done.
func (d Driver) Start(ctx context.Context) (health.Probes, error) {
	return repo.Start(ctx, repo.Service{Name: name, Port: defaultPort, DebugPath: "/debug/haproxy"}, repo.Options{Translator: d})
}
