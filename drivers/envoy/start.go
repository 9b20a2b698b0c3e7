package envoy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// debugPath shows what is served.
const debugPath = "/debug/xds"

// Start serves the aggregated discovery service on the ControllerContext's port,
// 15128 if it has none, until ctx ends.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	translator := NewTranslator()
	server, err := xds.New(xds.Options{
		Controller: ctrl,
		Types:      deliveredTypes,
		Translate:  func(view *mesh.View) xds.Config { return translator.Config(view).delivered() },
		Objects:    objects,
	})
	if err != nil {
		return nil, fmt.Errorf("envoy: %w", err)
	}
	port := ctrl.ProxyServerPort
	if port == 0 {
		port = driver.ADSPort
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ctrl.BindAddress, strconv.FormatUint(uint64(port), 10)))
	if err != nil {
		return nil, fmt.Errorf("envoy: listening for proxies: %w; sidecarDrivers of the MeshConfig can name another proxyServerPort", err)
	}
	if ctrl.DebugHandlers == nil {
		ctrl.DebugHandlers = make(map[string]http.Handler)
	}
	ctrl.DebugHandlers[debugPath] = server.Debug()
	go func() {
		if err := server.Serve(ctx, listener); err != nil {
			server.Log().Error("the delivery of configuration has ended", "error", err)
			if ctrl.CancelFunc != nil {
				ctrl.CancelFunc()
			}
		}
	}()
	return server.Probes("envoy"), nil
}
