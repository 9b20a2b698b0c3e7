package pipy

import (
	"context"
	"strings"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
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
	return repo.Start(ctx, repo.Service{Name: name, Port: driver.RepoPort, DebugPath: debugPath}, repo.Options{
		Translate: newTranslator().set,
		Objects:   objects,
	})
}

// objects returns the objects of the user's that a file came of: the service whose port
// a document of a destination or a backend is for. Of others, which are made of many
// objects, it returns the proxy's own pod.
func objects(view *mesh.View, file string) []mesh.ObjectRef {
	switch {
	case strings.HasPrefix(file, destinationsDir):
		for part, d := range view.Outbound.Destinations.All() {
			if documentName(destinationsDir, part) == file {
				return []mesh.ObjectRef{delivery.ServiceObject(d.Service)}
			}
		}
	case strings.HasPrefix(file, backendsDir):
		for part, b := range view.Outbound.Backends.All() {
			if documentName(backendsDir, part) == file {
				return []mesh.ObjectRef{delivery.ServiceObject(b.Service)}
			}
		}
	}
	return []mesh.ObjectRef{delivery.PodObject(view.Proxy)}
}
