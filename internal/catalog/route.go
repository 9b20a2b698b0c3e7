package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// audience is a service port as the clients of a namespace see it. The namespace is empty
// for clients without consumer routes: routes in their own namespace for a service of
// another one.
type audience struct {
	port      mesh.ServicePort
	namespace string
}

// audienceIn returns the audience of clients in a namespace.
func (j *join) audienceIn(r *graph.Reader, port mesh.ServicePort, namespace string) audience {
	if !slices.Contains(j.consumersOf(r, port.Name), namespace) {
		namespace = ""
	}
	return audience{port, namespace}
}

// audiences returns all audiences of a service port.
func (j *join) audiences(r *graph.Reader, port mesh.ServicePort) []audience {
	all := []audience{{port, ""}}
	for _, namespace := range j.consumersOf(r, port.Name) {
		all = append(all, audience{port, namespace})
	}
	return all
}

// consumersOf returns the namespaces with consumer routes for the service, sorted.
func (j *join) consumersOf(r *graph.Reader, service mesh.Name) []string {
	var namespaces []string
	for _, route := range j.routesFor(r, service) {
		if route.Namespace != service.Namespace {
			namespaces = append(namespaces, route.Namespace)
		}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// routesFor returns the routes with the service as parent, GRPCRoutes first and then by
// age.
func (j *join) routesFor(r *graph.Reader, service mesh.Name) []*fact.Route {
	var routes []*fact.Route
	for _, kind := range []struct {
		of *graph.Index[mesh.Name, aged]
		in *graph.Input[mesh.Name, *fact.Route]
	}{{j.grpcRoutesOf, j.grpcRoutes}, {j.httpRoutesOf, j.httpRoutes}} {
		for _, a := range kind.of.Get(r, service) {
			if route, ok := kind.in.Get(r, a.key); ok && j.member(r, route.Namespace) {
				routes = append(routes, route)
			}
		}
	}
	return routes
}

// routesInForce returns the routes that govern a service port for an audience: the
// consumer routes if there are any, otherwise those of the service's own namespace; and
// of these only the GRPCRoutes if there are any.
func (j *join) routesInForce(r *graph.Reader, svc *fact.Service, spec fact.PortSpec, namespace string) []*fact.Route {
	if !spec.Protocol.IsHTTP() || svc.Headless || svc.ExternalName != "" {
		return nil
	}
	var consumer, producer []*fact.Route
	for _, route := range j.routesFor(r, svc.Name) {
		if !slices.ContainsFunc(route.Parents, func(p fact.RouteParent) bool { return p.Service == svc.Name && isParent(p, spec) }) {
			continue
		}
		switch route.Namespace {
		case svc.Namespace:
			producer = append(producer, route)
		case namespace:
			consumer = append(consumer, route)
		}
	}
	routes := producer
	if len(consumer) > 0 {
		routes = consumer
	}
	return slices.DeleteFunc(routes, func(route *fact.Route) bool { return route.GRPC != routes[0].GRPC })
}

// isParent reports whether the parent includes the port of its service.
func isParent(p fact.RouteParent, spec fact.PortSpec) bool {
	return (p.Port == 0 || p.Port == spec.Port) && (p.PortName == "" || p.PortName == spec.Name)
}

// gatewayRoutes returns the routes of a Destination by the rules of the routes in force,
// in order of precedence, and adds the ports of their backends to made.uses. It returns
// false if there are no such routes. There may be some without any valid match: they let
// nothing pass.
func (j *join) gatewayRoutes(r *graph.Reader, svc *fact.Service, spec fact.PortSpec, namespace string, made *destinations) ([]mesh.Route, bool) {
	type candidate struct {
		mesh.Route
		fact.Precedence
	}
	var candidates []candidate
	inForce := j.routesInForce(r, svc, spec, namespace)
	for _, route := range inForce {
		for i := range route.Rules {
			rule := &route.Rules[i]
			made := j.routeOf(r, svc, route, rule, made)
			for _, match := range rule.Matches {
				made.Match = match.HTTPMatch
				candidates = append(candidates, candidate{made, match.Precedence})
			}
		}
	}
	// The routes are in order of age, and their rules and matches in the user's order.
	slices.SortStableFunc(candidates, func(a, b candidate) int { return slices.Compare(b.Precedence[:], a.Precedence[:]) })
	var routes []mesh.Route
	for _, c := range candidates {
		routes = append(routes, c.Route)
	}
	return routes, len(inForce) > 0
}

func (j *join) routeOf(r *graph.Reader, svc *fact.Service, route *fact.Route, rule *fact.RouteRule, made *destinations) mesh.Route {
	out := mesh.Route{Name: route.String(), Timeout: j.policies.Get(r, svc.Name).Upstream.RequestTimeout}
	if rule.Name != "" {
		out.Name += "/" + rule.Name
	}
	if rule.Timeout != nil {
		out.Timeout = *rule.Timeout
	}
	failed := []mesh.WeightedBackend{{Weight: 1}}
	if rule.Unusable {
		out.Backends = failed
		return out
	}
	if rule.Redirect != nil {
		out.Redirect, out.Timeout = rule.Redirect, 0
		return out
	}
	out.Rewrite = rule.Rewrite
	for _, b := range rule.Backends {
		if b.Weight == 0 {
			continue
		}
		share := mesh.WeightedBackend{Weight: b.Weight}
		if port, why := j.routeBackend(r, route, svc.Name, b); why == nil {
			made.uses = append(made.uses, port)
			share.Backend, share.Request, share.Response = port.String(), rule.Request.Then(b.Request).Joined(), b.Response.Then(rule.Response)
		}
		out.Backends = append(out.Backends, share)
	}
	if len(out.Backends) == 0 {
		out.Backends = failed
	}
	return out
}

// refusal says why a backend of a route can't be used.
type refusal struct{ reason, message string }

// routeBackend returns the service port of a route's backend, or why it can't be used.
func (j *join) routeBackend(r *graph.Reader, route *fact.Route, parent mesh.Name, b fact.RouteBackend) (mesh.ServicePort, *refusal) {
	refuse := func(reason, format string, args ...any) (mesh.ServicePort, *refusal) {
		return mesh.ServicePort{}, &refusal{reason, fmt.Sprintf(format, args...)}
	}
	port := mesh.ServicePort{Name: b.Service, Port: b.Port}
	svc := j.service(r, b.Service)
	spec, ok := portOf(svc, b.Port)
	switch {
	case b.Unusable:
		// The Problem is one of the object alone.
		return port, &refusal{}
	case b.Service.Namespace != route.Namespace && b.Service.Namespace != parent.Namespace:
		return refuse(fact.ReasonRefNotPermitted, "Service %s is neither in the route's namespace nor in that of its parent; move it, or the route", b.Service)
	case svc == nil:
		return refuse(fact.ReasonBackendNotFound, "there is no Service %s in the mesh; create it, or correct the name", b.Service)
	case !ok:
		return refuse(fact.ReasonBackendNotFound, "Service %s has no port %d; correct it", b.Service, b.Port)
	case svc.Headless || svc.ExternalName != "":
		return refuse(fact.ReasonUnsupportedValue, "Service %s has no cluster IP; give it one", b.Service)
	case !spec.Protocol.IsHTTP():
		return refuse(fact.ReasonUnsupportedProtocol, "port %d of Service %s has the protocol %s; set its appProtocol to http or grpc", b.Port, b.Service, spec.Protocol)
	}
	return port, nil
}

// inspectRoute finds parents without effect and backends that can't be used.
func (j *join) inspectRoute(r *graph.Reader, route *fact.Route, f *fault) {
	for _, parent := range route.Parents {
		j.inspectParent(r, route, parent, f)
	}
	for _, rule := range route.Rules {
		for k, b := range rule.Backends {
			// A backend may be permitted for one parent and not for another.
			for _, parent := range route.Parents {
				if _, why := j.routeBackend(r, route, parent.Service, b); why != nil && why.reason != "" {
					f.once(why.reason, fmt.Sprintf("spec.rules[%d].backendRefs[%d]", rule.Index, k), "%s; until then its share of the requests is answered with 500", why.message)
				}
			}
		}
	}
}

func (j *join) inspectParent(r *graph.Reader, route *fact.Route, parent fact.RouteParent, f *fault) {
	field := fmt.Sprintf("spec.parentRefs[%d]", parent.Index)
	svc := j.service(r, parent.Service)
	switch {
	case svc == nil:
		f.add(fact.ReasonNoMatchingParent, field, "there is no Service %s in the mesh; the route has no effect there until there is", parent.Service)
		return
	case svc.Headless || svc.ExternalName != "":
		f.add(fact.ReasonNoMatchingParent, field, "Service %s has no cluster IP, by which its requests would be recognized; give it one", parent.Service)
		return
	}
	specs := slices.DeleteFunc(slices.Clone(svc.Ports), func(spec fact.PortSpec) bool { return !isParent(parent, spec) })
	if len(specs) == 0 {
		f.add(fact.ReasonNoMatchingParent, field, "Service %s has no port %s; correct the parent", parent.Service, cmp.Or(parent.PortName, fmt.Sprint(parent.Port)))
		return
	}
	specs = slices.DeleteFunc(specs, func(spec fact.PortSpec) bool { return !spec.Protocol.IsHTTP() })
	if len(specs) == 0 {
		f.add(fact.ReasonNoMatchingParent, field, "Service %s has no such port with HTTP; set its appProtocol to http or grpc", parent.Service)
		return
	}
	var winners []string
	for _, spec := range specs {
		inForce := j.routesInForce(r, svc, spec, route.Namespace)
		if slices.Contains(inForce, route) {
			return
		}
		winners = append(winners, inForce[0].String())
	}
	slices.Sort(winners)
	f.add(fact.ReasonConflicted, field, "GRPCRoute %s is for the same ports and takes precedence over HTTPRoutes; give each its own port with port or sectionName", strings.Join(slices.Compact(winners), ", "))
}
