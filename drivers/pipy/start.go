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
	// debugPath is the debug page of the files that are served.
	debugPath = "/debug/repo"
	// mainFile is the script that Pipy runs.
	mainFile = "main.js"
)

// Start serves the repository on the ControllerContext's port, by default 6060, until
// ctx is done.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	t := newTranslator()
	return repo.Start(ctx, repo.Service{Name: name, Port: driver.RepoPort, DebugPath: debugPath}, repo.Options{
		Translate: t.set,
		LeftOut:   t.leftOut,
		Objects:   objects,
		// A live file: Pipy uses a new certificate without a restart.
		Certificates: liveDir + "certificates/",
	})
}

// objects returns the user's objects that a file was generated from: for the document of a
// destination or a backend its objects, and for all others, which have many sources, the proxy's
// own pod.
func objects(view *mesh.View, file string) []mesh.ObjectRef {
	part := mesh.Part{}
	switch {
	case strings.HasPrefix(file, destinationsDir):
		for name := range view.Outbound.Destinations.All() {
			if documentName(destinationsDir, name) == file {
				part = mesh.Part{Kind: mesh.PartDestination, Name: name}
			}
		}
	case strings.HasPrefix(file, backendsDir):
		for name := range view.Outbound.Backends.All() {
			if documentName(backendsDir, name) == file {
				part = mesh.Part{Kind: mesh.PartBackend, Name: name}
			}
		}
	}
	return delivery.Objects(view, part)
}
