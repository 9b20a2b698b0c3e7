package envoy

import (
	"maps"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// endpoints returns the endpoints of a Backend, under the name to which its cluster
// subscribes, as seen by proxies in the zone.
func (o *outboundBuilder) endpoints(name string, b *mesh.Backend, zone string) *Resource {
	e := newEncoder(len(name) + endpointSize*(len(b.Endpoints)+1))
	e.text(assignmentClusterName, name)
	// Like a Service, a Backend whose endpoints are all draining keeps using them.
	alive := slices.ContainsFunc(b.Endpoints, func(endpoint mesh.Endpoint) bool { return !endpoint.Draining })
	if prefersZone(b, zone) {
		e.constant(strictPriorities)
		o.localities(&e, b.Endpoints, zone, alive)
	} else if len(b.Endpoints) > 0 {
		e.message(assignmentEndpoints, func() { o.lbEndpoints(&e, b.Endpoints, alive) })
	}
	return e.resource(endpointType, name)
}

// endpointSize is the typical size of an endpoint in bytes.
const endpointSize = 96

// prefersZone reports whether the zone affects the Backend's endpoints.
func prefersZone(b *mesh.Backend, zone string) bool {
	return b.Policy.LoadBalancing.PreferZone && zone != "" &&
		slices.ContainsFunc(b.Endpoints, func(e mesh.Endpoint) bool { return e.Zone == zone })
}

// strictPriorities makes Envoy use the next priority only when no endpoint of this one
// works. By default it starts to when a quarter of them fails.
var strictPriorities = constantOf(&endpointv3.ClusterLoadAssignment{Policy: &endpointv3.ClusterLoadAssignment_Policy{
	OverprovisioningFactor: wrapperspb.UInt32(100 * maxEndpoints),
}})

// maxEndpoints is more than any Backend has.
const maxEndpoints = 10_000

// localities writes the endpoints by zone, the proxy's own zone first.
func (o *outboundBuilder) localities(e *encoder, endpoints []mesh.Endpoint, zone string, alive bool) {
	zones := make(map[string][]mesh.Endpoint)
	for _, endpoint := range endpoints {
		zones[endpoint.Zone] = append(zones[endpoint.Zone], endpoint)
	}
	write := func(name string, priority uint64) {
		e.message(assignmentEndpoints, func() {
			e.message(localityLocality, func() { e.text(localityZone, name) })
			o.lbEndpoints(e, zones[name], alive)
			e.number(localityPriority, priority)
		})
	}
	write(zone, 0)
	for _, other := range slices.Sorted(maps.Keys(zones)) {
		if other != zone {
			write(other, 1)
		}
	}
}

// lbEndpoints writes endpoints. Draining ones are marked only if others are alive.
func (o *outboundBuilder) lbEndpoints(e *encoder, endpoints []mesh.Endpoint, alive bool) {
	for i := range endpoints {
		endpoint := &endpoints[i]
		if len(endpoint.Addresses) == 0 || endpoint.Port == 0 || slices.ContainsFunc(endpoint.Addresses, func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" }) {
			continue
		}
		e.message(localityLbEndpoints, func() {
			e.message(lbEndpointEndpoint, func() {
				e.address(endpointAddress, endpoint.Addresses[0], endpoint.Port)
				e.text(endpointHostname, endpoint.ServerName)
				for _, address := range endpoint.Addresses[1:] {
					e.message(endpointAdditionalAddresses, func() { e.address(additionalAddressAddress, address, endpoint.Port) })
				}
			})
			if endpoint.Draining && alive {
				e.number(lbEndpointHealthStatus, uint64(corev3.HealthStatus_DRAINING))
			}
			if endpoint.ServerName == "" && !o.plaintext {
				e.constant(plaintextMetadata)
			}
		})
	}
}

// address writes an Address.
func (e *encoder) address(field protowire.Number, address netip.Addr, port uint16) {
	var space [40]byte
	e.message(field, func() {
		e.message(addressSocketAddress, func() {
			e.bytes(socketAddressAddress, address.AppendTo(space[:0]))
			e.number(socketAddressPortValue, uint64(port))
		})
	})
}
