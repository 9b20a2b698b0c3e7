package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// callsSuffix is after the names of Backends that get calls of gRPC at a port of which only HTTP is known.
const callsSuffix = "/grpc"

// spokenTo returns a Backend that is spoken to by a protocol. A gateway's client chooses the version of HTTP
// for the gateway, and browsers choose HTTP/2, which most applications do not speak without TLS.
func spokenTo(b *mesh.Backend, protocol mesh.Protocol) *mesh.Backend {
	spoken := *b
	spoken.Sealed, spoken.Protocol = mesh.Sealed{}, protocol
	if protocol == mesh.GRPC {
		spoken.Name += callsSuffix
	}
	return mesh.Seal(&spoken)
}

// asCalls lets a Route of a GRPCRoute call its Backends by HTTP/2 whose port says nothing of it.
func (j *join) asCalls(r *graph.Reader, rule *fact.RouteRule, out *mesh.Route, made *destinations) {
	isHTTP := map[string]bool{}
	add := func(b fact.RouteBackend) {
		if spec, ok := portOf(j.service(r, b.Service), b.Port); ok && spec.Protocol == mesh.HTTP {
			isHTTP[mesh.ServicePort{Name: b.Service, Port: b.Port}.String()] = true
		}
	}
	for _, b := range rule.Backends {
		add(b)
	}
	for _, m := range rule.Mirrors {
		add(m.RouteBackend)
	}
	named := func(backend string) string {
		if !isHTTP[backend] {
			return backend
		}
		if made.calls == nil {
			made.calls = map[string]bool{}
		}
		made.calls[backend] = true
		return backend + callsSuffix
	}
	out.Backends, out.Mirrors = slices.Clone(out.Backends), slices.Clone(out.Mirrors)
	for i := range out.Backends {
		out.Backends[i].Backend = named(out.Backends[i].Backend)
	}
	for i := range out.Mirrors {
		out.Mirrors[i].Backend = named(out.Mirrors[i].Backend)
	}
}
