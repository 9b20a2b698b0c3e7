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
			tables := translator.Config(view).delivered()
			if from := ctrl.ServerCertificates; from != nil && view.Proxy.Gateway {
				for _, secret := range certificates(view, from) {
					tables[0] = tables[0].With(mesh.Change[*Resource]{Name: secret.Name, Value: secret})
				}
			}
			return tables
		},
		Objects: objects,
		Parts:   isMadeOf,
	})
}
