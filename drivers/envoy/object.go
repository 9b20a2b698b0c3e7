package envoy

import (
	"strconv"
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

// isMadeOf reports whether Envoy may reject a resource because of the part.
func isMadeOf(typeURL, name string, part mesh.Part) bool {
	switch part.Kind {
	case mesh.PartDestination:
		return name == part.Name && (typeURL == listenerType || typeURL == routeType || typeURL == extensionType)
	case mesh.PartBackend:
		if typeURL == endpointType {
			name = name[:max(strings.LastIndexByte(name, '@'), 0)]
		}
		return name == part.Name && (typeURL == clusterType || typeURL == endpointType)
	case mesh.PartEgress:
		port, _, _ := strings.Cut(strings.TrimPrefix(name, egressPrefix), "/")
		if number, err := strconv.ParseUint(port, 10, 16); err == nil && strings.HasPrefix(name, egressPrefix) {
			return strings.HasSuffix(part.Name, ":"+strconv.FormatUint(number, 10))
		}
		return typeURL == listenerType && (name == outboundListener || name == knownListener || name == outsideListener)
	default:
		// A permission has no port, and may be for all of them.
		return name == inboundListener || strings.HasPrefix(name, inboundListener+"/")
	}
}
