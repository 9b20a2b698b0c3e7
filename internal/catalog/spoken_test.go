package catalog

import (
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestAssumedProtocol holds when a route of a gateway tells the protocol of a port of which the Service
// tells nothing: to the gateway, and to the server.
func TestAssumedProtocol(t *testing.T) {
	assumed := func(p fact.PortSpec) fact.PortSpec {
		p.Assumed = true
		return p
	}
	facts := slices.Concat(door(443, func(l *fact.GatewayListener) {
		l.Protocol, l.ByServerName, l.Kinds = mesh.TCP, true, []fact.RouteKind{fact.TLSRoute}
	}),
		server("shop/db", "10.96.0.10", "10.1.0.10", assumed(port(443, 8443, mesh.HTTP))))
	route := func(kind fact.RouteKind, name, gateway string) fact.Fact {
		return attach(kind, name, gateway, fact.RouteRule{Backends: []fact.RouteBackend{{Service: parseName("shop/db"), Port: 443, Weight: 1}}})
	}
	granted := factOf("ReferenceGrant", "shop/g", &fact.ReferenceGrant{Name: parseName("shop/g"), From: []fact.Referrer{{Kind: "TLSRoute", Namespace: "bank"}}, Services: []string{fact.AllNames}}, nil)
	for _, tt := range []struct {
		name    string
		facts   []fact.Fact
		want    mesh.Protocol
		backend string
	}{
		{"no route", nil, mesh.HTTP, ""},
		{"a route for connections", list(route(fact.TLSRoute, "shop/r", "shop/door")), mesh.TCP, "shop/db:443"},
		{"a gateway that is not the mesh's", list(route(fact.TLSRoute, "shop/r", "shop/other")), mesh.HTTP, ""},
		{"a route for requests too", list(route(fact.TLSRoute, "shop/r", "shop/door"), route(fact.HTTPRoute, "shop/h", "shop/door")), mesh.HTTP, ""},
		{"a route for the Service's requests too", list(route(fact.TLSRoute, "shop/r", "shop/door"), httpRoute("shop/h", "shop/db", to("/", "shop/db"))), mesh.HTTP, ""},
		{"a namespace without a grant", list(namespace("bank"), route(fact.TLSRoute, "bank/r", "shop/door")), mesh.HTTP, ""},
		{"a namespace with a grant", list(namespace("bank"), route(fact.TLSRoute, "bank/r", "shop/door"), granted), mesh.TCP, "shop/db:443"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Build(slices.Concat(facts, tt.facts))
			i := slices.IndexFunc(viewOf(t, s, "shop/db-1").Inbound.Ports, func(p mesh.InboundPort) bool { return p.Port == 8443 })
			if i < 0 {
				t.Fatal("the server has no port 8443")
			}
			if got := viewOf(t, s, "shop/db-1").Inbound.Ports[i].Protocol; got != tt.want {
				t.Errorf("the server's port has the protocol %s, want %s", got, tt.want)
			}
			d, _ := viewOf(t, s, "shop/door-1").Outbound.Destinations.Get("gateway/shop/door:443")
			backend := ""
			if len(d.Servers) > 0 {
				backend = d.Servers[0].Backends[0].Backend
			}
			if backend != tt.backend {
				t.Errorf("the gateway passes connections to %q, want %q", backend, tt.backend)
			}
		})
	}
}
