package xds

import (
	"context"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Service names a driver's server and its port, for Start.
type Service = delivery.Service

// Start implements a driver's Start; see delivery.Start. It sets options.Controller to
// the ControllerContext that ctx carries.
func Start(ctx context.Context, service Service, options Options) (health.Probes, error) {
	return delivery.Start(ctx, service, func(ctrl *driver.ControllerContext) (*Server, error) {
		options.Controller = ctrl
		return New(options)
	})
}
