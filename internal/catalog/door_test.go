package catalog

import (
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
