package catalog

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// atGateway are the routes of a Gateway.
type atGateway struct {
	// listeners has the routes at each of the Gateway's listeners in order of age.
	listeners [][]attached
	refused   *refusedRoutes
}

// refusedRoutes are the routes that a listener refuses since an older one of another kind has one of
// their hosts there, and the hosts of the other routes that belong to others.
type refusedRoutes struct {
	mesh.Sealed
	List []refusedRoute
	// Lost are server names of routes that the listener does not refuse.
	Lost []lostHost
	// by has the indexes of the List.
	by map[refusedAt]int
}

// lostHost is a server name of a TLSRoute, or all connections of a TCPRoute, that another one of the
// same kind has at the listener.
type lostHost struct {
	Listener int
	Kind     fact.RouteKind
	Name     mesh.Name
	Host     string
	Other    mesh.Name
}

// refusedAt is a listener and a route.
type refusedAt struct {
	listener int
	kind     fact.RouteKind
	name     mesh.Name
}

type refusedRoute struct {
	Listener  int
	Kind      fact.RouteKind
	Name      mesh.Name
	OlderKind fact.RouteKind
	Older     mesh.Name
}

// makeAtGateway finds the routes of a Gateway. It reads each of them once, since a Gateway may have many
// listeners and thousands of routes.
func (j *join) makeAtGateway(r *graph.Reader, name mesh.Name) *atGateway {
	g, ok := j.gateway(r, name)
	if !ok {
		return nil
	}
	var routes []*fact.Route
	for _, kind := range j.routes {
		for _, a := range kind.ofGateway.Get(r, name) {
			if route, ok := kind.Get(r, a.key); ok && j.member(r, route.Namespace) {
				routes = append(routes, route)
			}
		}
	}
	slices.SortStableFunc(routes, func(a, b *fact.Route) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
	})
	at, refused := &atGateway{listeners: make([][]attached, len(g.Listeners))}, &refusedRoutes{by: map[refusedAt]int{}}
	for i := range g.Listeners {
		l, taken := &g.Listeners[i], map[fact.RouteKind]*hostOwners{}
		var here []attached
		for _, route := range routes {
			meant := slices.ContainsFunc(route.Gateways, func(p fact.GatewayParent) bool { return p.Gateway == name && isMeant(p, l) })
			if !meant || !j.admits(r, g, l, route) {
				continue
			}
			if hosts := hostsAt(l, route); len(hosts) > 0 {
				here = append(here, attached{route, hosts})
			}
		}
		servers := serversOf(here)
		for _, a := range here {
			if !a.Kind.IsHTTP() {
				a.hosts = refused.own(servers, i, a)
			} else if older := ownerOf(taken, a.Route, a.hosts); older != nil {
				refused.by[refusedAt{i, a.Kind, a.Name}] = len(refused.List)
				refused.List = append(refused.List, refusedRoute{i, a.Kind, a.Name, older.Kind, older.Name})
				continue
			}
			at.listeners[i] = append(at.listeners[i], a)
		}
	}
	at.refused = mesh.Seal(refused)
	return at
}

// serversOf returns to which route for connections each host belongs, a server name or that of all
// connections: of those in order of age, to the first that has the most specific host of its own.
func serversOf(routes []attached) map[string]*fact.Route {
	first := map[string]*fact.Route{}
	for _, a := range routes {
		if a.Kind.IsHTTP() {
			continue
		}
		for _, host := range a.hosts {
			if now := first[host]; now == nil || mesh.CompareHosts(askedFor(a.Route, host), askedFor(now, host)) < 0 {
				first[host] = a.Route
			}
		}
	}
	return first
}

// own returns the hosts of a route for connections that belong to it, and notes the others. The route is
// attached without any too, as Gateway API wants it.
func (all *refusedRoutes) own(servers map[string]*fact.Route, listener int, a attached) []string {
	var own []string
	for _, host := range a.hosts {
		if of := servers[host]; of == a.Route {
			own = append(own, host)
		} else {
			all.Lost = append(all.Lost, lostHost{listener, a.Kind, a.Name, host, of.Name})
		}
	}
	return own
}

// attachedTo returns the routes at the listener of a Gateway of the mesh in order of age.
func (j *join) attachedTo(r *graph.Reader, g *fact.Gateway, listener int) []attached {
	return j.atGateways.Get(r, g.Name).listeners[listener]
}

// hostOwners are the first routes that have hosts.
type hostOwners struct {
	// exact is by host, wild by the suffix of a wildcard, and below by all suffixes of both, which a
	// wildcard may have too.
	exact, wild, below map[string]*fact.Route
}

// ownerOf returns the route with requests of another kind that has one of the hosts, and otherwise
// adds the hosts to those of the route. Gateway API wants either HTTPRoutes or GRPCRoutes for a host.
func ownerOf(taken map[fact.RouteKind]*hostOwners, route *fact.Route, hosts []string) *fact.Route {
	for kind, owners := range taken {
		if kind == route.Kind {
			continue
		}
		for _, host := range hosts {
			if owner := owners.of(host); owner != nil {
				return owner
			}
		}
	}
	own := taken[route.Kind]
	if own == nil {
		own = &hostOwners{map[string]*fact.Route{}, map[string]*fact.Route{}, map[string]*fact.Route{}}
		taken[route.Kind] = own
	}
	for _, host := range hosts {
		own.add(host, route)
	}
	return nil
}

// of returns a route whose hosts include some that the host or wildcard does.
func (o *hostOwners) of(host string) *fact.Route {
	if suffix, isWildcard := strings.CutPrefix(host, "*"); isWildcard {
		if owner := o.below[suffix]; owner != nil {
			return owner
		}
	} else if owner := o.exact[host]; owner != nil {
		return owner
	}
	if len(o.wild) == 0 {
		return nil
	}
	for suffix := range suffixesOf(host) {
		if owner := o.wild[suffix]; owner != nil {
			return owner
		}
	}
	return o.wild[""]
}

func (o *hostOwners) add(host string, route *fact.Route) {
	if suffix, isWildcard := strings.CutPrefix(host, "*"); isWildcard {
		o.wild[suffix] = cmp.Or(o.wild[suffix], route)
	} else {
		o.exact[host] = cmp.Or(o.exact[host], route)
	}
	for suffix := range suffixesOf(host) {
		if o.below[suffix] != nil {
			return // The shorter ones are there too.
		}
		o.below[suffix] = route
	}
	// That of the wildcard for all hosts.
	o.below[""] = cmp.Or(o.below[""], route)
}

// suffixesOf returns the suffixes of a host or wildcard that begin with a dot and have a label before
// it, the longest one first.
func suffixesOf(host string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := 1; i < len(host); i++ {
			if host[i] == '.' && !yield(host[i:]) {
				return
			}
		}
	}
}

// makeRefusedAt returns which routes the listeners of a Gateway refuse. Unlike all that is at a Gateway it
// changes seldom, and each of the routes asks.
func (j *join) makeRefusedAt(r *graph.Reader, name mesh.Name) *refusedRoutes {
	if at := j.atGateways.Get(r, name); at != nil {
		return at.refused
	}
	return nil
}

// of returns the entry of a route at a listener, or nil.
func (all *refusedRoutes) of(listener int, route *fact.Route) *refusedRoute {
	if all != nil {
		if i, ok := all.by[refusedAt{listener, route.Kind, route.Name}]; ok {
			return &all.List[i]
		}
	}
	return nil
}

// portListeners find the listener of a port to which requests for a host or wildcard belong: of those
// that include it, the one with the longest host.
type portListeners struct {
	all   []*fact.GatewayListener
	found map[string]*fact.GatewayListener
}

func listenersOf(g *fact.Gateway, port uint16) portListeners {
	p := portListeners{found: map[string]*fact.GatewayListener{}}
	for i := range g.Listeners {
		if l := &g.Listeners[i]; !l.Unusable && l.Port == port {
			p.all = append(p.all, l)
		}
	}
	return p
}

func (p portListeners) of(host string) *fact.GatewayListener {
	best, ok := p.found[host]
	if ok {
		return best
	}
	for _, l := range p.all {
		if covers(l.Host, host) && (best == nil || mesh.CompareHosts(cmp.Or(l.Host, mesh.AnyHost), cmp.Or(best.Host, mesh.AnyHost)) < 0) {
			best = l
		}
	}
	p.found[host] = best
	return best
}
