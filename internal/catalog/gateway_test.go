package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// httpRoute is a route for a service, with rules.
func httpRoute(name, parent string, rules ...fact.RouteRule) fact.Fact {
	return factOf("HTTPRoute", name, &fact.Route{Name: parseName(name), Kind: fact.HTTPRoute, Parents: []fact.RouteParent{{Service: parseName(parent)}}, Rules: rules}, nil)
}

// grpcRouteAt is a GRPCRoute for a port of a service.
func grpcRouteAt(name, parent string, port uint16, rules ...fact.RouteRule) fact.Fact {
	return factOf("GRPCRoute", name, &fact.Route{Name: parseName(name), Kind: fact.GRPCRoute, Parents: []fact.RouteParent{{Service: parseName(parent), Port: port}}, Rules: rules}, nil)
}

// to is a rule for a path prefix with one backend, or with none.
func to(prefix, backend string, edits ...func(*fact.RouteRule)) fact.RouteRule {
	rule := fact.RouteRule{Matches: []fact.RouteMatch{{Precedence: fact.Precedence{0, len(prefix)}}}}
	if prefix != "/" {
		rule.Matches[0].Path.Prefix = prefix
	}
	if backend != "" {
		rule.Backends = []fact.RouteBackend{{Service: parseName(backend), Port: 80, Weight: 1}}
	}
	for _, edit := range edits {
		edit(&rule)
	}
	return rule
}

func TestRoutes(t *testing.T) {
	exact := func(path string) func(*fact.RouteRule) {
		return func(r *fact.RouteRule) {
			r.Matches[0] = fact.RouteMatch{HTTPMatch: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: path}}, Precedence: fact.Precedence{2, len(path)}}
		}
	}
	limit := func(d time.Duration) func(*fact.RouteRule) { return func(r *fact.RouteRule) { r.Timeout = &d } }
	also := func(backend string, weight uint32) func(*fact.RouteRule) {
		return func(r *fact.RouteRule) {
			r.Backends = append(r.Backends, fact.RouteBackend{Service: parseName(backend), Port: 80, Weight: weight})
		}
	}
	retries := func(attempts uint32) func(*fact.RouteRule) {
		return func(r *fact.RouteRule) { r.Retry = &mesh.Retry{On: []string{"connect-failure"}, Attempts: attempts} }
	}
	mirrors := func(names ...string) func(*fact.RouteRule) {
		return func(r *fact.RouteRule) {
			for i, name := range names {
				r.Mirrors = append(r.Mirrors, fact.RouteMirror{RouteBackend: fact.RouteBackend{Service: parseName(name), Port: 80}, Filter: i, Numerator: 1, Denominator: 1})
			}
		}
	}
	sessions := func(name string) func(*fact.RouteRule) {
		return func(r *fact.RouteRule) { r.Session = &fact.RouteSession{Name: name} }
	}
	unusable := func(r *fact.RouteRule) { r.Unusable = true }
	redirect := func(r *fact.RouteRule) { r.Redirect = &mesh.Redirect{Status: 301} }
	older := func(f fact.Fact) fact.Fact {
		route := *f.Content.(*fact.Route)
		route.Sealed, route.Created = mesh.Sealed{}, -1
		f.Content = mesh.Seal(&route)
		return f
	}
	elsewhere := append(list(namespace("front"), pod("front/web-1", "web", "10.1.0.20")), server("bank/v3", "10.96.0.13", "10.1.0.13", port(80, 8080, mesh.HTTP))...)
	elsewhere = append(elsewhere, namespace("bank"))

	for _, tt := range []struct {
		name, pod string
		facts     []fact.Fact
		// want are the lines of the routes of shop/root.
		want     string
		problems string
	}{
		{name: "the longest prefix first, exact paths before", facts: list(httpRoute("shop/r", "shop/root", to("/a", "shop/v1"), to("/abc", "shop/v2"), to("", "shop/v1", exact("/x")))),
			want: "/x -> shop/v1:80*1 by shop/r\n/abc -> shop/v2:80*1 by shop/r\n/a -> shop/v1:80*1 by shop/r"},
		{name: "the older one first", facts: list(httpRoute("shop/a", "shop/root", to("/a", "shop/v1")), older(httpRoute("shop/b", "shop/root", to("/b", "shop/v2")))),
			want: "/b -> shop/v2:80*1 by shop/b\n/a -> shop/v1:80*1 by shop/a"},
		{name: "routes replace splits", facts: list(split("shop/s", "root", "v1=1"), httpRoute("shop/r", "shop/root", to("/", "shop/v2"))),
			want: "any -> shop/v2:80*1 by shop/r", problems: "TrafficSplit shop/s: Conflict spec.service"},
		{name: "rules without a valid match let nothing pass", facts: list(httpRoute("shop/r", "shop/root", fact.RouteRule{})), want: ""},
		{name: "a backend that is not there fails its share", facts: list(httpRoute("shop/r", "shop/root", to("/", "shop/v1", also("shop/gone", 3)))),
			want: "any -> shop/v1:80*1 *3 by shop/r", problems: "HTTPRoute shop/r: BackendNotFound spec.rules[0].backendRefs[1]"},
		{name: "a weight of zero is no share", facts: list(httpRoute("shop/r", "shop/root", to("/", "shop/v1", also("shop/v2", 0)))), want: "any -> shop/v1:80*1 by shop/r"},
		{name: "a weight of zero is for sessions", facts: list(httpRoute("shop/r", "shop/root", to("/a", "shop/v1", also("shop/v2", 0), sessions("s")))), want: "/a -> shop/v1:80*1 shop/v2:80*0 by shop/r session s at /a"},
		{name: "weights of zero fail what is of no session", facts: list(httpRoute("shop/r", "shop/root", to("/", "", also("shop/v2", 0), sessions("s")))), want: "any -> shop/v2:80*0 *1 by shop/r session s at /"},
		{name: "an unusable rule has no sessions", facts: list(httpRoute("shop/r", "shop/root", to("/", "shop/v1", sessions("s"), unusable))), want: "any -> *1 by shop/r"},
		{name: "an unusable rule fails", facts: list(httpRoute("shop/r", "shop/root", to("/", "shop/v1", unusable))), want: "any -> *1 by shop/r"},
		{name: "no backend fails", facts: list(httpRoute("shop/r", "shop/root", to("/", ""))), want: "any -> *1 by shop/r"},
		{name: "a redirect", facts: list(httpRoute("shop/r", "shop/root", to("/", "", redirect))), want: "any -> nothing by shop/r redirect 301"},
		{name: "the rule's timeout, and none", facts: list(httpRoute("shop/r", "shop/root", to("/a", "shop/v1", limit(time.Second)), to("/", "shop/v1", limit(0)))),
			want: "/a -> shop/v1:80*1 by shop/r timeout 1s\nany -> shop/v1:80*1 by shop/r"},
		{name: "the rule's retries instead of those of a Retry", facts: list(retry("shop/x", "shop/web", 3, 1, "shop/root"), httpRoute("shop/r", "shop/root", to("/a", "shop/v1", retries(1)), to("/b", "shop/v1", retries(0)), to("/", "shop/v1"))),
			want: "/a -> shop/v1:80*1 by shop/r retry 1\n/b -> shop/v1:80*1 by shop/r retry 0\nany -> shop/v1:80*1 by shop/r retry 3"},
		{name: "mirrors, without one that is not there", facts: list(httpRoute("shop/r", "shop/root", to("/", "shop/v1", mirrors("shop/v2", "shop/gone")))),
			want: "any -> shop/v1:80*1 by shop/r mirrored to shop/v2:80", problems: "HTTPRoute shop/r: BackendNotFound spec.rules[0].filters[1].requestMirror.backendRef"},
		{name: "a third namespace is not permitted", facts: list(httpRoute("shop/r", "shop/root", to("/", "bank/v3"))),
			want: "any -> *1 by shop/r", problems: "HTTPRoute shop/r: RefNotPermitted spec.rules[0].backendRefs[0]"},
		{name: "what is not permitted is refused alike whether it exists", facts: list(httpRoute("shop/r", "shop/root", to("/", "bank/gone")), httpRoute("shop/s", "shop/root", to("/s", "nowhere/v3"))),
			want: "/s -> *1 by shop/s\nany -> *1 by shop/r", problems: "HTTPRoute shop/r: RefNotPermitted spec.rules[0].backendRefs[0]\nHTTPRoute shop/s: RefNotPermitted spec.rules[0].backendRefs[0]"},
		{name: "backends without a cluster IP", facts: list(service("shop/hl", "", port(80, 8080, mesh.HTTP)), httpRoute("shop/r", "shop/root", to("/", "shop/hl"))),
			want: "any -> *1 by shop/r", problems: "HTTPRoute shop/r: UnsupportedBackend spec.rules[0].backendRefs[0]"},
		{name: "a route outside the mesh for a service in it", facts: list(httpRoute("nowhere/r", "shop/root", to("/", "shop/v1")), httpRoute("nowhere/other", "nowhere/root", to("/", "shop/v1"))),
			want: "any -> shop/root:80*1", problems: "HTTPRoute nowhere/r: NoMatchingParent spec.parentRefs[0]"},
		{name: "GRPCRoutes first", facts: list(httpRoute("shop/h", "shop/root", to("/", "shop/v1")), grpcRouteAt("shop/g", "shop/root", 80, to("/g", "shop/v2"))),
			want: "/g -> shop/v2:80*1 by shop/g", problems: "HTTPRoute shop/h: Conflicted spec.parentRefs[0]"},
		{name: "parents that are none", facts: list(httpRoute("shop/a", "shop/gone", to("/", "shop/v1")), grpcRouteAt("shop/g", "shop/root", 81, to("/", "shop/v1"))),
			want: "any -> shop/root:80*1", problems: "GRPCRoute shop/g: NoMatchingParent spec.parentRefs[0]\nHTTPRoute shop/a: NoMatchingParent spec.parentRefs[0]"},
		{name: "the route of another namespace is not for these clients", facts: list(httpRoute("front/c", "shop/root", to("/", "front/x"))),
			want: "any -> shop/root:80*1", problems: "HTTPRoute front/c: BackendNotFound spec.rules[0].backendRefs[0]"},
		{name: "consumer routes go before the producer's", pod: "front/web-1",
			facts: list(httpRoute("front/c", "shop/root", to("/c", "shop/v2")), httpRoute("shop/p", "shop/root", to("/", "shop/v1"))), want: "/c -> shop/v2:80*1 by front/c"},
		{name: "the producer's for all others", facts: list(httpRoute("front/c", "shop/root", to("/c", "shop/v2")), httpRoute("shop/p", "shop/root", to("/", "shop/v1"))),
			want: "any -> shop/v1:80*1 by shop/p"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, rules := range []bool{false, true} {
				facts := slices.Concat(versions(), elsewhere, tt.facts)
				if rules {
					// The same by access rules, which both accounts have for all.
					facts = append(facts, settings(), routes("shop/all", ".*"))
					for _, account := range []string{"root", "v1", "v2"} {
						facts = append(facts, allow("shop/"+account, "shop/"+account, []string{"shop/web", "front/web"}, "HTTPRouteGroup/all"))
					}
				}
				s := Build(facts)
				name := tt.pod
				if name == "" {
					name = "shop/web-1"
				}
				d, ok := viewOf(t, s, name).Outbound.Destinations.Get("shop/root:80")
				if !ok {
					t.Fatal("there is no Destination shop/root:80")
				}
				only := mesh.NewOutbound("", mesh.Table[*mesh.Destination]{}.With(mesh.Change[*mesh.Destination]{Name: d.Name, Value: d}), mesh.Table[*mesh.Backend]{})
				lines := unindented(outboundText(only))[1:]
				for i := range lines {
					lines[i] = strings.TrimSpace(lines[i])
				}
				if got := strings.Join(lines, "\n"); got != tt.want {
					t.Errorf("with rules %v the routes are\n%s\nwant\n%s", rules, got, tt.want)
				}
				for _, route := range d.Routes {
					for _, b := range route.Backends {
						if _, ok := viewOf(t, s, name).Outbound.Backends.Get(b.Backend); !ok && b.Backend != "" {
							t.Errorf("with rules %v the View has no Backend %s", rules, b.Backend)
						}
					}
				}
				if got := problemsText(t, s); got != tt.problems {
					t.Errorf("with rules %v the Problems are\n%s\nwant\n%s", rules, got, tt.problems)
				}
			}
		})
	}
}

// TestConnectionRoutes holds which backends connections have by TCPRoutes and TLSRoutes.
func TestConnectionRoutes(t *testing.T) {
	facts := town()
	for _, v := range []struct{ name, last string }{{"root", "10"}, {"v1", "11"}, {"v2", "12"}} {
		facts = append(facts, server("shop/"+v.name, "10.96.0."+v.last, "10.1.0."+v.last, port(443, 8443, mesh.TCP))...)
	}
	connections := func(kind fact.RouteKind, name string, created int64, hosts []string, backends ...string) fact.Fact {
		route := &fact.Route{Name: parseName(name), Age: fact.Age{Created: created}, Kind: kind, Hosts: hosts, Parents: []fact.RouteParent{{Service: parseName("shop/root")}}, Rules: []fact.RouteRule{{}}}
		for _, b := range backends {
			route.Rules[0].Backends = append(route.Rules[0].Backends, fact.RouteBackend{Service: parseName(b), Port: 443, Weight: 1})
		}
		f := factOf(string(kind), name, route, nil)
		f.Object.APIVersion = gatewayVersion
		return f
	}
	weights := func(backends []mesh.WeightedBackend) string {
		var text []string
		for _, b := range backends {
			text = append(text, strings.TrimSuffix(b.Backend, ":443"))
		}
		return strings.Join(text, "+")
	}
	for _, tt := range []struct {
		name           string
		facts          []fact.Fact
		want, problems string
	}{
		{"none", nil, "shop/root", ""},
		{"a TCPRoute replaces a split", list(split("shop/s", "root", "v1=1"), connections(fact.TCPRoute, "shop/t", 0, nil, "shop/v1", "shop/gone")), "shop/v1+",
			"TCPRoute.gateway.networking.k8s.io shop/t: BackendNotFound spec.rules[0].backendRefs[1]\nTrafficSplit shop/s: Conflict spec.service"},
		{"the oldest TCPRoute", list(connections(fact.TCPRoute, "shop/a", 2, nil, "shop/v1"), connections(fact.TCPRoute, "shop/b", 1, nil, "shop/v2")), "shop/v2",
			"TCPRoute.gateway.networking.k8s.io shop/a: Conflicted spec.parentRefs[0]"},
		{"TLSRoutes first, by server name", list(connections(fact.TCPRoute, "shop/t", 0, nil, "shop/v1"), connections(fact.TLSRoute, "shop/a", 1, []string{"*.example.com", "a.example.com"}, "shop/v1"),
			connections(fact.TLSRoute, "shop/b", 2, []string{"a.example.com", "*.long.example.com"}, "shop/v2")),
			"a.example.com:shop/v1 *.long.example.com:shop/v2 *.example.com:shop/v1", "TCPRoute.gateway.networking.k8s.io shop/t: Conflicted spec.parentRefs[0]\nTLSRoute shop/b: Conflicted spec.hostnames[0]"},
		{"an HTTPRoute is not for such a port", list(httpRoute("shop/h", "shop/root", to("/", "shop/v1"))), "shop/root",
			"HTTPRoute shop/h: NoMatchingParent spec.parentRefs[0]\nHTTPRoute shop/h: BackendNotFound spec.rules[0].backendRefs[0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Build(slices.Concat(facts, tt.facts))
			d, _ := viewOf(t, s, "shop/web-1").Outbound.Destinations.Get("shop/root:443")
			got := weights(d.Backends)
			for _, server := range d.Servers {
				got += " " + server.Host + ":" + weights(server.Backends)
			}
			if got = strings.TrimSpace(got); got != tt.want {
				t.Errorf("the connections go to %s, want %s", got, tt.want)
			}
			for _, used := range []string{"shop/v1:443", "shop/v2:443"} {
				if _, ok := viewOf(t, s, "shop/web-1").Outbound.Backends.Get(used); !ok {
					t.Errorf("the View has no Backend %s", used)
				}
			}
			if problems := problemsText(t, s); problems != tt.problems {
				t.Errorf("the Problems are\n%s\nwant\n%s", problems, tt.problems)
			}
		})
	}
}

// TestReferenceGrants holds which references to a third namespace are permitted.
func TestReferenceGrants(t *testing.T) {
	elsewhere := append(server("bank/v3", "10.96.0.13", "10.1.0.13", port(80, 8080, mesh.HTTP)), namespace("bank"))
	for _, tt := range []struct {
		name  string
		grant fact.ReferenceGrant
		want  string
	}{
		{"all services", fact.ReferenceGrant{From: []fact.Referrer{{Kind: "HTTPRoute", Namespace: "shop"}}, Services: []string{fact.AllNames}}, "bank/v3:80"},
		{"the service", fact.ReferenceGrant{From: []fact.Referrer{{Kind: "HTTPRoute", Namespace: "shop"}}, Services: []string{"v3"}}, "bank/v3:80"},
		{"another service", fact.ReferenceGrant{From: []fact.Referrer{{Kind: "HTTPRoute", Namespace: "shop"}}, Services: []string{"v4"}}, ""},
		{"another kind of routes", fact.ReferenceGrant{From: []fact.Referrer{{Kind: "GRPCRoute", Namespace: "shop"}}, Services: []string{fact.AllNames}}, ""},
		{"another namespace", fact.ReferenceGrant{From: []fact.Referrer{{Kind: "HTTPRoute", Namespace: "front"}}, Services: []string{fact.AllNames}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.grant.Name = parseName("bank/g")
			s := Build(slices.Concat(versions(), elsewhere, list(httpRoute("shop/r", "shop/root", to("/", "bank/v3")), factOf("ReferenceGrant", "bank/g", &tt.grant, nil))))
			d, _ := viewOf(t, s, "shop/web-1").Outbound.Destinations.Get("shop/root:80")
			if got := d.Routes[0].Backends[0].Backend; got != tt.want {
				t.Errorf("the backend is %q, want %q", got, tt.want)
			}
		})
	}
}

// TestConsumersShare holds that the proxies of a namespace with consumer routes share one
// Outbound, as all others do.
func TestConsumersShare(t *testing.T) {
	facts := append(versions(), namespace("front"), pod("front/a", "a", "10.1.0.21"), pod("front/b", "b", "10.1.0.22"), httpRoute("front/c", "shop/root", to("/", "shop/v1")))
	s := Build(facts)
	a, b, web := viewOf(t, s, "front/a").Outbound, viewOf(t, s, "front/b").Outbound, viewOf(t, s, "shop/web-1").Outbound
	if a != b || a == web {
		t.Error("the proxies of the namespace do not share an Outbound of their own")
	}
	if a.Scope != "front/*" || web.Scope != "*" {
		t.Errorf("the scopes are %q and %q", a.Scope, web.Scope)
	}
	if a.Backends.Len() != web.Backends.Len() {
		t.Errorf("the proxies of the namespace have %d Backends, others %d", a.Backends.Len(), web.Backends.Len())
	}
}

// TestRoutingGrantsNothing holds that a route to a service does not let a client call its
// pods, if no access rule does.
func TestRoutingGrantsNothing(t *testing.T) {
	facts := append(versions(), settings(), routes("shop/all", ".*"), httpRoute("shop/r", "shop/root", to("/", "shop/v1")),
		allow("shop/root", "shop/root", []string{"shop/web"}, "HTTPRouteGroup/all"))
	s := Build(facts)
	if _, ok := viewOf(t, s, "shop/web-1").Outbound.Destinations.Get("shop/root:80"); !ok {
		t.Fatal("the client has no route to the service that it may call")
	}
	in := viewOf(t, s, "shop/v1-1").Inbound
	if p, _ := in.PortOf(8080); p.Access.Anyone || len(p.Access.Rules) > 0 {
		t.Errorf("the backend lets in %s", accessText(p.Access))
	}
}

// TestPodsOfRoutedServices holds that a service with routes can be called at the addresses
// of its pods, past the routes, by those who may call the pods and by nobody else.
func TestPodsOfRoutedServices(t *testing.T) {
	const name = "pod/shop/v1-1:8080"
	destination := func(facts ...fact.Fact) *mesh.Destination {
		s := Build(append(versions(), facts...))
		out := viewOf(t, s, "shop/web-1").Outbound
		d, ok := out.Destinations.Get(name)
		if _, has := out.Backends.Get(name); has != ok {
			t.Errorf("the View has the Destination: %v, and its Backend: %v", ok, has)
		}
		return d
	}
	route := httpRoute("shop/r", "shop/v1", to("/", "shop/v2"))
	if destination() != nil {
		t.Error("without routes the pod is called by its own address")
	}
	d := destination(route)
	if d == nil || d.Protocol != mesh.HTTP || len(d.Routes) != 1 || d.Routes[0].Backends[0].Backend != name {
		t.Errorf("the pod's Destination is %+v", d)
	}
	grant := allow("shop/v1", "shop/v1", []string{"shop/web"}, "HTTPRouteGroup/all")
	if destination(route, settings(), routes("shop/all", ".*")) != nil {
		t.Error("a caller without an access rule has the pod's Destination")
	}
	if destination(route, settings(), routes("shop/all", ".*"), grant) == nil {
		t.Error("a caller with an access rule has no Destination for the pod")
	}
}
