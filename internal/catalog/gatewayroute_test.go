package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// edge is the Gateway shop/edge with its class and a pod.
func edge(listeners ...fact.GatewayListener) []fact.Fact {
	for i := range listeners {
		l := &listeners[i]
		l.Index, l.Same = i, true
		switch {
		case l.ByServerName:
			l.Protocol, l.Kinds = mesh.TCP, []fact.RouteKind{fact.TLSRoute}
		case l.Protocol == mesh.TCP:
			l.Kinds = []fact.RouteKind{fact.TCPRoute}
		default:
			l.Protocol, l.Kinds = mesh.HTTP, []fact.RouteKind{fact.HTTPRoute, fact.GRPCRoute}
		}
	}
	name := parseName("shop/edge")
	return list(
		fact.Fact{Object: object(gatewayVersion, kindGatewayClass, "", "outrigger-envoy"), Content: mesh.Seal(&fact.GatewayClass{Name: "outrigger-envoy", Class: "envoy"})},
		fact.Fact{Object: object(gatewayVersion, kindGateway, name.Namespace, name.Name), Content: mesh.Seal(&fact.Gateway{Name: name, Class: "outrigger-envoy", Listeners: listeners})},
		pod("shop/edge-1", "edge", "10.1.0.30", func(w *fact.Workload) { w.Labels = map[string]string{fact.GatewayLabel: "edge"} }),
	)
}

// edgeRoute is a route at the Gateway, or at one of its listeners, for hosts.
func edgeRoute(kind fact.RouteKind, name, listener string, created int64, hosts ...string) fact.Fact {
	route := &fact.Route{
		Name: parseName(name), Age: fact.Age{Created: created}, Kind: kind, Hosts: hosts, Rules: []fact.RouteRule{to("/", "shop/v1")},
		Gateways: []fact.GatewayParent{{Gateway: parseName("shop/edge"), Listener: listener}},
	}
	if !kind.IsHTTP() {
		route.Rules = []fact.RouteRule{{Backends: []fact.RouteBackend{{Service: parseName("shop/tls"), Port: 443, Weight: 1}}}}
	}
	return fact.Fact{Object: object(gatewayVersion, string(kind), route.Namespace, route.Name.Name), Content: mesh.Seal(route)}
}

// TestGatewayRoutes holds which routes a gateway has for which hosts.
func TestGatewayRoutes(t *testing.T) {
	const h, g, tls, tcp = fact.HTTPRoute, fact.GRPCRoute, fact.TLSRoute, fact.TCPRoute
	any, shop := fact.GatewayListener{Name: "any", Port: 80}, fact.GatewayListener{Name: "shop", Port: 80, Host: "*.example.com"}
	secure := []fact.GatewayListener{{Name: "tls", Port: 443, ByServerName: true}}
	both := []fact.GatewayListener{any, shop}
	for _, tt := range []struct {
		name           string
		listeners      []fact.GatewayListener
		routes         []fact.Fact
		want, problems string
	}{
		{"the older kind has a host", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "a.example.com"), edgeRoute(g, "shop/g", "", 2, "a.example.com")),
			"a.example.com shop/h", "GRPCRoute shop/g: Conflicted spec.parentRefs[0]"},
		{"or the other one", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 2, "a.example.com"), edgeRoute(g, "shop/g", "", 1, "a.example.com")),
			"a.example.com shop/g", "HTTPRoute shop/h: Conflicted spec.parentRefs[0]"},
		{"of the same age the first name", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/a", "", 1), edgeRoute(g, "shop/b", "", 1)), "* shop/a", "GRPCRoute shop/b: Conflicted spec.parentRefs[0]"},
		{"a wildcard includes the host", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "*.example.com"), edgeRoute(g, "shop/g", "", 2, "a.example.com")),
			"*.example.com shop/h", "GRPCRoute shop/g: Conflicted spec.parentRefs[0]"},
		{"the host is one of the wildcard's", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "a.b.example.com"), edgeRoute(g, "shop/g", "", 2, "b.example.org", "*.example.com")),
			"a.b.example.com shop/h", "GRPCRoute shop/g: Conflicted spec.parentRefs[0]"},
		{"a wildcard in a wildcard", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "*.b.example.com"), edgeRoute(g, "shop/g", "", 2, "*.example.com")),
			"*.b.example.com shop/h", "GRPCRoute shop/g: Conflicted spec.parentRefs[0]"},
		{"all hosts", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "a.example.com"), edgeRoute(g, "shop/g", "", 2)), "a.example.com shop/h", "GRPCRoute shop/g: Conflicted spec.parentRefs[0]"},
		{"what was refused refuses nothing", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "a.example.com"), edgeRoute(g, "shop/g", "", 2, "a.example.com", "b.example.com"), edgeRoute(h, "shop/i", "", 3, "b.example.com")),
			"a.example.com shop/h\nb.example.com shop/i", "GRPCRoute shop/g: Conflicted spec.parentRefs[0]"},
		{"other hosts of both kinds", []fact.GatewayListener{any}, list(edgeRoute(h, "shop/h", "", 1, "a.example.com", "example.com"), edgeRoute(g, "shop/g", "", 2, "b.example.com", "xexample.com")),
			"a.example.com shop/h\nb.example.com shop/g\nxexample.com shop/g\nexample.com shop/h", ""},
		{"other listeners of both kinds", both, list(edgeRoute(h, "shop/h", "any", 1), edgeRoute(g, "shop/g", "shop", 2)), "*.example.com shop/g\n* shop/h", ""},
		{"refused at one of two listeners", both, list(edgeRoute(h, "shop/h", "any", 1), edgeRoute(g, "shop/g", "", 2)), "*.example.com shop/g\n* shop/h", ""},
		{"a label of one letter", []fact.GatewayListener{shop}, list(edgeRoute(h, "shop/h", "", 1, "a.example.com")), "a.example.com shop/h", ""},
		{"a label of one letter belongs to the closer listener", both, list(edgeRoute(h, "shop/h", "any", 1, "a.example.com", "example.com")), "example.com shop/h", ""},
		{"server names", []fact.GatewayListener{{Name: "any", Port: 443, ByServerName: true}, {Name: "own", Port: 443, Host: "a.example.com", ByServerName: true}, {Name: "more", Port: 443, Host: "*.b.example.com", ByServerName: true}},
			list(edgeRoute(tls, "shop/t", "any", 1, "*.example.com"), edgeRoute(tls, "shop/u", "more", 1, "c.b.example.com")),
			"c.b.example.com shop/u\na.example.com closed\n*.b.example.com closed\n*.example.com shop/t", ""},
		{"all server names of an older route", secure, list(edgeRoute(tls, "shop/t", "", 2, "b.example.com", "a.example.com"), edgeRoute(tls, "shop/u", "", 1, "a.example.com", "b.example.com")),
			"a.example.com shop/u\nb.example.com shop/u", "TLSRoute shop/t: Conflicted spec.hostnames[0]\nTLSRoute shop/t: Conflicted spec.hostnames[1]"},
		{"one server name of an older route", secure, list(edgeRoute(tls, "shop/t", "", 1, "a.example.com"), edgeRoute(tls, "shop/u", "", 2, "b.example.com", "a.example.com")),
			"a.example.com shop/t\nb.example.com shop/u", "TLSRoute shop/u: Conflicted spec.hostnames[1]"},
		{"a server name of an older route's wildcard", secure, list(edgeRoute(tls, "shop/t", "", 1, "*.example.com"), edgeRoute(tls, "shop/u", "", 2, "a.example.com")),
			"a.example.com shop/u\n*.example.com shop/t", ""},
		{"connections of an older route", []fact.GatewayListener{{Name: "tcp", Port: 90, Protocol: mesh.TCP}}, list(edgeRoute(tcp, "shop/t", "", 2), edgeRoute(tcp, "shop/u", "", 1)), "", "TCPRoute.gateway.networking.k8s.io shop/t: Conflicted spec.rules"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Build(slices.Concat(versions(), server("shop/tls", "10.96.0.13", "10.1.0.13", port(443, 8443, mesh.TCP)), edge(tt.listeners...), tt.routes))
			var lines []string
			for _, d := range viewOf(t, s, "shop/edge-1").Outbound.Destinations.All() {
				for _, r := range d.Routes {
					lines = append(lines, r.Host+" "+r.Origin.Object.Namespace+"/"+r.Origin.Object.Name)
				}
				for _, server := range d.Servers {
					to := server.Origin.Object.Namespace + "/" + server.Origin.Object.Name
					if len(server.Backends) == 1 && server.Backends[0].Backend == "" {
						to = "closed"
					}
					lines = append(lines, server.Host+" "+to)
				}
			}
			slices.SortFunc(lines, func(a, b string) int {
				a, _, _ = strings.Cut(a, " ")
				b, _, _ = strings.Cut(b, " ")
				return mesh.CompareHosts(a, b)
			})
			if got := strings.Join(lines, "\n"); got != tt.want {
				t.Errorf("the hosts are\n%s\nwant\n%s", got, tt.want)
			}
			if got := problemsText(t, s); got != tt.problems {
				t.Errorf("the Problems are\n%s\nwant\n%s", got, tt.problems)
			}
		})
	}
}

// TestGatewayProtocols calls a port of which only HTTP is known by HTTP/1.1, whatever the client of the gateway
// speaks, and for a GRPCRoute by HTTP/2.
func TestGatewayProtocols(t *testing.T) {
	s := Build(slices.Concat(versions(), edge(fact.GatewayListener{Name: "any", Port: 80}), list(
		edgeRoute(fact.HTTPRoute, "shop/h", "", 1, "h.example.com"), edgeRoute(fact.GRPCRoute, "shop/g", "", 1, "g.example.com"))))
	out := viewOf(t, s, "shop/edge-1").Outbound
	var got []string
	for _, d := range out.Destinations.All() {
		for _, r := range d.Routes {
			b, _ := out.Backends.Get(r.Backends[0].Backend)
			if b == nil {
				t.Fatalf("there is no Backend %s", r.Backends[0].Backend)
			}
			got = append(got, fmt.Sprintf("%s %s %s %d", r.Host, b.Name, b.Protocol, len(b.Endpoints)))
		}
	}
	if want := []string{"g.example.com shop/v1:80/grpc grpc 1", "h.example.com shop/v1:80 http1 1"}; !slices.Equal(got, want) {
		t.Errorf("the routes call %q, want %q", got, want)
	}
}

// BenchmarkGateway joins a mesh with a Gateway that has all the listeners that it may have, and 1,000 routes,
// many of which are at many of them.
func BenchmarkGateway(b *testing.B) {
	var listeners []fact.GatewayListener
	for i := range 64 {
		listeners = append(listeners, fact.GatewayListener{Name: fmt.Sprintf("l%d", i), Port: 80, Host: "*." + strings.Repeat("a.", i) + "example.com"})
	}
	facts := append(versions(), edge(listeners...)...)
	for i := range 1000 {
		var hosts []string
		for k := range 4 {
			hosts = append(hosts, fmt.Sprintf("h%d-%d.%sexample.com", i, k, strings.Repeat("a.", i%64)))
		}
		facts = append(facts, edgeRoute([]fact.RouteKind{fact.HTTPRoute, fact.GRPCRoute}[i%2], fmt.Sprintf("shop/r%d", i), "", int64(i), hosts...))
	}
	for b.Loop() {
		Build(facts)
	}
}
