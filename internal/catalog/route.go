package catalog

import (
	"cmp"
	"fmt"
	"iter"
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

// gatewayVersion is the API group of routes, with the newest version.
const gatewayVersion = "gateway.networking.k8s.io/v1"

// routeInput has the routes of a kind.
type routeInput struct {
	*graph.Input[mesh.Name, *fact.Route]
	// of is by parent that is a service, and ofGateway by one that is a gateway.
	of, ofGateway *graph.Index[mesh.Name, aged]
	// toBackend is by service to which a rule refers.
	toBackend *graph.Index[mesh.Name, mesh.Name]
}

func newRouteInput(in *graph.Input[mesh.Name, *fact.Route]) *routeInput {
	byParent := func(key mesh.Name, route *fact.Route) iter.Seq2[mesh.Name, aged] {
		return each(route.Parents, func(p fact.RouteParent) (mesh.Name, aged) { return p.Service, aged{route.Created, key} })
	}
	byGateway := func(key mesh.Name, route *fact.Route) iter.Seq2[mesh.Name, aged] {
		return each(route.Gateways, func(p fact.GatewayParent) (mesh.Name, aged) { return p.Gateway, aged{route.Created, key} })
	}
	byBackend := func(key mesh.Name, route *fact.Route) iter.Seq2[mesh.Name, mesh.Name] {
		return each(backendsOf(route), func(service mesh.Name) (mesh.Name, mesh.Name) { return service, key })
	}
	return &routeInput{in, graph.NewIndex(in, compareAged, byParent), graph.NewIndex(in, compareAged, byGateway), graph.NewIndex(in, mesh.Name.Compare, byBackend)}
}

// routesFor returns the routes with the service as parent, in the order of precedence of
// their kinds and then by age.
func (j *join) routesFor(r *graph.Reader, service mesh.Name) []*fact.Route {
	var found []*fact.Route
	for _, kind := range j.routes {
		for _, a := range kind.of.Get(r, service) {
			if route, ok := kind.Get(r, a.key); ok && j.member(r, route.Namespace) {
				found = append(found, route)
			}
		}
	}
	return found
}

// routesInForce returns the routes that govern a service port for an audience: the
// consumer routes if there are any, otherwise those of the service's own namespace; of
// these only those of the first kind; and of TCPRoutes only the oldest.
func (j *join) routesInForce(r *graph.Reader, svc *fact.Service, spec fact.PortSpec, namespace string) []*fact.Route {
	if svc.Headless || svc.ExternalName != "" {
		return nil
	}
	var consumer, producer []*fact.Route
	for _, route := range j.routesFor(r, svc.Name) {
		if !slices.ContainsFunc(route.Parents, func(p fact.RouteParent) bool { return p.Service == svc.Name && isParent(route, p, spec) }) {
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
	if len(routes) == 0 {
		return nil
	}
	first := routes[0].Kind
	if first == fact.TCPRoute {
		return routes[:1]
	}
	return slices.DeleteFunc(routes, func(route *fact.Route) bool { return route.Kind != first })
}

// isParent reports whether the parent of the route includes the port of its service.
func isParent(route *fact.Route, p fact.RouteParent, spec fact.PortSpec) bool {
	return (p.Port == 0 || p.Port == spec.Port) && (p.PortName == "" || p.PortName == spec.Name) && route.Kind.IsHTTP() == spec.Protocol.IsHTTP()
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
			made := j.routeOf(r, svc.Name, route, rule, made)
			for _, match := range rule.Matches {
				made.Match, made.Session = match.HTTPMatch, sessionFor(route, rule, match.Path)
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

// routeOf returns what a rule does to requests to a parent, which is a service, or zero for a
// gateway. It adds the ports of its backends to made.uses.
func (j *join) routeOf(r *graph.Reader, parent mesh.Name, route *fact.Route, rule *fact.RouteRule, made *destinations) mesh.Route {
	origin := originOfRoute(route, fmt.Sprintf("spec.rules[%d]", rule.Index))
	out := mesh.Route{Origin: origin, Rule: rule.Name, Timeout: j.policies.Get(r, parent).Upstream.RequestTimeout}
	if rule.Timeout != nil {
		out.Timeout = *rule.Timeout
	}
	if rule.Unusable {
		out.Backends = failed
		return out
	}
	if rule.Redirect != nil {
		out.Redirect, out.CORS, out.Timeout = rule.Redirect, rule.CORS, 0
		return out
	}
	out.Rewrite, out.CORS = rule.Rewrite, rule.CORS
	if rule.Retry != nil {
		retry := *rule.Retry
		retry.Origin = originOfRoute(route, origin.Field+".retry")
		out.Retry = &retry
	}
	out.Session = sessionFor(route, rule, mesh.StringMatch{})
	for _, m := range rule.Mirrors {
		if port, why := j.routeBackend(r, route, parent, m.RouteBackend); why == nil {
			made.uses = append(made.uses, port)
			out.Mirrors = append(out.Mirrors, mesh.Mirror{Backend: port.String(), Numerator: m.Numerator, Denominator: m.Denominator})
		}
	}
	out.Backends = j.routeShares(r, parent, route, rule, made)
	return out
}

// failed is the share of requests that are answered with 500, and of connections that are
// closed.
var failed = []mesh.WeightedBackend{{Weight: 1}}

// routeShares returns the backends of a rule, and adds their ports to made.uses. Those with the
// weight 0 are left out if there are no sessions.
func (j *join) routeShares(r *graph.Reader, parent mesh.Name, route *fact.Route, rule *fact.RouteRule, made *destinations) []mesh.WeightedBackend {
	var shares []mesh.WeightedBackend
	sum := uint64(0)
	for _, b := range rule.Backends {
		if b.Weight == 0 && rule.Session == nil {
			continue
		}
		sum += uint64(b.Weight)
		share := mesh.WeightedBackend{Weight: b.Weight}
		if port, why := j.routeBackend(r, route, parent, b); why == nil {
			made.uses = append(made.uses, port)
			share.Backend, share.Request, share.Response = port.String(), rule.Request.Then(b.Request).Joined(), b.Response.Then(rule.Response)
		}
		shares = append(shares, share)
	}
	if sum == 0 {
		return append(shares, failed...)
	}
	return shares
}

// routeConnections sets the Backends or Servers of a Destination by the TCPRoute or the
// TLSRoutes in force, and adds the ports of their backends to made.uses. It returns false
// if there are no such routes.
func (j *join) routeConnections(r *graph.Reader, svc *fact.Service, spec fact.PortSpec, namespace string, made *destinations, d *mesh.Destination) bool {
	inForce := j.routesInForce(r, svc, spec, namespace)
	for _, route := range inForce {
		shares := failed
		if len(route.Rules) > 0 {
			shares = j.routeShares(r, svc.Name, route, &route.Rules[0], made)
		}
		if route.Kind == fact.TCPRoute {
			d.Backends, d.Origins = shares, append(d.Origins, originOfRoute(route, "spec.rules[0]"))
			break
		}
		for _, host := range route.Hosts {
			if !slices.ContainsFunc(d.Servers, func(s mesh.ServerRoute) bool { return s.Host == host }) {
				d.Servers = append(d.Servers, mesh.ServerRoute{Origin: originOfRoute(route, "spec.hostnames"), Host: host, Backends: shares})
			}
		}
	}
	slices.SortStableFunc(d.Servers, func(a, b mesh.ServerRoute) int { return mesh.CompareHosts(a.Host, b.Host) })
	return len(inForce) > 0
}

// refusal says why a backend of a route can't be used.
type refusal struct{ reason, message string }

// routeBackend returns the service port of a route's backend, or why it can't be used. The parent is a
// service, or zero for a gateway, which calls the endpoints of headless services too.
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
	case b.Service.Namespace != route.Namespace && b.Service.Namespace != parent.Namespace && !j.isGranted(r, route, b.Service):
		return refuse(fact.ReasonRefNotPermitted, "Service %s is neither in the route's namespace nor in that of its parent; permit the reference with a ReferenceGrant in the namespace %s", b.Service, b.Service.Namespace)
	case svc == nil:
		return refuse(fact.ReasonBackendNotFound, "there is no Service %s in the mesh; create it, or correct the name", b.Service)
	case !ok:
		return refuse(fact.ReasonBackendNotFound, "Service %s has no port %d; correct it", b.Service, b.Port)
	case svc.ExternalName != "", svc.Headless && parent != mesh.Name{}:
		return refuse(fact.ReasonUnsupportedBackend, "Service %s has no cluster IP; give it one", b.Service)
	case spec.Protocol.IsHTTP() != route.Kind.IsHTTP():
		return refuse(fact.ReasonUnsupportedProtocol, "port %d of Service %s has the protocol %s; set its appProtocol to %s", b.Port, b.Service, spec.Protocol, protocolsFor(route.Kind))
	}
	return port, nil
}

// protocolsFor returns the values of appProtocol for the ports of a kind of routes.
func protocolsFor(kind fact.RouteKind) string {
	if kind.IsHTTP() {
		return "http or grpc"
	}
	return "tcp"
}

// isGranted reports whether a ReferenceGrant allows the route to refer to the service.
func (j *join) isGranted(r *graph.Reader, route *fact.Route, service mesh.Name) bool {
	return j.mayRefer(r, fact.Referrer{Kind: string(route.Kind), Namespace: route.Namespace}, service, func(g *fact.ReferenceGrant) []string { return g.Services })
}

// mayRefer reports whether a ReferenceGrant allows references to what has the name in another
// namespace. The function names returns the names for which a grant is.
func (j *join) mayRefer(r *graph.Reader, from fact.Referrer, to mesh.Name, names func(*fact.ReferenceGrant) []string) bool {
	return slices.ContainsFunc(j.referenceGrantsIn.Get(r, to.Namespace), func(key mesh.Name) bool {
		grant, ok := j.referenceGrants.Get(r, key)
		return ok && slices.Contains(grant.From, from) && slices.ContainsFunc(names(grant), func(name string) bool { return name == fact.AllNames || name == to.Name })
	})
}

// inspectRoute finds parents without effect and backends that can't be used.
func (j *join) inspectRoute(r *graph.Reader, route *fact.Route, f *fault) {
	for _, parent := range route.Parents {
		j.inspectParent(r, route, parent, f)
	}
	j.inspectGateways(r, route, f)
	if len(route.Parents)+len(f.parents) == 0 {
		f.list = nil
		return
	}
	var parents []mesh.Name
	for _, parent := range route.Parents {
		parents = append(parents, parent.Service)
	}
	if len(f.parents) > 0 {
		parents = append(parents, mesh.Name{})
	}
	for _, rule := range route.Rules {
		for k, b := range rule.Backends {
			// A backend may be permitted for one parent and not for another.
			for _, parent := range parents {
				if _, why := j.routeBackend(r, route, parent, b); why != nil && why.reason != "" {
					f.once(why.reason, fmt.Sprintf("spec.rules[%d].backendRefs[%d]", rule.Index, k), "%s; until then its share of %s", why.message, refusedBy(route.Kind))
				}
			}
		}
		for _, m := range rule.Mirrors {
			for _, parent := range parents {
				if _, why := j.routeBackend(r, route, parent, m.RouteBackend); why != nil {
					f.once(why.reason, fmt.Sprintf("spec.rules[%d].filters[%d].requestMirror.backendRef", rule.Index, m.Filter), "%s; until then nothing is mirrored to it", why.message)
				}
			}
		}
	}
}

// inspectOutsiders also inspects the routes of a kind whose namespaces are outside the mesh.
func (j *join) inspectOutsiders(kind string, in *graph.Input[mesh.Name, *fact.Route]) {
	inspect := j.inspectors[kind]
	j.inspectors[kind] = func(r *graph.Reader, name mesh.Name, f *fault) {
		inspect(r, name, f)
		if route, ok := in.Get(r, name); ok && !j.member(r, name.Namespace) {
			if len(route.Parents) == 0 {
				f.list = nil
			}
			j.inspectOutsider(r, route, f)
		}
	}
}

// inspectOutsider reports a route of a namespace outside the mesh whose parent is in the mesh.
func (j *join) inspectOutsider(r *graph.Reader, route *fact.Route, f *fault) {
	for _, parent := range route.Parents {
		if j.member(r, parent.Service.Namespace) {
			f.add(fact.ReasonNoMatchingParent, fmt.Sprintf("spec.parentRefs[%d]", parent.Index), "namespace %q is not in the mesh, so its route has no effect; label the namespace with openservicemesh.io/monitored-by, or move the route", route.Namespace)
		}
	}
}

// inspectHosts finds server names of a TLSRoute that an older one in force has too.
func inspectHosts(route *fact.Route, inForce []*fact.Route, f *fault) {
	for i, host := range route.Hosts {
		first := slices.IndexFunc(inForce, func(other *fact.Route) bool { return slices.Contains(other.Hosts, host) })
		if inForce[first] != route {
			f.once(fact.ReasonConflicted, fmt.Sprintf("spec.hostnames[%d]", i), "TLSRoute %s is older and has the server name %s at the same ports; remove it from one of them", inForce[first], host)
		}
	}
}

// refusedBy says what happens to the share of a backend that can't be used.
func refusedBy(kind fact.RouteKind) string {
	if kind.IsHTTP() {
		return "the requests is answered with 500"
	}
	return "the connections is closed"
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
	specs := slices.DeleteFunc(slices.Clone(svc.Ports), func(spec fact.PortSpec) bool { return !isParent(route, parent, spec) })
	if len(specs) == 0 {
		port := cmp.Or(parent.PortName, fmt.Sprint(parent.Port))
		if port == "0" {
			port = "for it"
		}
		f.add(fact.ReasonNoMatchingParent, field, "Service %s has no port %s, or it has another protocol than the route; correct the parent, or set the port's appProtocol to %s", parent.Service, port, protocolsFor(route.Kind))
		return
	}
	var winners []string
	for _, spec := range specs {
		inForce := j.routesInForce(r, svc, spec, route.Namespace)
		if slices.Contains(inForce, route) {
			inspectHosts(route, inForce, f)
			return
		}
		winners = append(winners, string(inForce[0].Kind)+" "+inForce[0].String())
	}
	slices.Sort(winners)
	f.add(fact.ReasonConflicted, field, "%s is for the same ports and takes precedence; give each route its own port with port or sectionName", strings.Join(slices.Compact(winners), ", "))
}
