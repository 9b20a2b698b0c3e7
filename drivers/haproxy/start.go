package haproxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/repo"
)

// debugPath shows what is served.
const debugPath = "/debug/haproxy"

// Start serves the configurations to the agents on the ControllerContext's port, 6061 if
// it has none, until ctx ends.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	server, err := repo.New(repo.Options{Controller: ctrl, Translate: delivered, Objects: objects})
	if err != nil {
		return nil, fmt.Errorf("haproxy: %w", err)
	}
	port := ctrl.ProxyServerPort
	if port == 0 {
		port = defaultPort
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ctrl.BindAddress, strconv.FormatUint(uint64(port), 10)))
	if err != nil {
		return nil, fmt.Errorf("haproxy: listening for agents: %w; sidecarDrivers of the MeshConfig can name another proxyServerPort", err)
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
	return server.Probes(name), nil
}

// objects returns the object that a refused file came of. It is made of many, so it is
// the proxy's own pod.
func objects(view *mesh.View, _ string) []mesh.ObjectRef {
	return []mesh.ObjectRef{{APIVersion: "v1", Kind: "Pod", Namespace: view.Proxy.Namespace, Name: view.Proxy.Name.Name}}
}
