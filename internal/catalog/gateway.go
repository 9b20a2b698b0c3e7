package catalog

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// families are the address families that pods have.
type families struct{ four, six bool }

func familiesOf(addresses []netip.Addr) families {
	var f families
	for _, a := range addresses {
		f.four, f.six = f.four || a.Unmap().Is4(), f.six || a.Is6() && !a.Is4In6()
	}
	return f
}

func (f families) String() string { return fmt.Sprintf("IPv4 %t IPv6 %t", f.four, f.six) }

// unspecified returns the unspecified address of each family.
func (f families) unspecified() []netip.Addr {
	var all []netip.Addr
	if f.four {
		all = append(all, netip.IPv4Unspecified())
	}
	if f.six {
		all = append(all, netip.IPv6Unspecified())
	}
	return all
}

// gateway returns a Gateway of the mesh: one in a namespace of the mesh, and of a class of the mesh.
func (j *join) gateway(r *graph.Reader, name mesh.Name) (*fact.Gateway, bool) {
	g, ok := j.gateways.Get(r, name)
	if !ok || !j.member(r, name.Namespace) {
		return nil, false
	}
	_, ok = j.gatewayClasses.Get(r, mesh.Name{Name: g.Class})
	return g, ok
}

// gatewayOf returns the Gateway of which the workload is a pod.
func (j *join) gatewayOf(r *graph.Reader, w *fact.Workload) (*fact.Gateway, bool) {
	name := w.Labels[fact.GatewayLabel]
	if name == "" {
		return nil, false
	}
	return j.gateway(r, mesh.Name{Namespace: w.Namespace, Name: name})
}

// servesGateway returns the clients that the proxy of a gateway's pod is one of.
func servesGateway(g *fact.Gateway, w *fact.Workload) clients {
	return clients{ServiceAccount: accountOf(w), gateway: g.Name.Name, families: familiesOf(w.Addresses)}
}

// viewerOf returns the View of a gateway's pod, and whose Outbound it has. A class that cannot be a
// gateway gets no ports: as those of a sidecar, they would be something else.
func (j *join) viewerOf(r *graph.Reader, g *fact.Gateway, w *fact.Workload) (*fact.Viewer, clients) {
	as := servesGateway(g, w)
	if !j.supports(w.Class, mesh.FeatureGateways) {
		as.families = families{}
	}
	return fact.NewViewer(j.proxies.Get(r, w.Name), j.settingsOf(r, w), gatewayInbound, gatewayEgress, as.scope()), as
}

// The Inbound and the Egress of the proxies of gateways.
var (
	gatewayInbound = mesh.Seal(&mesh.Inbound{TLS: mesh.Strict})
	gatewayEgress  = mesh.Seal(&mesh.Egress{})
)

// attached is a route at a listener, with the hosts for which it is there.
type attached struct {
	*fact.Route
	hosts []string
}

// isMeant reports whether the parent of a route includes the listener.
func isMeant(parent fact.GatewayParent, l *fact.GatewayListener) bool {
	return (parent.Listener == "" || parent.Listener == l.Name) && (parent.Port == 0 || parent.Port == l.Port)
}

// admits reports whether a listener admits the kind and the namespace of a route.
func (j *join) admits(r *graph.Reader, g *fact.Gateway, l *fact.GatewayListener, route *fact.Route) bool {
	if !slices.Contains(l.Kinds, route.Kind) {
		return false
	}
	if l.All || l.Same && route.Namespace == g.Namespace {
		return true
	}
	ns, ok := j.namespaces.Get(r, mesh.Name{Name: route.Namespace})
	return ok && l.Namespaces.Matches(ns.Labels)
}

// hostsAt returns the hosts that both the listener and the route have, sorted. A route without hosts
// is for all of the listener's.
func hostsAt(l *fact.GatewayListener, route *fact.Route) []string {
	if len(route.Hosts) == 0 {
		return []string{cmp.Or(l.Host, mesh.AnyHost)}
	}
	var hosts []string
	for _, host := range route.Hosts {
		switch {
		case covers(l.Host, host):
			hosts = append(hosts, host)
		case covers(host, l.Host):
			hosts = append(hosts, l.Host)
		}
	}
	slices.SortFunc(hosts, mesh.CompareHosts)
	return slices.Compact(hosts)
}

// askedFor returns the most specific host of a route that includes the host at a listener.
func askedFor(route *fact.Route, host string) string {
	best := mesh.AnyHost
	for _, own := range route.Hosts {
		if covers(own, host) && mesh.CompareHosts(own, best) < 0 {
			best = own
		}
	}
	return best
}

// covers reports whether a host or wildcard includes all that another one includes. Empty is for all
// hosts.
func covers(pattern, host string) bool {
	return mesh.Covers(cmp.Or(pattern, mesh.AnyHost), cmp.Or(host, mesh.AnyHost))
}

// makeGateway returns the Outbound of a gateway's proxies: a Destination for each port.
func (j *join) makeGateway(r *graph.Reader, key clients) *mesh.Outbound {
	g, ok := j.gateway(r, mesh.Name{Namespace: key.Namespace, Name: key.gateway})
	ports, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	ok = ok && key.families != families{}
	for i := 0; ok && i < len(g.Listeners); i++ {
		first := &g.Listeners[i]
		if first.Unusable || slices.ContainsFunc(g.Listeners[:i], func(l fact.GatewayListener) bool { return !l.Unusable && l.Port == first.Port }) {
			continue
		}
		made := &destinations{}
		d := j.gatewayPort(r, g, i, made)
		d.Addresses = key.families.unspecified()
		if first.Terminates && len(d.Certificates) == 0 {
			continue // Nothing is taken in plaintext instead.
		}
		ports[d.Name] = mesh.Seal(d)
		for _, used := range made.uses {
			for _, b := range j.offeredTo(r, key.ServiceAccount, used) {
				if made.calls[b.Name] {
					called := spokenTo(b, mesh.GRPC)
					backends[called.Name] = called
				}
				if b.Protocol == mesh.HTTP {
					b = spokenTo(b, mesh.HTTP1)
				}
				backends[b.Name] = b
			}
		}
	}
	return mesh.NewOutbound(key.scope(), mesh.TableOf(ports), mesh.TableOf(backends))
}

// offeredTo returns the Backends of a service port that a gateway with the account gets.
func (j *join) offeredTo(r *graph.Reader, account fact.ServiceAccount, port mesh.ServicePort) []*mesh.Backend {
	var of *backends
	if j.mustSettings(r).PermissivePolicy {
		of = j.backends.Get(r, port)
	} else {
		of = j.filtered.Get(r, filter{port: port, source: account})
	}
	svc := j.service(r, port.Name)
	if svc == nil || !svc.Headless {
		return of.list
	}
	spec, _ := portOf(svc, port.Port)
	return []*mesh.Backend{of.together(j.backendOf(r, port, spec))}
}

// gatewayPort returns the Destination of a port, of which the listener is the first one, and adds the
// ports of its backends to made.uses.
func (j *join) gatewayPort(r *graph.Reader, g *fact.Gateway, listener int, made *destinations) *mesh.Destination {
	first := &g.Listeners[listener]
	port := mesh.ServicePort{Name: g.Name, Port: first.Port}
	d := &mesh.Destination{
		Name: "gateway/" + port.String(), Service: port, Origins: []mesh.Origin{originOf(kindGateway, g.Name, "")},
		Port: first.Port, Protocol: first.Protocol, Listens: true,
	}
	switch {
	case first.Protocol.IsHTTP():
		j.gatewayRequests(r, g, d, made)
	case first.ByServerName:
		j.gatewayServers(r, g, d, made)
	default:
		d.Backends = failed
		if routes := j.attachedTo(r, g, listener); len(routes) > 0 {
			d.Backends = j.gatewayShares(r, routes[0].Route, made)
		}
	}
	slices.SortStableFunc(d.Certificates, func(a, b mesh.ServerCertificate) int { return mesh.CompareHosts(a.Host, b.Host) })
	slices.SortFunc(made.uses, mesh.ServicePort.Compare)
	made.uses = slices.Compact(made.uses)
	for _, used := range made.uses {
		d.HashOn = appendHash(d.HashOn, j.policies.Get(r, used.Name).Upstream.LoadBalancing)
	}
	return d
}

// gatewayRequests sets the Hosts and Routes of a port with HTTP.
func (j *join) gatewayRequests(r *graph.Reader, g *fact.Gateway, d *mesh.Destination, made *destinations) {
	type candidate struct {
		mesh.Route
		// asked is the route's own host: of two routes that have a host in common with the listener,
		// that with the more specific one comes first.
		asked string
		fact.Precedence
	}
	var candidates []candidate
	listeners := listenersOf(g, d.Port)
	for i := range g.Listeners {
		l := &g.Listeners[i]
		if l.Unusable || l.Port != d.Port {
			continue
		}
		d.Hosts = append(d.Hosts, cmp.Or(l.Host, mesh.AnyHost))
		if !j.present(r, g, l, listeners, d) {
			continue
		}
		for _, route := range j.attachedTo(r, g, i) {
			hosts := slices.DeleteFunc(slices.Clone(route.hosts), func(host string) bool { return listeners.of(host) != l })
			if len(hosts) == 0 {
				continue
			}
			d.Hosts = append(d.Hosts, hosts...)
			for k := range route.Rules {
				rule := &route.Rules[k]
				out := j.routeOf(r, mesh.Name{}, route.Route, rule, made)
				if route.Kind == fact.GRPCRoute {
					j.asCalls(r, rule, &out, made)
				}
				if l.Terminates && out.Redirect != nil {
					out.Redirect = secureRedirect(out.Redirect, l.Port)
				}
				for _, match := range rule.Matches {
					out.Match, out.Session = match.HTTPMatch, sessionFor(route.Route, rule, match.Path)
					for _, host := range hosts {
						out.Host = host
						candidates = append(candidates, candidate{out, askedFor(route.Route, host), match.Precedence})
					}
				}
			}
		}
	}
	slices.SortFunc(d.Hosts, mesh.CompareHosts)
	d.Hosts = slices.Compact(d.Hosts)
	// The routes are in order of age, and their rules and matches in the user's order.
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(mesh.CompareHosts(a.Host, b.Host), mesh.CompareHosts(a.asked, b.asked), slices.Compare(b.Precedence[:], a.Precedence[:]))
	})
	for _, c := range candidates {
		d.Routes = append(d.Routes, c.Route)
	}
}

// gatewayServers sets the Servers of a port whose connections begin with TLS. Without any, they are
// closed.
func (j *join) gatewayServers(r *graph.Reader, g *fact.Gateway, d *mesh.Destination, made *destinations) {
	listeners, taken := listenersOf(g, d.Port), map[string]bool{"": true, mesh.AnyHost: true}
	for i := range g.Listeners {
		l := &g.Listeners[i]
		if l.Unusable || l.Port != d.Port || !j.present(r, g, l, listeners, d) {
			continue
		}
		for _, route := range j.attachedTo(r, g, i) {
			shares := j.gatewayShares(r, route.Route, made)
			for _, host := range route.hosts {
				if host != mesh.AnyHost && listeners.of(host) == l {
					taken[host] = true
					d.Servers = append(d.Servers, mesh.ServerRoute{Origin: originOfRoute(route.Route, "spec.hostnames"), Host: host, Backends: shares})
				}
			}
		}
	}
	// What belongs to a listener and to none of its routes is closed, even if a wildcard of another
	// listener's route includes it.
	for i := range g.Listeners {
		if l := &g.Listeners[i]; !l.Unusable && l.Port == d.Port && !taken[l.Host] && len(d.Servers) > 0 {
			taken[l.Host] = true
			d.Servers = append(d.Servers, mesh.ServerRoute{Origin: originOf(kindGateway, g.Name, ""), Host: l.Host, Backends: failed})
		}
	}
	slices.SortStableFunc(d.Servers, func(a, b mesh.ServerRoute) int { return mesh.CompareHosts(a.Host, b.Host) })
	if len(d.Servers) == 0 {
		d.Backends = failed
	}
}

// gatewayShares returns the backends of a route for connections.
func (j *join) gatewayShares(r *graph.Reader, route *fact.Route, made *destinations) []mesh.WeightedBackend {
	if len(route.Rules) == 0 {
		return failed
	}
	return j.routeShares(r, mesh.Name{}, route, &route.Rules[0], made)
}

// asksOfGateway returns what a gateway, its routes and the MeshConfig ask of the proxy of a pod.
func (j *join) asksOfGateway(r *graph.Reader, g *fact.Gateway, w *fact.Workload) []ask {
	asks := j.asksOfSettings(r, j.proxies.Get(r, w.Name).Plaintext)
	if j.settingsOf(r, w).AccessLog.IsSampled() {
		asks = append(asks, j.askOfAccessLog(r, w))
	}
	out := j.outbounds.Get(r, servesGateway(g, w))
	for _, d := range out.Destinations.All() {
		asks = append(asks, ask{originOf(kindGateway, g.Name, ""), mesh.FeatureGateways})
		if len(d.Certificates) > 0 {
			asks = append(asks, ask{originOf(kindGateway, g.Name, ""), mesh.FeatureTermination})
		}
		for _, route := range d.Routes {
			one := mesh.Destination{Routes: []mesh.Route{route}}
			asks = append(asks, asksOf(route.Origin, one.Needs())...)
		}
	}
	for _, b := range out.Backends.All() {
		asks = append(asks, asksOfBackend(j.service(r, b.Service.Name), b)...)
	}
	return asks
}
