package envoy

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// objects returns the user's objects from which a resource was made: the service, for
// resources of destinations and backends, whose names are those of the resources. For
// others, which are made of many objects, it returns the proxy's pod.
func objects(view *mesh.View, typeURL, name string) []mesh.ObjectRef {
	if typeURL == endpointType {
		if at := strings.LastIndexByte(name, '@'); at >= 0 {
			name = name[:at]
		}
	}
	if d, ok := view.Outbound.Destinations.Get(name); ok {
		return []mesh.ObjectRef{delivery.ServiceObject(d.Service)}
	}
	if b, ok := view.Outbound.Backends.Get(name); ok {
		return []mesh.ObjectRef{delivery.ServiceObject(b.Service)}
	}
	return []mesh.ObjectRef{delivery.PodObject(view.Proxy)}
}
