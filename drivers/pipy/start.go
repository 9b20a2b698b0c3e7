package pipy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/repo"
)

const (
	// debugPath shows what is served.
	debugPath = "/debug/repo"
	// mainFile is the script that Pipy runs.
	mainFile = "main.js"
)

// Start serves the repository on the ControllerContext's port, 6060 if it has none,
// until ctx ends.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	server, err := repo.New(repo.Options{
		Controller: ctrl,
		Translate:  newTranslator().set,
		Objects:    objects,
		Main:       mainFile,
	})
	if err != nil {
		return nil, fmt.Errorf("pipy: %w", err)
	}
	port := ctrl.ProxyServerPort
	if port == 0 {
		port = driver.RepoPort
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ctrl.BindAddress, strconv.FormatUint(uint64(port), 10)))
	if err != nil {
		return nil, fmt.Errorf("pipy: listening for proxies: %w; sidecarDrivers of the MeshConfig can name another proxyServerPort", err)
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

// objects returns the objects of the user's that a file came of: the service whose port
// a document of a destination or a backend is for. Of others, which are made of many
// objects, it returns the proxy's own pod.
func objects(view *mesh.View, file string) []mesh.ObjectRef {
	switch {
	case strings.HasPrefix(file, destinationsDir):
		for part, d := range view.Outbound.Destinations.All() {
			if documentName(destinationsDir, part) == file {
				return []mesh.ObjectRef{serviceRef(d.Service)}
			}
		}
	case strings.HasPrefix(file, backendsDir):
		for part, b := range view.Outbound.Backends.All() {
			if documentName(backendsDir, part) == file {
				return []mesh.ObjectRef{serviceRef(b.Service)}
			}
		}
	}
	return []mesh.ObjectRef{{APIVersion: "v1", Kind: "Pod", Namespace: view.Proxy.Namespace, Name: view.Proxy.Name.Name}}
}

func serviceRef(p mesh.ServicePort) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "v1", Kind: "Service", Namespace: p.Namespace, Name: p.Name.Name}
}
