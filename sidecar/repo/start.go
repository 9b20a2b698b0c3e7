package repo

import (
	"context"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Service is how a driver's repository is known, for Start.
type Service = delivery.Service

// Start is the whole of a driver's Start, as delivery.Start has it. The Controller of the
// options is that which ctx carries.
func Start(ctx context.Context, service Service, options Options) (health.Probes, error) {
	return delivery.Start(ctx, service, func(ctrl *driver.ControllerContext) (*Server, error) {
		options.Controller = ctrl
		return New(options)
	})
}
