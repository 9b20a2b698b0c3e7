package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// makeSpoken returns a service with the protocols that its ports speak. Routes of gateways for
// connections tell it for ports whose own protocol is only assumed.
func (j *join) makeSpoken(r *graph.Reader, name mesh.Name) *fact.Service {
	svc, ok := j.services.Get(r, name)
	if !ok {
		return nil
	}
	spoken := *svc
	spoken.Sealed, spoken.Ports = mesh.Sealed{}, slices.Clone(svc.Ports)
	for i := range spoken.Ports {
		if spec := &spoken.Ports[i]; spec.Assumed && j.carriesConnections(r, svc, spec.Port) {
			spec.Protocol = mesh.TCP
		}
	}
	return mesh.Seal(&spoken)
}

// carriesConnections reports whether gateways of the mesh have routes for connections to the service port,
// and no route treats it as a port for requests. Only routes count that may refer to the service.
func (j *join) carriesConnections(r *graph.Reader, svc *fact.Service, port uint16) bool {
	found := false
	for _, kind := range j.routes {
		for _, key := range kind.toBackend.Get(r, svc.Name) {
			route, ok := kind.Get(r, key)
			switch {
			case !ok || !j.member(r, route.Namespace) || !hasBackend(route, svc.Name, port):
			case route.Namespace != svc.Namespace && !j.isGranted(r, route, svc.Name):
			case route.Kind.IsHTTP():
				return false
			default:
				found = found || slices.ContainsFunc(route.Gateways, func(p fact.GatewayParent) bool {
					_, ok := j.gateway(r, p.Gateway)
					return ok
				})
			}
		}
		for _, of := range kind.of.Get(r, svc.Name) {
			if route, ok := kind.Get(r, of.key); ok && route.Namespace == svc.Namespace && route.Kind.IsHTTP() {
				return false
			}
		}
	}
	return found
}

// hasBackend reports whether a route refers to the service port.
func hasBackend(route *fact.Route, service mesh.Name, port uint16) bool {
	return slices.ContainsFunc(route.Rules, func(rule fact.RouteRule) bool {
		return slices.ContainsFunc(rule.Backends, func(b fact.RouteBackend) bool { return b.Service == service && b.Port == port })
	})
}

// backendsOf returns the services to which the rules of a route refer, each once.
func backendsOf(route *fact.Route) []mesh.Name {
	var all []mesh.Name
	for _, rule := range route.Rules {
		for _, b := range rule.Backends {
			all = append(all, b.Service)
		}
	}
	slices.SortFunc(all, mesh.Name.Compare)
	return slices.Compact(all)
}
