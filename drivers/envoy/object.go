package envoy

import (
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// objects returns the user's objects from which a resource was made: for resources of backends
// and destinations, whose names are those of the resources, the objects of these; for others,
// which are made of many objects, the proxy's pod.
func objects(view *mesh.View, typeURL, name string) []mesh.ObjectRef {
	kind := mesh.PartDestination
	switch typeURL {
	case endpointType:
		kind = mesh.PartBackend
		if at := strings.LastIndexByte(name, '@'); at >= 0 {
			name = name[:at]
		}
	case clusterType:
		kind = mesh.PartBackend
	}
	return delivery.Objects(view, mesh.Part{Kind: kind, Name: name})
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
