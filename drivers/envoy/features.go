package envoy

import (
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Featurer = Driver{}

// Features returns all features of the mesh: Envoy supports every one.
func (Driver) Features() []mesh.Feature { return mesh.Features() }
