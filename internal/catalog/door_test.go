package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// door is a town with the gateway shop/door, which has a pod and one listener, for HTTP unless it is edited.
func door(port uint16, edits ...func(*fact.GatewayListener)) []fact.Fact {
	l := fact.GatewayListener{Name: "one", Port: port, Protocol: mesh.HTTP, Kinds: []fact.RouteKind{fact.HTTPRoute}, All: true}
	for _, edit := range edits {
		edit(&l)
	}
	return append(town(),
		fact.Fact{Object: object(gatewayVersion, "GatewayClass", "", "outrigger-envoy"), Content: mesh.Seal(&fact.GatewayClass{Name: "outrigger-envoy", Class: "envoy"})},
		fact.Fact{Object: object(gatewayVersion, "Gateway", "shop", "door"), Content: mesh.Seal(&fact.Gateway{
			Name: parseName("shop/door"), Class: "outrigger-envoy", Listeners: []fact.GatewayListener{l},
		})},
		pod("shop/door-1", "door", "10.1.0.20", func(w *fact.Workload) { w.Labels = map[string]string{fact.GatewayLabel: "door"} }),
	)
}

// attach is a route at a gateway, for one host.
func attach(kind fact.RouteKind, name, gateway string, rules ...fact.RouteRule) fact.Fact {
	n := parseName(name)
	return fact.Fact{Object: object(gatewayVersion, string(kind), n.Namespace, n.Name), Content: mesh.Seal(&fact.Route{
		Name: n, Kind: kind, Hosts: []string{"a.example.com"}, Gateways: []fact.GatewayParent{{Gateway: parseName(gateway)}}, Rules: rules,
	})}
}

// TestShortHost holds that a wildcard includes a host whose first label has one letter.
func TestShortHost(t *testing.T) {
	route := attach(fact.HTTPRoute, "shop/r", "shop/door", to("/", "shop/web")) // for a.example.com
	s := Build(append(door(80, func(l *fact.GatewayListener) { l.Host = "*.example.com" }), route))
	if found, ok := s.Problems.Get("Gateway shop/door"); !ok || found.Gateway.Listeners[0].Routes != 1 {
		t.Errorf("the route is not attached: %+v", found)
	}
	if found, ok := s.Problems.Get(route.Object.String()); ok {
		for _, p := range found.List {
			if p.Reason == fact.ReasonNoMatchingListenerHostname {
				t.Errorf("the route has the Problem %+v", p)
			}
		}
	}
}

// TestGatewayToHeadless holds that a gateway calls all endpoints of a headless service as one Backend, also
// those that sidecars call outside the mesh, and that it gets a Backend if there are none.
func TestGatewayToHeadless(t *testing.T) {
	web := []fact.PortSpec{port(80, 8080, mesh.HTTP)}
	inside := list(pod("shop/db-1", "db", "10.1.0.2"), pod("shop/db-2", "db", "10.1.0.3"))
	for _, tt := range []struct {
		name  string
		edit  func(*mesh.Settings)
		slice fact.Fact
		want  string
	}{
		{"pods with sidecars", permissive, slice("shop/db", web, ready("db-1", "10.1.0.2"), ready("db-2", "10.1.0.3")), "[10.1.0.2:8080 db.shop.sa.td 10.1.0.3:8080 db.shop.sa.td]"},
		{"one outside the mesh, with egress", func(s *mesh.Settings) { s.PermissivePolicy, s.Egress = true, true }, slice("shop/db", web, ready("db-2", "10.1.0.3"), ready("", "192.0.2.1")),
			"[10.1.0.3:8080 db.shop.sa.td 192.0.2.1:8080 ]"},
		{"one outside the mesh, without egress", permissive, slice("shop/db", web, ready("db-2", "10.1.0.3"), ready("", "192.0.2.1")), "[10.1.0.3:8080 db.shop.sa.td]"},
		{"no endpoints", permissive, slice("shop/db", web), "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Build(slices.Concat(door(80), inside, list(settings(tt.edit), service("shop/db", "", web...), tt.slice, attach(fact.HTTPRoute, "shop/r", "shop/door", to("/", "shop/db")))))
			view := viewOf(t, s, "shop/door-1")
			d, _ := view.Outbound.Destinations.Get("gateway/shop/door:80")
			if got := d.Routes[0].Backends[0].Backend; got != "shop/db:80" {
				t.Fatalf("the gateway's route leads to %q", got)
			}
			b, ok := view.Outbound.Backends.Get("shop/db:80")
			if !ok {
				t.Fatal("the gateway has no Backend for it")
			}
			got := []string{}
			for _, e := range b.Endpoints {
				got = append(got, fmt.Sprintf("%s:%d %s", e.Addresses[0], e.Port, e.ServerName))
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("the endpoints are %s, want %s", got, tt.want)
			}
		})
	}
}

// TestHostsInCommon holds which of two routes counts that have the same host in common with a listener: the
// one whose own host is more specific, even if it is younger and its match is less specific.
func TestHostsInCommon(t *testing.T) {
	const host = "a.example.com"
	routes := func(kind fact.RouteKind, port uint16) []fact.Fact {
		var all []fact.Fact
		for i, r := range []struct {
			name, own string
			prefixes  []string
		}{{"shop/old", "*.example.com", []string{"/long/prefix", "/old"}}, {"shop/new", host, []string{"/long"}}} {
			var rules []fact.RouteRule
			for _, prefix := range r.prefixes {
				rule := to(prefix, r.name)
				rule.Backends[0].Port = port
				rules = append(rules, rule)
			}
			f := attach(kind, r.name, "shop/door", rules...)
			route := *f.Content.(*fact.Route)
			route.Sealed, route.Hosts, route.Created = mesh.Sealed{}, []string{r.own}, int64(i)
			f.Content = mesh.Seal(&route)
			all = append(all, f)
		}
		return all
	}
	t.Run("requests", func(t *testing.T) {
		s := Build(slices.Concat(door(80, func(l *fact.GatewayListener) { l.Host = host }), routes(fact.HTTPRoute, 80),
			server("shop/old", "10.96.0.11", "10.1.0.11", port(80, 8080, mesh.HTTP)), server("shop/new", "10.96.0.12", "10.1.0.12", port(80, 8080, mesh.HTTP))))
		d, _ := viewOf(t, s, "shop/door-1").Outbound.Destinations.Get("gateway/shop/door:80")
		var got []string
		for _, route := range d.Routes {
			got = append(got, route.Host+route.Match.Path.Prefix+" "+route.Backends[0].Backend)
		}
		if want := []string{host + "/long shop/new:80", host + "/long/prefix shop/old:80", host + "/old shop/old:80"}; !slices.Equal(got, want) {
			t.Errorf("the routes are %q, want %q", got, want)
		}
	})
	t.Run("connections", func(t *testing.T) {
		tls := func(l *fact.GatewayListener) {
			l.Host, l.Protocol, l.ByServerName, l.Kinds = host, mesh.TCP, true, []fact.RouteKind{fact.TLSRoute}
		}
		s := Build(slices.Concat(door(443, tls), routes(fact.TLSRoute, 443),
			server("shop/old", "10.96.0.11", "10.1.0.11", port(443, 8443, mesh.TCP)), server("shop/new", "10.96.0.12", "10.1.0.12", port(443, 8443, mesh.TCP))))
		d, _ := viewOf(t, s, "shop/door-1").Outbound.Destinations.Get("gateway/shop/door:443")
		if len(d.Servers) != 1 || d.Servers[0].Host != host || d.Servers[0].Backends[0].Backend != "shop/new:443" {
			t.Errorf("the servers are %+v, want %s of shop/new only", d.Servers, host)
		}
	})
}
