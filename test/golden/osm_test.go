package golden_test

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// sqlService adds a TCP port to the pod shop/cart.
const sqlService = "---\napiVersion: v1\nkind: Service\nmetadata: {name: sql, namespace: shop}\nspec: {selector: {app: cart}, ports: [{name: tcp-sql, port: 5432}]}\n"

func tcpRoute(name, matches string) string {
	return "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute\nmetadata: {name: " + name + ", namespace: shop}\nspec: {matches: " + matches + "}\n"
}

// allowCart also allows shop/cart to call shop/cart by rules.
func allowCart(rules string) string {
	return target("osm", "{destination: "+cartAccount+", sources: ["+cartAccount+"], rules: ["+rules+"]}")
}

// differences are the lines of docs/traffic.md about Open Service Mesh, each with a mesh
// that demonstrates it.
var differences = []struct {
	name, objects string
	holds         func(client, server *mesh.View, problems string) bool
}{
	{"An HTTPRouteGroup without named matches allows all of the group", allowCart("{kind: HTTPRouteGroup, name: reads}"), func(_, server *mesh.View, _ string) bool {
		return mayAsk(server, "/cart/1")
	}},
	{"An HTTPRouteGroup opens no TCP port", sqlService + allowCart("{kind: HTTPRouteGroup, name: reads}"), func(_, server *mesh.View, _ string) bool {
		return !mayConnect(server, 5432)
	}},
	{"Without a TrafficTarget a TCP port is closed", sqlService, func(_, server *mesh.View, _ string) bool { return !mayConnect(server, 5432) }},
	{"A TCPRoute without ports beside one with ports means every port",
		sqlService + tcpRoute("any", "{}") + tcpRoute("one", "{ports: [1]}") + allowCart("{kind: TCPRoute, name: any}, {kind: TCPRoute, name: one}, {kind: HTTPRouteGroup, name: reads}"),
		func(_, server *mesh.View, _ string) bool { return mayConnect(server, 5432) }},
	{"A TrafficTarget has ports and requests of its own",
		tcpRoute("one", "{ports: [1]}") + group("other", "[{name: m, pathRegex: /other}]") + allowCart("{kind: HTTPRouteGroup, name: reads}, {kind: TCPRoute, name: one}") +
			target("second", "{destination: "+cartAccount+", sources: ["+cartAccount+"], rules: [{kind: HTTPRouteGroup, name: other}]}"),
		func(_, server *mesh.View, _ string) bool {
			return mayAsk(server, "/other") && !mayAsk(server, "/cart/1")
		}},
	{"A UDPRoute is left out", allowCart("{kind: UDPRoute, name: u}, {kind: HTTPRouteGroup, name: reads}"), func(_, server *mesh.View, problems string) bool {
		return mayAsk(server, "/cart/1") && strings.Contains(problems, "NotSupported: spec.rules[0].kind")
	}},
	{"A TrafficSplit may have matches", split("s", "{service: cart, matches: [{kind: HTTPRouteGroup, name: reads}], backends: [{service: cart-v2, weight: 1}]}"), func(client, _ *mesh.View, _ string) bool {
		d, _ := client.Outbound.Destinations.Get("shop/cart:80")
		return len(d.Routes) == 2
	}},
	{"An Egress of http with hosts and addresses asks for both",
		policy("Egress", "e", "{sources: ["+webAccount+"], hosts: [a.example.com], ipAddresses: [192.0.2.0/24], ports: [{number: 80, protocol: http}]}"),
		func(client, _ *mesh.View, _ string) bool {
			return leaves(client, "192.0.2.1") && !leaves(client, "198.51.100.1")
		}},
	{"An Egress calls its hosts where their names lead",
		policy("Egress", "e", "{sources: ["+webAccount+"], hosts: [a.example.com], ports: [{number: 80, protocol: http}]}"),
		func(client, _ *mesh.View, _ string) bool {
			return len(client.Egress.Ports[0].Hosts[0].Matches) == 1 && len(client.Egress.Ports[0].Ranges) == 0
		}},
	{"With enableEgress, Egress objects still hold for the hosts that they name",
		"---\napiVersion: config.openservicemesh.io/v1alpha2\nkind: MeshConfig\nmetadata: {name: osm-mesh-config, namespace: osm-system}\nspec: {traffic: {enableEgress: true, enablePermissiveTrafficPolicyMode: false}}\n" +
			policy("Egress", "e", "{sources: ["+webAccount+"], hosts: [a.example.com], ports: [{number: 80, protocol: http}], matches: [{kind: HTTPRouteGroup, name: reads}]}"),
		func(client, _ *mesh.View, _ string) bool {
			return client.Egress.AllowAll && !leaves(client, "192.0.2.1")
		}},
	{"An IngressBackend may have matches",
		policy("IngressBackend", "i", "{backends: [{name: cart, port: {number: 8080, protocol: http}}], sources: [{kind: IPRange, name: 192.0.2.0/24}], matches: [{kind: HTTPRouteGroup, name: reads}]}"),
		func(_, server *mesh.View, _ string) bool {
			p, _ := server.Inbound.PortOf(8080)
			return len(p.Ingress) == 1 && p.Ingress[0].Requests[0].Path.Regex == "/cart/.*"
		}},
	{"A missing source of an IngressBackend leaves the others",
		policy("IngressBackend", "i", "{backends: [{name: cart, port: {number: 8080, protocol: http}}], sources: [{kind: Service, name: gone, namespace: shop}, {kind: IPRange, name: 192.0.2.0/24}]}"),
		func(_, server *mesh.View, _ string) bool {
			p, _ := server.Inbound.PortOf(8080)
			return len(p.Ingress) == 1
		}},
	{"A setting's host may be a service's short name", policy("UpstreamTrafficSetting", "u", "{host: cart, timeouts: {request: 5s}}"), func(client, _ *mesh.View, _ string) bool {
		d, _ := client.Outbound.Destinations.Get("shop/cart:80")
		return d.Routes[0].Timeout != 0
	}},
	{"Global rate limits are not kept", policy("UpstreamTrafficSetting", "u", "{host: cart, rateLimit: {global: {}}}"), func(_, _ *mesh.View, problems string) bool {
		return strings.Contains(problems, "NotSupported: spec.rateLimit.global")
	}},
}

func arrival(v *mesh.View, port uint16, r *mesh.Request) mesh.Decision {
	return v.Inbound.Decide(mesh.Arrival{Port: port, Security: mesh.MeshTLS, Peer: v.Proxy.Identity, Request: r})
}

func mayAsk(v *mesh.View, path string) bool {
	return arrival(v, 8080, &mesh.Request{Method: "GET", Host: "cart", Path: path}).Allowed
}

func mayConnect(v *mesh.View, port uint16) bool { return arrival(v, port, nil).Allowed }

func leaves(v *mesh.View, address string) bool {
	return v.Egress.Decide(mesh.Departure{To: netip.AddrPortFrom(netip.MustParseAddr(address), 80), Request: &mesh.Request{Method: "GET", Host: "a.example.com", Path: "/"}}).Allowed
}

// TestDifferences checks the statements of docs/traffic.md about Open Service Mesh.
func TestDifferences(t *testing.T) {
	page, err := os.ReadFile("../../docs/traffic.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Where it differs from Open Service Mesh")
	var documented []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, " | "); len(cells) == 2 && !strings.Contains(line, "difference | why") {
			documented = append(documented, strings.TrimPrefix(cells[0], "| "))
		}
	}
	var held []string
	for _, d := range differences {
		held = append(held, d.name)
		t.Run(d.name, func(t *testing.T) {
			mesh := goodMesh
			if strings.Contains(d.objects, "kind: MeshConfig") {
				_, mesh, _ = strings.Cut(goodMesh, "---\n")
				mesh = "\n---\n" + mesh
			}
			snapshot := build(t, strings.NewReader(mesh+d.objects))
			if !d.holds(viewOf(t, snapshot, "shop/web"), viewOf(t, snapshot, "shop/cart"), string(problemsOf(snapshot))) {
				t.Errorf("the statement is wrong; the Problems are:\n%s", problemsOf(snapshot))
			}
		})
	}
	if !slices.Equal(documented, held) {
		t.Errorf("docs/traffic.md has the statements %q, but the test has %q", documented, held)
	}
}
