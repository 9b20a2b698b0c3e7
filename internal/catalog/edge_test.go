package catalog

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// egress lets shop/web out to the ports.
func egress(name string, created int64, ports []fact.EgressPort, edits ...func(*fact.EgressRule)) fact.Fact {
	return factOf("Egress", name, &fact.EgressRule{
		Name: parseName(name), Age: fact.Age{Created: created}, Sources: []fact.ServiceAccount{parseName("shop/web")}, Ports: ports,
	}, edits)
}

func outPort(number uint16, protocol mesh.EgressProtocol) []fact.EgressPort {
	return []fact.EgressPort{{Number: number, Protocol: protocol}}
}

func hosts(names ...string) func(*fact.EgressRule) {
	return func(rule *fact.EgressRule) { rule.Hosts = names }
}

func ranges(prefixes ...string) func(*fact.EgressRule) {
	return func(rule *fact.EgressRule) {
		for _, prefix := range prefixes {
			rule.Ranges = append(rule.Ranges, netip.MustParsePrefix(prefix))
		}
	}
}

func groups(names ...string) func(*fact.EgressRule) {
	return func(rule *fact.EgressRule) { rule.Groups = names }
}

func using(names ...string) func(*fact.EgressRule) {
	return func(rule *fact.EgressRule) { rule.Settings = names }
}

func TestEgress(t *testing.T) {
	http, tls, tcp := outPort(80, mesh.EgressHTTP), outPort(443, mesh.EgressTLS), outPort(5432, mesh.EgressTCP)
	other := func(rule *fact.EgressRule) { rule.Sources[0].Name = "other" }
	runJoinCases(t, town(), []joinCase{
		{name: "closed by default", egress: "closed"},
		{name: "open by the switch", facts: [][]fact.Fact{list(settings(open))}, egress: "open"},
		{name: "requests by host", facts: [][]fact.Fact{list(egress("shop/e", 1, http, hosts("Example.com", "*.example.org")))}, egress: "closed\n80 http\n  *.example.org for any\n  example.com for any"},
		{name: "TLS by server name", facts: [][]fact.Fact{list(egress("shop/e", 1, tls, hosts("example.com")))}, egress: "closed\n443 tls\n  example.com for any"},
		{name: "connections by address", facts: [][]fact.Fact{list(egress("shop/e", 1, tcp, ranges("192.0.2.7/24", "192.0.2.0/24", "10.0.0.0/8")))}, egress: "closed\n5432 tcp 10.0.0.0/8 192.0.2.0/24"},
		{name: "connections to any address", facts: [][]fact.Fact{list(egress("shop/e", 1, tcp))}, egress: "closed\n5432 tcp 0.0.0.0/0 ::/0"},
		{name: "connections to any address beside some", facts: [][]fact.Fact{list(egress("shop/e", 1, tcp, ranges("10.0.0.0/8")), egress("shop/f", 2, tcp))}, egress: "closed\n5432 tcp 0.0.0.0/0 10.0.0.0/8 ::/0"},
		{name: "requests to addresses whatever their host", facts: [][]fact.Fact{list(egress("shop/e", 1, http, ranges("10.0.0.0/8")))}, egress: "closed\n80 http 10.0.0.0/8"},
		{
			// Otherwise the addresses would open what the hosts deny.
			name:   "hosts and addresses must both hold",
			facts:  [][]fact.Fact{list(egress("shop/e", 1, slices.Concat(http, tls, tcp), hosts("example.com"), ranges("10.0.0.0/8")))},
			egress: "closed\n80 http\n  example.com for  at [10.0.0.0/8] for any\n443 tls\n  example.com for  at [10.0.0.0/8] for any\n5432 tcp 10.0.0.0/8",
		},
		{
			name: "each rule has addresses of its own",
			facts: [][]fact.Fact{list(egress("shop/e", 1, http, hosts("example.com"), ranges("10.0.0.0/8")),
				routes("shop/g", "/a"), egress("shop/f", 2, http, hosts("example.com"), groups("g")))},
			egress: "closed\n80 http\n  example.com for /a at [10.0.0.0/8] for any",
		},
		{
			name:   "matches",
			facts:  [][]fact.Fact{list(routes("shop/g", "/a"), routes("shop/h", "/b"), egress("shop/e", 1, http, hosts("example.com"), groups("g")), egress("shop/f", 2, http, hosts("example.com"), groups("h")))},
			egress: "closed\n80 http\n  example.com for /a,/b",
		},
		{
			name:     "matches that are not there let nothing out",
			facts:    [][]fact.Fact{list(egress("shop/e", 1, http, hosts("example.com"), groups("g")))},
			egress:   "closed\n80 http",
			problems: "Egress shop/e: NotFound spec.matches[0]",
		},
		{
			name:     "matches without a host let nothing out",
			facts:    [][]fact.Fact{list(routes("shop/g", "/a"), egress("shop/e", 1, http, ranges("10.0.0.0/8"), groups("g")))},
			egress:   "closed\n80 http",
			problems: "Egress shop/e: NoEffect spec.matches",
		},
		{
			name:     "matches where there are no requests",
			facts:    [][]fact.Fact{list(routes("shop/g", "/a"), egress("shop/e", 1, tls, hosts("example.com"), groups("g")))},
			egress:   "closed\n443 tls\n  example.com for any",
			problems: "Egress shop/e: NoEffect spec.matches",
		},
		{
			name:     "of two protocols for a port the oldest counts",
			facts:    [][]fact.Fact{list(egress("shop/e", 2, outPort(443, mesh.EgressTCP), ranges("10.0.0.0/8")), egress("shop/f", 1, tls, hosts("example.com")))},
			egress:   "closed\n443 tls\n  example.com for any",
			problems: "Egress shop/e: Conflict spec.sources[0]",
		},
		{
			name:   "of another account",
			facts:  [][]fact.Fact{list(egress("shop/e", 1, tcp, other))},
			egress: "closed", problems: "Egress shop/e: NotFound spec.sources[0]",
		},
		{name: "in a namespace that is not of the mesh", facts: [][]fact.Fact{list(egress("out/e", 1, tcp))}, egress: "closed"},
		{
			name: "switched off", facts: [][]fact.Fact{list(settings(permissive, func(s *mesh.Settings) { s.EgressPolicy = false }), egress("shop/e", 1, tcp))},
			egress: "closed", problems: "Egress shop/e: Disabled",
		},
		{
			name:     "a service that stands for the host",
			facts:    [][]fact.Fact{list(external("shop/else", "Example.com.", port(80, 80, mesh.HTTP)), egress("shop/e", 1, http, hosts("example.com")))},
			egress:   "closed\n80 http\n  else.shop.svc for any\n  else.shop.svc.cluster.local for any\n  example.com for any",
			problems: "Service shop/else: OutsideMesh spec.ports[0]",
		},
		{
			name: "a service of a namespace outside the mesh that stands for the host, and one of a namespace that is not known",
			facts: [][]fact.Fact{list(namespace("out", func(n *fact.Namespace) { n.Member = false }),
				external("out/else", "example.com", port(80, 80, mesh.HTTP)), external("lost/else", "example.com", port(80, 80, mesh.HTTP)),
				egress("shop/e", 1, http, hosts("example.com")))},
			egress: "closed\n80 http\n  example.com for any",
		},
		{
			name:     "a setting of another namespace for a host",
			facts:    [][]fact.Fact{list(namespace("next"), upstream("next/u", "example.com", 1, most(3)), egress("shop/e", 1, http, hosts("example.com"), using("u")))},
			egress:   "closed",
			problems: "Egress shop/e: NotFound spec.matches\nUpstreamTrafficSetting next/u: NotFound spec.host",
		},
		{
			name:   "a setting for a host",
			facts:  [][]fact.Fact{list(upstream("shop/u", "EXAMPLE.com", 1, most(3)), egress("shop/e", 1, http, hosts("example.com", "example.org"), using("u")))},
			egress: "closed\n80 http\n  example.com for any max 3\n  example.org for any",
		},
		{
			name:     "a setting for none of the hosts",
			facts:    [][]fact.Fact{list(upstream("shop/u", "example.net", 1, most(3)), egress("shop/e", 1, http, hosts("example.com"), using("u")))},
			egress:   "closed\n80 http\n  example.com for any",
			problems: "Egress shop/e: NoEffect spec.matches",
		},
		{
			name:     "without a setting that it names it lets nothing out",
			facts:    [][]fact.Fact{list(egress("shop/e", 1, http, hosts("example.com"), using("v")))},
			egress:   "closed",
			problems: "Egress shop/e: NotFound spec.matches",
		},
	})
}

// ingress opens the port 8080 of shop/cart.
func ingress(name string, backend fact.IngressBackend, sources ...fact.IngressSource) fact.Fact {
	backend.Service, backend.Port = "cart", 8080
	return factOf("IngressBackend", name, &fact.IngressRule{Name: parseName(name), Backends: []fact.IngressBackend{backend}, Sources: sources}, nil)
}

func TestIngress(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	facts := append(town(), server("shop/cart", "10.96.0.2", "10.1.0.2", web)...)
	taken := func(lines string) string {
		return "Strict\nothers from anyone\n8080 http for [shop/cart:80] from anyone" + lines
	}
	gateway := list(slice("edge/gate", []fact.PortSpec{web}, ready("gate-1", "10.2.0.1"), ending("gate-2", "10.2.0.2"), fact.SliceEndpoint{Workload: "gate-3", Addresses: addresses("10.2.0.3")}))
	byService := fact.IngressSource{Service: parseName("edge/gate")}
	byRange := fact.IngressSource{Range: netip.MustParsePrefix("192.0.2.7/24")}
	principal := func(name string) fact.IngressSource { return fact.IngressSource{Principal: name} }
	tls := fact.IngressBackend{TLS: true}
	opened := func(name string, edit func(*fact.IngressRule), sources ...fact.IngressSource) fact.Fact {
		f := ingress(name, tls, sources...)
		rule := *f.Content.(*fact.IngressRule)
		edit(&rule)
		f.Content = mesh.Seal(&rule)
		return f
	}
	var cases []joinCase
	for _, tt := range []struct {
		name     string
		facts    [][]fact.Fact
		want     string
		problems string
	}{
		{name: "closed by default"},
		{name: "a service outside the mesh", facts: [][]fact.Fact{gateway, list(ingress("shop/i", fact.IngressBackend{}, byService))}, want: "\n  ingress shop/i [10.2.0.1/32 10.2.0.2/32] for any"},
		{
			name: "a service with members of every kind",
			facts: [][]fact.Fact{list(slice("edge/gate", []fact.PortSpec{web}, ready("gate-1", "10.2.0.1"), ready("gate-2", "10.2.0.2"), ready("gate-3", "10.2.0.3"), ready("", "10.2.0.4"), ready("gate-5", "10.2.0.5")),
				pod("edge/gate-2", "gate", "10.2.0.2"), pod("edge/gate-3", "gate", "10.2.0.3", func(w *fact.Workload) { w.Class = "" }),
				pod("edge/gate-5", "gate", "10.2.0.5", func(w *fact.Workload) { w.Ended = true }),
				ingress("shop/i", fact.IngressBackend{}, byService))},
			want: "\n  ingress shop/i [10.2.0.1/32 10.2.0.2/32 10.2.0.3/32 10.2.0.4/32] for any",
		},
		{
			name: "a service whose pods have ended lets nobody in",
			facts: [][]fact.Fact{list(slice("edge/gate", []fact.PortSpec{web}, ready("gate-1", "10.2.0.1")), pod("edge/gate-1", "gate", "10.2.0.1", func(w *fact.Workload) { w.Ended = true }),
				ingress("shop/i", fact.IngressBackend{}, byService))},
			problems: "IngressBackend shop/i: NotFound spec.sources[0]",
		},
		{
			name: "a backend several times",
			facts: [][]fact.Fact{list(opened("shop/i", func(rule *fact.IngressRule) {
				plain := rule.Backends[0]
				plain.TLS = false
				rule.Backends = append(rule.Backends, rule.Backends[0], plain, plain)
			}, byRange))},
			want: "\n  ingress shop/i [192.0.2.0/24] TLS[] for any\n  ingress shop/i [192.0.2.0/24] for any",
		},
		{name: "a range", facts: [][]fact.Fact{list(ingress("shop/i", fact.IngressBackend{}, byRange, byRange))}, want: "\n  ingress shop/i [192.0.2.0/24] for any"},
		{name: "a principal", facts: [][]fact.Fact{list(ingress("shop/i", tls, principal("gate.one.edge.td")))}, want: "\n  ingress shop/i [] TLS[] gate.one.edge.sa.td for any"},
		{name: "any principal", facts: [][]fact.Fact{list(ingress("shop/i", tls, principal("*")))}, want: "\n  ingress shop/i [] TLS[] any principal for any"},
		{
			name:  "an address and a principal",
			facts: [][]fact.Fact{gateway, list(ingress("shop/i", fact.IngressBackend{TLS: true, SNIHosts: []string{"cart.example"}}, byService, principal("gate.edge.td")))},
			want:  "\n  ingress shop/i [10.2.0.1/32 10.2.0.2/32] TLS[cart.example] gate.edge.sa.td for any",
		},
		{name: "a service without endpoints lets nobody in", facts: [][]fact.Fact{list(ingress("shop/i", fact.IngressBackend{}, byService))}, problems: "IngressBackend shop/i: NotFound spec.sources[0]"},
		{
			name:  "a service without endpoints lets nobody in by principal alone",
			facts: [][]fact.Fact{list(ingress("shop/i", tls, byService, principal("gate.edge.td")))}, problems: "IngressBackend shop/i: NotFound spec.sources[0]",
		},
		{
			name: "a principal of another mesh lets nobody in", facts: [][]fact.Fact{list(ingress("shop/i", tls, principal("gate.edge.other")))},
			problems: "IngressBackend shop/i: NotFound spec.sources[0].name",
		},
		{
			name: "a principal without an account or a namespace lets nobody in", facts: [][]fact.Fact{list(ingress("shop/i", tls, principal("gate.td"), principal(".edge.td"), principal("gate..td"), principal(".td")))},
			problems: `
				IngressBackend shop/i: NotFound spec.sources[0].name
				IngressBackend shop/i: NotFound spec.sources[1].name
				IngressBackend shop/i: NotFound spec.sources[2].name
				IngressBackend shop/i: NotFound spec.sources[3].name`,
		},
		{
			name: "a principal of another mesh lets nobody in by address alone", facts: [][]fact.Fact{list(ingress("shop/i", tls, byRange, principal("gate.edge.other")))},
			problems: "IngressBackend shop/i: NotFound spec.sources[1].name",
		},
		{
			name: "no caller in plaintext has a principal", facts: [][]fact.Fact{list(ingress("shop/i", fact.IngressBackend{}, byRange, principal("gate.edge.td")))},
			problems: "IngressBackend shop/i: NoEffect spec.backends[0].port.protocol",
		},
		{name: "without sources", facts: [][]fact.Fact{list(ingress("shop/i", fact.IngressBackend{}))}},
		{
			name: "by requests", facts: [][]fact.Fact{list(routes("shop/g", "/in"), opened("shop/i", func(rule *fact.IngressRule) { rule.Groups = []string{"g"} }, byRange))},
			want: "\n  ingress shop/i [192.0.2.0/24] TLS[] for /in",
		},
		{
			name: "by requests that are not there", facts: [][]fact.Fact{list(opened("shop/i", func(rule *fact.IngressRule) { rule.Groups = []string{"g"} }, byRange))},
			problems: "IngressBackend shop/i: NotFound spec.matches[0]",
		},
		{
			name: "a port that is no target", facts: [][]fact.Fact{list(opened("shop/i", func(rule *fact.IngressRule) { rule.Backends[0].Port = 80 }, byRange))},
			problems: "IngressBackend shop/i: NoSuchPort spec.backends[0].port.number",
		},
		{
			name: "a service that is not there", facts: [][]fact.Fact{list(opened("shop/i", func(rule *fact.IngressRule) { rule.Backends[0].Service = "none" }, byRange))},
			problems: "IngressBackend shop/i: NotFound spec.backends[0].name",
		},
		{
			name: "two for a port", facts: [][]fact.Fact{list(ingress("shop/a", fact.IngressBackend{}, byRange), ingress("shop/b", tls, byRange))},
			want:     "\n  ingress shop/a [192.0.2.0/24] for any\n  ingress shop/b [192.0.2.0/24] TLS[] for any",
			problems: "IngressBackend shop/b: Conflict spec.backends[0]",
		},
		{
			name: "two for a port that open it alike", facts: [][]fact.Fact{list(ingress("shop/a", tls, byRange), ingress("shop/b", tls, byRange))},
			want: "\n  ingress shop/a [192.0.2.0/24] TLS[] for any\n  ingress shop/b [192.0.2.0/24] TLS[] for any",
		},
		{name: "in a namespace that is not of the mesh", facts: [][]fact.Fact{list(ingress("out/i", fact.IngressBackend{}, byRange))}},
		{
			name:  "switched off",
			facts: [][]fact.Fact{list(settings(permissive, func(s *mesh.Settings) { s.IngressPolicy = false }), ingress("shop/i", fact.IngressBackend{}, byRange))}, problems: "IngressBackend shop/i: Disabled",
		},
	} {
		cases = append(cases, joinCase{name: tt.name, facts: tt.facts, pod: "shop/cart-1", inbound: taken(tt.want), problems: tt.problems})
	}
	runJoinCases(t, facts, cases)
}
