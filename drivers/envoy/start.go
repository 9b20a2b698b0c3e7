package envoy

import (
	"context"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// debugPath is the debug page with the streams and their resources.
const debugPath = "/debug/xds"

// Start serves the aggregated discovery service on the ControllerContext's port, 15128
// by default, until ctx ends.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	translator := NewTranslator()
	return xds.Start(ctx, xds.Service{Name: name, Port: driver.ADSPort, DebugPath: debugPath}, xds.Options{
		Types: deliveredTypes,
		Translate: func(view *mesh.View) xds.Config {
			config := translator.Config(view)
			if from := ctrl.ServerCertificates; from != nil && view.Proxy.Gateway {
				var secrets changes
				secrets.add(certificates(view, from))
				config = config.with(secrets)
			}
			return config.delivered()
		},
		Objects: objects,
		Parts:   isMadeOf,
	})
}
