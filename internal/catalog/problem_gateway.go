package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// inspectGateways finds the parents of a route that are gateways of the mesh, and says of each why the
// route is not there.
func (j *join) inspectGateways(r *graph.Reader, route *fact.Route, f *fault) {
	for _, parent := range route.Gateways {
		g, ok := j.gateway(r, parent.Gateway)
		if !ok {
			continue
		}
		f.parents = append(f.parents, parent.Index)
		field := fmt.Sprintf("spec.parentRefs[%d]", parent.Index)
		inspectLost(g, j.refusedAt.Get(r, g.Name), route, parent, f)
		meant, admitted, at, accepted := false, false, false, false
		var refused *refusedRoute
		for i := range g.Listeners {
			l := &g.Listeners[i]
			if isMeant(parent, l) {
				meant = true
				if j.admits(r, g, l, route) {
					admitted = true
					if len(hostsAt(l, route)) > 0 {
						at = true
						by := j.refusedAt.Get(r, g.Name).of(i, route)
						accepted, refused = accepted || by == nil, cmp.Or(refused, by)
					}
				}
			}
		}
		switch {
		case !meant:
			f.add(fact.ReasonNoMatchingParent, field, "Gateway %s has no listener %q with this port; correct the sectionName or the port", g.Name, parent.Listener)
		case !admitted:
			f.add(fact.ReasonNotAllowedByListeners, field, "no listener of Gateway %s allows a %s of the namespace %s; change the listener's allowedRoutes", g.Name, route.Kind, route.Namespace)
		case !at:
			f.add(fact.ReasonNoMatchingListenerHostname, field, "no listener of Gateway %s is for one of the route's host names; change spec.hostnames, or the listener's hostname", g.Name)
		case !accepted:
			f.add(fact.ReasonConflicted, field, "%s %s is older and is for one of the host names at the same listener of Gateway %s, where a host has either HTTPRoutes or GRPCRoutes; give one of them other host names, or another listener", refused.OlderKind, refused.Older, g.Name)
		}
	}
}

// inspectLost finds connections of a TCPRoute or TLSRoute that others have at the listeners of a Gateway.
func inspectLost(g *fact.Gateway, all *refusedRoutes, route *fact.Route, parent fact.GatewayParent, f *fault) {
	if all == nil || route.Kind.IsHTTP() {
		return
	}
	for _, lost := range all.Lost {
		if lost.Kind != route.Kind || lost.Name != route.Name || !isMeant(parent, &g.Listeners[lost.Listener]) {
			continue
		}
		if route.Kind == fact.TCPRoute {
			f.once(fact.ReasonConflicted, "spec.rules", "TCPRoute %s is older and gets the connections of the listener %s of Gateway %s; give one of them another listener", lost.Other, g.Listeners[lost.Listener].Name, g.Name)
			continue
		}
		field := "spec.hostnames"
		if i := slices.Index(route.Hosts, lost.Host); i >= 0 {
			field = fmt.Sprintf("spec.hostnames[%d]", i)
		}
		f.once(fact.ReasonConflicted, field, "TLSRoute %s is older, or has a more specific host name, and gets the server name %s at the listener %s of Gateway %s; remove it from one of them", lost.Other, lost.Host, g.Listeners[lost.Listener].Name, g.Name)
	}
}

// inspectGateway finds the pods and addresses of a Gateway of the mesh, and counts the routes at each
// listener. Of other gateways nothing is said.
func (j *join) inspectGateway(r *graph.Reader, name mesh.Name, f *fault) {
	g, ok := j.gateway(r, name)
	if !ok {
		f.list = nil
		return
	}
	class, _ := j.gatewayClasses.Get(r, mesh.Name{Name: g.Class})
	f.gateway = &fact.GatewayState{Class: class.Class}
	for i := range g.Listeners {
		l := &g.Listeners[i]
		if !l.Unusable {
			f.gateway.Ports = append(f.gateway.Ports, l.Port)
		}
		usable, refused := j.certificatesOf(r, g, l)
		for _, why := range refused {
			f.add(why.reason, why.field, "%s", why.message)
		}
		f.gateway.Listeners = append(f.gateway.Listeners, fact.ListenerState{
			Routes: len(j.attachedTo(r, g, i)), Kinds: l.Kinds, Closed: l.Terminates && len(usable) == 0,
		})
	}
	slices.Sort(f.gateway.Ports)
	f.gateway.Ports = slices.Compact(f.gateway.Ports)
	var inside, outside []string
	for _, key := range j.podsOf.Get(r, name) {
		w, ok := j.workloads.Get(r, key)
		if !ok || !j.hasProxy(r, w) {
			continue
		}
		f.gateway.Pods++
		for _, service := range j.servicesOf.Get(r, key) {
			if svc := j.service(r, service); svc != nil {
				outside = append(outside, svc.External...)
				for _, address := range svc.Addresses {
					inside = append(inside, address.String())
				}
			}
		}
	}
	f.gateway.Addresses = outside
	if len(outside) == 0 {
		f.gateway.Addresses = inside
	}
	slices.Sort(f.gateway.Addresses)
	f.gateway.Addresses = slices.Compact(f.gateway.Addresses)
}
