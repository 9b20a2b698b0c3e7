package localmesh

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// ServesGateways reports whether proxies of a class can be those of gateways.
func ServesGateways(class string) bool {
	return slices.Contains(sidecar.Features(class), mesh.FeatureGateways)
}
