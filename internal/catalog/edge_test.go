package catalog

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// egress lets shop/web out to the ports.
func egress(name string, created int64, ports []mesh.EgressPort, edits ...func(*mesh.EgressRule)) mesh.Fact {
	return fact("Egress", name, &mesh.EgressRule{
		Name: parseName(name), Age: mesh.Age{Created: created}, Sources: []mesh.ServiceAccount{parseName("shop/web")}, Ports: ports,
	}, edits)
}

func outPort(number uint16, protocol mesh.EgressProtocol) []mesh.EgressPort {
	return []mesh.EgressPort{{Number: number, Protocol: protocol}}
}

func hosts(names ...string) func(*mesh.EgressRule) {
	return func(rule *mesh.EgressRule) { rule.Hosts = names }
}

func ranges(prefixes ...string) func(*mesh.EgressRule) {
	return func(rule *mesh.EgressRule) {
		for _, prefix := range prefixes {
			rule.Ranges = append(rule.Ranges, netip.MustParsePrefix(prefix))
		}
	}
}

func groups(names ...string) func(*mesh.EgressRule) {
	return func(rule *mesh.EgressRule) { rule.Groups = names }
}

func using(names ...string) func(*mesh.EgressRule) {
	return func(rule *mesh.EgressRule) { rule.Settings = names }
}

func TestEgress(t *testing.T) {
	http, tls, tcp := outPort(80, mesh.EgressHTTP), outPort(443, mesh.EgressTLS), outPort(5432, mesh.EgressTCP)
	other := func(rule *mesh.EgressRule) { rule.Sources[0].Name = "other" }
	runJoinCases(t, town(), []joinCase{
		{name: "closed by default", egress: "closed"},
		{name: "open by the switch", facts: [][]mesh.Fact{list(settings(open))}, egress: "open"},
		{name: "requests by host", facts: [][]mesh.Fact{list(egress("shop/e", 1, http, hosts("Example.com", "*.example.org")))}, egress: "closed\n80 http\n  *.example.org for any\n  example.com for any"},
		{name: "TLS by server name", facts: [][]mesh.Fact{list(egress("shop/e", 1, tls, hosts("example.com")))}, egress: "closed\n443 tls\n  example.com for any"},
		{name: "connections by address", facts: [][]mesh.Fact{list(egress("shop/e", 1, tcp, ranges("192.0.2.7/24", "192.0.2.0/24", "10.0.0.0/8")))}, egress: "closed\n5432 tcp 10.0.0.0/8 192.0.2.0/24"},
		{name: "connections to any address", facts: [][]mesh.Fact{list(egress("shop/e", 1, tcp))}, egress: "closed\n5432 tcp 0.0.0.0/0 ::/0"},
		{name: "connections to any address beside some", facts: [][]mesh.Fact{list(egress("shop/e", 1, tcp, ranges("10.0.0.0/8")), egress("shop/f", 2, tcp))}, egress: "closed\n5432 tcp 0.0.0.0/0 10.0.0.0/8 ::/0"},
		{name: "requests to addresses whatever their host", facts: [][]mesh.Fact{list(egress("shop/e", 1, http, ranges("10.0.0.0/8")))}, egress: "closed\n80 http 10.0.0.0/8"},
		{
			// Otherwise the addresses would open what the hosts deny.
			name:   "hosts and addresses must both hold",
			facts:  [][]mesh.Fact{list(egress("shop/e", 1, slices.Concat(http, tls, tcp), hosts("example.com"), ranges("10.0.0.0/8")))},
			egress: "closed\n80 http\n  example.com for  at [10.0.0.0/8] for any\n443 tls\n  example.com for  at [10.0.0.0/8] for any\n5432 tcp 10.0.0.0/8",
		},
		{
			name: "each rule has addresses of its own",
			facts: [][]mesh.Fact{list(egress("shop/e", 1, http, hosts("example.com"), ranges("10.0.0.0/8")),
				routes("shop/g", "/a"), egress("shop/f", 2, http, hosts("example.com"), groups("g")))},
			egress: "closed\n80 http\n  example.com for /a at [10.0.0.0/8] for any",
		},
		{
			name:   "matches",
			facts:  [][]mesh.Fact{list(routes("shop/g", "/a"), routes("shop/h", "/b"), egress("shop/e", 1, http, hosts("example.com"), groups("g")), egress("shop/f", 2, http, hosts("example.com"), groups("h")))},
			egress: "closed\n80 http\n  example.com for /a,/b",
		},
		{
			name:     "matches that are not there let nothing out",
			facts:    [][]mesh.Fact{list(egress("shop/e", 1, http, hosts("example.com"), groups("g")))},
			egress:   "closed\n80 http",
			problems: "Egress shop/e: NotFound spec.matches[0]",
		},
		{
			name:     "matches without a host let nothing out",
			facts:    [][]mesh.Fact{list(routes("shop/g", "/a"), egress("shop/e", 1, http, ranges("10.0.0.0/8"), groups("g")))},
			egress:   "closed\n80 http",
			problems: "Egress shop/e: NoEffect spec.matches",
		},
		{
			name:     "matches where there are no requests",
			facts:    [][]mesh.Fact{list(routes("shop/g", "/a"), egress("shop/e", 1, tls, hosts("example.com"), groups("g")))},
			egress:   "closed\n443 tls\n  example.com for any",
			problems: "Egress shop/e: NoEffect spec.matches",
		},
		{
			name:     "of two protocols for a port the oldest counts",
			facts:    [][]mesh.Fact{list(egress("shop/e", 2, outPort(443, mesh.EgressTCP), ranges("10.0.0.0/8")), egress("shop/f", 1, tls, hosts("example.com")))},
			egress:   "closed\n443 tls\n  example.com for any",
			problems: "Egress shop/e: Conflict spec.sources[0]",
		},
		{
			name:   "of another account",
			facts:  [][]mesh.Fact{list(egress("shop/e", 1, tcp, other))},
			egress: "closed", problems: "Egress shop/e: NotFound spec.sources[0]",
		},
		{name: "in a namespace that is not of the mesh", facts: [][]mesh.Fact{list(egress("out/e", 1, tcp))}, egress: "closed"},
		{
			name: "switched off", facts: [][]mesh.Fact{list(settings(permissive, func(s *mesh.Settings) { s.EgressPolicy = false }), egress("shop/e", 1, tcp))},
			egress: "closed", problems: "Egress shop/e: Disabled",
		},
		{
			name:     "a service that stands for the host",
			facts:    [][]mesh.Fact{list(external("shop/else", "Example.com.", port(80, 80, mesh.HTTP)), egress("shop/e", 1, http, hosts("example.com")))},
			egress:   "closed\n80 http\n  else.shop.svc for any\n  else.shop.svc.cluster.local for any\n  example.com for any",
			problems: "Service shop/else: OutsideMesh spec.ports[0]",
		},
		{
			name: "a service of a namespace outside the mesh that stands for the host, and one of a namespace that is not known",
			facts: [][]mesh.Fact{list(namespace("out", func(n *mesh.Namespace) { n.Member = false }),
				external("out/else", "example.com", port(80, 80, mesh.HTTP)), external("lost/else", "example.com", port(80, 80, mesh.HTTP)),
				egress("shop/e", 1, http, hosts("example.com")))},
			egress: "closed\n80 http\n  example.com for any",
		},
		{
			name:     "a setting of another namespace for a host",
			facts:    [][]mesh.Fact{list(namespace("next"), upstream("next/u", "example.com", 1, most(3)), egress("shop/e", 1, http, hosts("example.com"), using("u")))},
			egress:   "closed",
			problems: "Egress shop/e: NotFound spec.matches\nUpstreamTrafficSetting next/u: NotFound spec.host",
		},
		{
			name:   "a setting for a host",
			facts:  [][]mesh.Fact{list(upstream("shop/u", "EXAMPLE.com", 1, most(3)), egress("shop/e", 1, http, hosts("example.com", "example.org"), using("u")))},
			egress: "closed\n80 http\n  example.com for any max 3\n  example.org for any",
		},
		{
			name:     "a setting for none of the hosts",
			facts:    [][]mesh.Fact{list(upstream("shop/u", "example.net", 1, most(3)), egress("shop/e", 1, http, hosts("example.com"), using("u")))},
			egress:   "closed\n80 http\n  example.com for any",
			problems: "Egress shop/e: NoEffect spec.matches",
		},
		{
			name:     "without a setting that it names it lets nothing out",
			facts:    [][]mesh.Fact{list(egress("shop/e", 1, http, hosts("example.com"), using("v")))},
			egress:   "closed",
			problems: "Egress shop/e: NotFound spec.matches",
		},
	})
}

// ingress opens the port 8080 of shop/cart.
func ingress(name string, backend mesh.IngressBackend, sources ...mesh.IngressSource) mesh.Fact {
	backend.Service, backend.Port = "cart", 8080
	return fact("IngressBackend", name, &mesh.IngressRule{Name: parseName(name), Backends: []mesh.IngressBackend{backend}, Sources: sources}, nil)
}

func TestIngress(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	facts := append(town(), server("shop/cart", "10.96.0.2", "10.1.0.2", web)...)
	taken := func(lines string) string {
		return "Strict\nothers from anyone\n8080 http for [shop/cart:80] from anyone" + lines
	}
	gateway := list(slice("edge/gate", []mesh.PortSpec{web}, ready("gate-1", "10.2.0.1"), ending("gate-2", "10.2.0.2"), mesh.SliceEndpoint{Workload: "gate-3", Addresses: addresses("10.2.0.3")}))
	byService := mesh.IngressSource{Service: parseName("edge/gate")}
	byRange := mesh.IngressSource{Range: netip.MustParsePrefix("192.0.2.7/24")}
	principal := func(name string) mesh.IngressSource { return mesh.IngressSource{Principal: name} }
	tls := mesh.IngressBackend{TLS: true}
	opened := func(name string, edit func(*mesh.IngressRule), sources ...mesh.IngressSource) mesh.Fact {
		f := ingress(name, tls, sources...)
		rule := *f.Content.(*mesh.IngressRule)
		edit(&rule)
		f.Content = mesh.Seal(&rule)
		return f
	}
	var cases []joinCase
	for _, tt := range []struct {
		name     string
		facts    [][]mesh.Fact
		want     string
		problems string
	}{
		{name: "closed by default"},
		{name: "a service outside the mesh", facts: [][]mesh.Fact{gateway, list(ingress("shop/i", mesh.IngressBackend{}, byService))}, want: "\n  ingress shop/i [10.2.0.1/32 10.2.0.2/32] for any"},
		{name: "a range", facts: [][]mesh.Fact{list(ingress("shop/i", mesh.IngressBackend{}, byRange, byRange))}, want: "\n  ingress shop/i [192.0.2.0/24] for any"},
		{name: "a principal", facts: [][]mesh.Fact{list(ingress("shop/i", tls, principal("gate.one.edge.td")))}, want: "\n  ingress shop/i [] TLS[] gate.one.edge.sa.td for any"},
		{name: "any principal", facts: [][]mesh.Fact{list(ingress("shop/i", tls, principal("*")))}, want: "\n  ingress shop/i [] TLS[] any principal for any"},
		{
			name:  "an address and a principal",
			facts: [][]mesh.Fact{gateway, list(ingress("shop/i", mesh.IngressBackend{TLS: true, SNIHosts: []string{"cart.example"}}, byService, principal("gate.edge.td")))},
			want:  "\n  ingress shop/i [10.2.0.1/32 10.2.0.2/32] TLS[cart.example] gate.edge.sa.td for any",
		},
		{name: "a service without endpoints lets nobody in", facts: [][]mesh.Fact{list(ingress("shop/i", mesh.IngressBackend{}, byService))}, problems: "IngressBackend shop/i: NotFound spec.sources[0]"},
		{
			name:  "a service without endpoints lets nobody in by principal alone",
			facts: [][]mesh.Fact{list(ingress("shop/i", tls, byService, principal("gate.edge.td")))}, problems: "IngressBackend shop/i: NotFound spec.sources[0]",
		},
		{
			name: "a principal of another mesh lets nobody in", facts: [][]mesh.Fact{list(ingress("shop/i", tls, principal("gate.edge.other")))},
			problems: "IngressBackend shop/i: NotFound spec.sources[0].name",
		},
		{
			name: "a principal without an account or a namespace lets nobody in", facts: [][]mesh.Fact{list(ingress("shop/i", tls, principal("gate.td"), principal(".edge.td"), principal("gate..td"), principal(".td")))},
			problems: `
				IngressBackend shop/i: NotFound spec.sources[0].name
				IngressBackend shop/i: NotFound spec.sources[1].name
				IngressBackend shop/i: NotFound spec.sources[2].name
				IngressBackend shop/i: NotFound spec.sources[3].name`,
		},
		{
			name: "a principal of another mesh lets nobody in by address alone", facts: [][]mesh.Fact{list(ingress("shop/i", tls, byRange, principal("gate.edge.other")))},
			problems: "IngressBackend shop/i: NotFound spec.sources[1].name",
		},
		{
			name: "no caller in plaintext has a principal", facts: [][]mesh.Fact{list(ingress("shop/i", mesh.IngressBackend{}, byRange, principal("gate.edge.td")))},
			problems: "IngressBackend shop/i: NoEffect spec.backends[0].port.protocol",
		},
		{name: "without sources", facts: [][]mesh.Fact{list(ingress("shop/i", mesh.IngressBackend{}))}},
		{
			name: "by requests", facts: [][]mesh.Fact{list(routes("shop/g", "/in"), opened("shop/i", func(rule *mesh.IngressRule) { rule.Groups = []string{"g"} }, byRange))},
			want: "\n  ingress shop/i [192.0.2.0/24] TLS[] for /in",
		},
		{
			name: "by requests that are not there", facts: [][]mesh.Fact{list(opened("shop/i", func(rule *mesh.IngressRule) { rule.Groups = []string{"g"} }, byRange))},
			problems: "IngressBackend shop/i: NotFound spec.matches[0]",
		},
		{
			name: "a port that is no target", facts: [][]mesh.Fact{list(opened("shop/i", func(rule *mesh.IngressRule) { rule.Backends[0].Port = 80 }, byRange))},
			problems: "IngressBackend shop/i: NoSuchPort spec.backends[0].port.number",
		},
		{
			name: "a service that is not there", facts: [][]mesh.Fact{list(opened("shop/i", func(rule *mesh.IngressRule) { rule.Backends[0].Service = "none" }, byRange))},
			problems: "IngressBackend shop/i: NotFound spec.backends[0].name",
		},
		{
			name: "two for a port", facts: [][]mesh.Fact{list(ingress("shop/a", mesh.IngressBackend{}, byRange), ingress("shop/b", tls, byRange))},
			want:     "\n  ingress shop/a [192.0.2.0/24] for any\n  ingress shop/b [192.0.2.0/24] TLS[] for any",
			problems: "IngressBackend shop/b: Conflict spec.backends[0]",
		},
		{
			name: "two for a port that open it alike", facts: [][]mesh.Fact{list(ingress("shop/a", tls, byRange), ingress("shop/b", tls, byRange))},
			want: "\n  ingress shop/a [192.0.2.0/24] TLS[] for any\n  ingress shop/b [192.0.2.0/24] TLS[] for any",
		},
		{name: "in a namespace that is not of the mesh", facts: [][]mesh.Fact{list(ingress("out/i", mesh.IngressBackend{}, byRange))}},
		{
			name:  "switched off",
			facts: [][]mesh.Fact{list(settings(permissive, func(s *mesh.Settings) { s.IngressPolicy = false }), ingress("shop/i", mesh.IngressBackend{}, byRange))}, problems: "IngressBackend shop/i: Disabled",
		},
	} {
		cases = append(cases, joinCase{name: tt.name, facts: tt.facts, pod: "shop/cart-1", inbound: taken(tt.want), problems: tt.problems})
	}
	runJoinCases(t, facts, cases)
}
