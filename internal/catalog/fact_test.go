package catalog

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The builders of facts take names as namespace/name, and functions that change what
// is usual.

func factOf[C interface {
	mesh.Digester
	comparable
}](kind, name string, content C, edits []func(C)) fact.Fact {
	for _, edit := range edits {
		edit(content)
	}
	n := parseName(name)
	return fact.Fact{Object: object("v1", kind, n.Namespace, n.Name), Content: seal(content)}
}

// seal is mesh.Seal for any content.
func seal(content mesh.Digester) mesh.Digester {
	switch c := content.(type) {
	case *mesh.Settings:
		return mesh.Seal(c)
	case *fact.Namespace:
		return mesh.Seal(c)
	case *fact.Workload:
		return mesh.Seal(c)
	case *fact.Service:
		return mesh.Seal(c)
	case *fact.EndpointSlice:
		return mesh.Seal(c)
	case *fact.AccessPolicy:
		return mesh.Seal(c)
	case *fact.TokenPolicy:
		return mesh.Seal(c)
	case *fact.TokenKeys:
		return mesh.Seal(c)
	case *fact.AccessRule:
		return mesh.Seal(c)
	case *fact.RouteGroup:
		return mesh.Seal(c)
	case *fact.Split:
		return mesh.Seal(c)
	case *fact.Route:
		return mesh.Seal(c)
	case *fact.ReferenceGrant:
		return mesh.Seal(c)
	case *fact.EgressRule:
		return mesh.Seal(c)
	case *fact.IngressRule:
		return mesh.Seal(c)
	case *fact.RetryRule:
		return mesh.Seal(c)
	case *fact.UpstreamSetting:
		return mesh.Seal(c)
	case *fact.Gateway:
		return mesh.Seal(c)
	case *fact.GatewayClass:
		return mesh.Seal(c)
	case *fact.ServerCertificate:
		return mesh.Seal(c)
	}
	panic(fmt.Sprintf("no content: %T", content))
}

// gone is the end of a fact's object.
func gone(f fact.Fact) fact.Fact { return fact.Fact{Object: f.Object} }

// settings are those of a mesh where rules say who may call, and all kinds count.
func settings(edits ...func(*mesh.Settings)) fact.Fact {
	return factOf("MeshConfig", "osm/config", &mesh.Settings{
		TrustDomain: "td", InboundTLS: mesh.Strict, EgressPolicy: true, IngressPolicy: true, RetryPolicy: true, TLS: mesh.TLS{Min: "1.3", Max: "1.3"},
	}, edits)
}

func permissive(s *mesh.Settings) { s.PermissivePolicy = true }
func open(s *mesh.Settings)       { s.Egress = true }

func namespace(name string, edits ...func(*fact.Namespace)) fact.Fact {
	return factOf("Namespace", "/"+name, &fact.Namespace{Name: name, Member: true}, edits)
}

// pod is one with a sidecar, and with the key uid-namespace/name.
func pod(name, account, address string, edits ...func(*fact.Workload)) fact.Fact {
	return factOf("Pod", name, &fact.Workload{
		Name: parseName(name), UID: "uid-" + name, ServiceAccount: account, Class: "envoy", Addresses: addresses(address),
	}, edits)
}

func addresses(list ...string) []netip.Addr {
	var made []netip.Addr
	for _, address := range list {
		if address != "" {
			made = append(made, netip.MustParseAddr(address))
		}
	}
	return made
}

// service has a virtual address, and is headless without.
func service(name, address string, ports ...fact.PortSpec) fact.Fact {
	return factOf("Service", name, &fact.Service{
		Name: parseName(name), Addresses: addresses(address), Headless: address == "", Ports: ports,
	}, nil)
}

// port is a port of a service, by the name of its protocol.
func port(number, target uint16, protocol mesh.Protocol) fact.PortSpec {
	return fact.PortSpec{Name: string(protocol), Port: number, Target: target, Protocol: protocol}
}

// portNamed gives a port another name.
func portNamed(name string, p fact.PortSpec) fact.PortSpec {
	p.Name = name
	return p
}

// slice is one of endpoints of a service, at the targets of ports.
func slice(service string, ports []fact.PortSpec, endpoints ...fact.SliceEndpoint) fact.Fact {
	s := &fact.EndpointSlice{Name: parseName(service + "-1"), Service: parseName(service).Name, Endpoints: endpoints}
	for _, p := range ports {
		s.Ports = append(s.Ports, fact.SlicePort{Name: p.Name, Port: p.Target})
	}
	return factOf("EndpointSlice", service+"-1", s, nil)
}

// another is a slice of the same service.
func another(name string, f fact.Fact) fact.Fact {
	f.Object.Name = name
	return f
}

func ready(workload, address string) fact.SliceEndpoint {
	return fact.SliceEndpoint{Workload: workload, Addresses: addresses(address), Ready: true, Serving: true}
}

func ending(workload, address string) fact.SliceEndpoint {
	return fact.SliceEndpoint{Workload: workload, Addresses: addresses(address), Serving: true, Terminating: true}
}

// server is a service with one pod of its name, of the service account of that name.
func server(name, virtual, address string, ports ...fact.PortSpec) []fact.Fact {
	n := parseName(name)
	return []fact.Fact{
		pod(name+"-1", n.Name, address), service(name, virtual, ports...), slice(name, ports, ready(n.Name+"-1", address)),
	}
}

// allow lets sources, as namespace/name, call the pods of an account by groups, as
// kind/name or kind/name/match.
func allow(name, account string, sources []string, groups ...string) fact.Fact {
	rule := &fact.AccessRule{Name: parseName(name), Destination: parseName(account)}
	for _, source := range sources {
		rule.Sources = append(rule.Sources, parseName(source))
	}
	for _, group := range groups {
		parts := strings.Split(group, "/")
		rule.Rules = append(rule.Rules, fact.AccessRoutes{Kind: parts[0], Group: parts[1], Matches: parts[2:]})
	}
	return factOf("TrafficTarget", name, rule, nil)
}

// routes are an HTTPRouteGroup of matches, each the name and the path.
func routes(name string, paths ...string) fact.Fact {
	group := &fact.RouteGroup{Name: parseName(name)}
	for _, path := range paths {
		group.HTTP = append(group.HTTP, fact.NamedMatch{Name: strings.Trim(path, "/."), HTTPMatch: mesh.HTTPMatch{Path: mesh.StringMatch{Regex: path}}})
	}
	return factOf("HTTPRouteGroup", name, group, nil)
}

func tcpRoute(name string, ports ...uint16) fact.Fact {
	return factOf("TCPRoute", name, &fact.RouteGroup{Name: parseName(name), TCP: &fact.TCPMatch{Ports: ports}}, nil)
}

// split has shares of service=weight.
func split(name, root string, shares string, edits ...func(*fact.Split)) fact.Fact {
	s := &fact.Split{Name: parseName(name), Root: root}
	for share := range strings.FieldsSeq(shares) {
		var weight uint32
		backend, text, _ := strings.Cut(share, "=")
		fmt.Sscan(text, &weight)
		s.Backends = append(s.Backends, fact.SplitBackend{Service: backend, Weight: weight})
	}
	return factOf("TrafficSplit", name, s, edits)
}

// The rest writes what came of the facts, a line for each thing.

func outboundText(o *mesh.Outbound) string {
	var lines []string
	for _, name := range o.Destinations.Names() {
		d, _ := o.Destinations.Get(name)
		line := fmt.Sprintf("%s %s at %v:%d", name, d.Protocol, d.Addresses, d.Port)
		if len(d.HashOn) > 0 {
			line += fmt.Sprintf(" hash %v", d.HashOn)
		}
		lines = append(lines, line)
		for _, route := range d.Routes {
			line := "  " + matchText(route.Match) + " -> " + sharesText(route.Backends)
			if route.Name() != "" {
				line += " by " + route.Name()
			}
			if route.Timeout != 0 {
				line += " timeout " + route.Timeout.String()
			}
			for _, m := range route.Mirrors {
				line += " mirrored to " + m.Backend
			}
			if s := route.Session; s != nil {
				line += " session " + s.Name() + " at " + s.Path
			}
			if route.Redirect != nil {
				line += fmt.Sprintf(" redirect %d", route.Redirect.Status)
			}
			if route.Retry != nil {
				line += fmt.Sprintf(" retry %d", route.Retry.Attempts)
			}
			lines = append(lines, line)
		}
		if !d.Protocol.IsHTTP() {
			lines = append(lines, "  -> "+sharesText(d.Backends))
		}
	}
	for _, name := range o.Backends.Names() {
		b, _ := o.Backends.Get(name)
		line := fmt.Sprintf("%s =", name)
		if b.ExternalName != "" {
			line += " " + b.ExternalName
		}
		for _, e := range b.Endpoints {
			line += fmt.Sprintf(" %v:%d/%s", e.Addresses, e.Port, cmp.Or(e.ServerName, "plaintext"))
			if e.Draining {
				line += "/draining"
			}
		}
		if b.Policy.MaxConnections != nil {
			line += fmt.Sprintf(" max %d", *b.Policy.MaxConnections)
		}
		lines = append(lines, line)
	}
	return cmp.Or(strings.Join(lines, "\n"), "nothing")
}

func sharesText(shares []mesh.WeightedBackend) string {
	if len(shares) == 0 {
		return "nothing"
	}
	var list []string
	for _, share := range shares {
		list = append(list, fmt.Sprintf("%s*%d", share.Backend, share.Weight))
	}
	return strings.Join(list, " ")
}

func matchText(m mesh.HTTPMatch) string {
	text := cmp.Or(m.Path.Regex, m.Path.Exact, m.Path.Prefix, "any")
	if len(m.Methods) > 0 {
		text += " " + strings.Join(m.Methods, "|")
	}
	return text
}

func matchesText(matches []mesh.HTTPMatch) string {
	var list []string
	for _, m := range matches {
		list = append(list, matchText(m))
	}
	return strings.Join(list, ",")
}

func identitiesText(ids []mesh.Identity) string {
	var list []string
	for _, id := range ids {
		list = append(list, id.DNSName())
	}
	return strings.Join(list, ",")
}

func inboundText(in *mesh.Inbound) string {
	lines := []string{string(in.TLS), "others from " + accessText(in.Others)}
	for _, p := range in.Ports {
		line := fmt.Sprintf("%d %s for %v from %s", p.Port, p.Protocol, p.Services, accessText(p.Access))
		if p.Limits.Connections != nil {
			line += fmt.Sprintf(" limit %d", p.Limits.Connections.Tokens)
		}
		lines = append(lines, line)
		for _, i := range p.Ingress {
			line := fmt.Sprintf("  ingress %s %v", i.Origin.Name(), i.Ranges)
			if i.TLS {
				line += fmt.Sprintf(" TLS%v", i.SNIHosts)
			}
			if i.AnyPrincipal {
				line += " any principal"
			}
			lines = append(lines, strings.TrimRight(line+" "+identitiesText(i.Principals), " ")+" for "+matchesText(i.Requests))
		}
	}
	return strings.Join(lines, "\n")
}

func accessText(a mesh.Access) string {
	list := []string{}
	switch {
	case a.Audit:
		list = append(list, "anyone, audited")
	case a.Anyone:
		list = append(list, "anyone")
	}
	for _, rule := range a.Rules {
		list = append(list, fmt.Sprintf("%s(%s: %s)", rule.Origin.Name(), identitiesText(rule.Sources), matchesText(rule.Requests)))
	}
	return cmp.Or(strings.Join(list, " "), "nobody")
}

func egressText(e *mesh.Egress) string {
	lines := []string{"closed"}
	if e.AllowAll {
		lines[0] = "open"
	}
	for _, p := range e.Ports {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d %s %s", p.Port, p.Protocol, strings.Trim(fmt.Sprint(p.Ranges), "[]"))))
		for _, host := range p.Hosts {
			line := "  " + host.Host + " for " + matchesText(host.Matches)
			for _, within := range host.Within {
				line += fmt.Sprintf(" at %v for %s", within.Ranges, matchesText(within.Matches))
			}
			if host.Policy.MaxConnections != nil {
				line += fmt.Sprintf(" max %d", *host.Policy.MaxConnections)
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// problemsText has a line for each Problem, without its message, and holds that
// there is one.
func problemsText(t *testing.T, s *fact.Snapshot) string {
	t.Helper()
	var lines []string
	for _, name := range s.Problems.Names() {
		problems, _ := s.Problems.Get(name)
		if name != problems.Object.String() {
			t.Errorf("the Problems of %s are called %q", problems.Object, name)
		}
		for _, p := range problems.List {
			if p.Object != problems.Object || p.Message == "" {
				t.Errorf("a Problem of %s lacks its object or its message: %+v", problems.Object, p)
			}
			lines = append(lines, strings.TrimSpace(name+": "+p.Reason+" "+p.Field))
		}
	}
	return strings.Join(lines, "\n")
}

// joinCase is facts and what must come of them, as the functions above write it. What
// is empty is not looked at, but for the Problems: there must be no others.
type joinCase struct {
	name  string
	facts [][]fact.Fact
	// pod is whose View is looked at; empty means shop/web-1.
	pod      string
	outbound string
	inbound  string
	egress   string
	problems string
}

// list is facts, for a joinCase.
func list(facts ...fact.Fact) []fact.Fact { return facts }

func runJoinCases(t *testing.T, base []fact.Fact, cases []joinCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			s := Build(slices.Concat(base, slices.Concat(tt.facts...)))
			view, ok := s.Views.Get("uid-" + cmp.Or(tt.pod, "shop/web-1"))
			if !ok {
				t.Fatalf("there is no View of %s, only %v", tt.pod, s.Views.Names())
			}
			for what, text := range map[string]struct{ got, want string }{
				"outbound": {outboundText(view.Outbound), tt.outbound},
				"inbound":  {inboundText(view.Inbound), tt.inbound},
				"egress":   {egressText(view.Egress), tt.egress},
				"problems": {problemsText(t, s), tt.problems},
			} {
				want := unindented(text.want)
				if diff := gocmp.Diff(want, strings.Split(text.got, "\n")); diff != "" && (text.want != "" || what == "problems" && text.got != "") {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
		})
	}
}

// unindented returns the lines of a text without the tabs that make it readable here.
func unindented(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], "\t")
	}
	return lines
}

// parseName reads namespace/name.
func parseName(text string) mesh.Name {
	namespace, name, _ := strings.Cut(text, "/")
	return mesh.Name{Namespace: namespace, Name: name}
}
