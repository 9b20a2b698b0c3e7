package catalog

import (
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// inspectGatewayClass says what the proxies of the gateways of a class have.
func (j *join) inspectGatewayClass(r *graph.Reader, name mesh.Name, f *fault) {
	if class, ok := j.gatewayClasses.Get(r, name); ok {
		f.features = j.featuresHad(class.Class)
	}
}
