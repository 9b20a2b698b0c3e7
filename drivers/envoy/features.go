package envoy

import (
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Featurer = Driver{}

// Features returns all features: the mesh's own are those that Envoy has.
func (Driver) Features() []mesh.Feature { return mesh.Features() }
