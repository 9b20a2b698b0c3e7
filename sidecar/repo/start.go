package repo

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Service is how a driver's repository is known, for Start.
type Service struct {
	// Name is the driver's, and what errors begin with.
	Name string
	// Port is what is listened on if the ControllerContext has no port.
	Port uint32
	// DebugPath is the whole path of the page that shows what is served.
	DebugPath string
}

// Start is the whole of a driver's Start: it serves on the port of the ControllerContext
// that ctx carries, which is the Controller of the options too, until ctx ends, and
// shows the debug page. If serving fails the controller is ended by its CancelFunc. It
// returns an error if the port can't be listened on or the context lacks something.
func Start(ctx context.Context, service Service, options Options) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	options.Controller = ctrl
	server, err := New(options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", service.Name, err)
	}
	port := cmp.Or(ctrl.ProxyServerPort, service.Port)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ctrl.BindAddress, strconv.FormatUint(uint64(port), 10)))
	if err != nil {
		return nil, fmt.Errorf("%s: listening for proxies: %w; sidecarDrivers of the MeshConfig can name another proxyServerPort", service.Name, err)
	}
	if ctrl.DebugHandlers == nil {
		ctrl.DebugHandlers = make(map[string]http.Handler)
	}
	ctrl.DebugHandlers[service.DebugPath] = server.Debug()
	go func() {
		if err := server.Serve(ctx, listener); err != nil {
			server.log.Error("the delivery of configuration has ended", "error", err)
			if ctrl.CancelFunc != nil {
				ctrl.CancelFunc()
			}
		}
	}()
	return server.Probes(service.Name), nil
}
