package catalog

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// generator makes facts at random, of few names, so that they often refer to each other
// and often to nothing.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 1))} }

func pick[T any](g generator, of ...T) T { return of[g.IntN(len(of))] }

func (g generator) namespace() string { return pick(g, "shop", "bank", "out") }
func (g generator) name() string      { return pick(g, "a", "b", "c", "d") }
func (g generator) account() fact.ServiceAccount {
	return fact.ServiceAccount{Namespace: g.namespace(), Name: pick(g, "one", "two", "a.b")}
}
func (g generator) port() uint16   { return pick[uint16](g, 80, 81, 8080) }
func (g generator) often() bool    { return g.IntN(4) > 0 }
func (g generator) created() int64 { return int64(g.IntN(3)) }

func some[T any](g generator, most int, make func() T) []T {
	var list []T
	for range g.IntN(most + 1) {
		list = append(list, make())
	}
	return list
}

func object(apiVersion, kind, namespace, name string) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
}

// factOf returns a fact about one of a few objects; one in six reports that it is gone.
func (g generator) factOf() fact.Fact {
	makers := []func() fact.Fact{
		g.settings, g.namespaceFact, g.workload, g.workload, g.workload, g.service, g.service, g.slice, g.slice, g.slice,
		g.access, g.accessPolicy, g.accessPolicy, g.tokenPolicy, g.tokenKeys, g.group, g.split, g.route, g.route, g.egress, g.ingress, g.retry, g.upstream,
		g.gateway, g.gatewayClass, g.serverCertificate, g.referenceGrant,
	}
	f := pick(g, makers...)()
	if g.IntN(6) == 0 {
		f.Content, f.Problems = nil, nil
	}
	return f
}

func (g generator) settings() fact.Fact {
	return fact.Fact{Object: object("c/v1", "MeshConfig", "osm", "config"), Content: mesh.Seal(&mesh.Settings{
		TrustDomain: pick(g, "td", "td", "other"), PermissivePolicy: g.IntN(3) == 0, InboundTLS: pick(g, mesh.Strict, mesh.Permissive),
		Egress: g.IntN(3) == 0, EgressPolicy: g.often(), IngressPolicy: g.often(), RetryPolicy: g.often(),
		PlaintextClasses: some(g, 1, func() string { return "pipy" }), TLS: mesh.TLS{Min: pick(g, "1.2", "1.3"), Max: "1.3"},
		HealthChecks: g.IntN(3) == 0, Tracing: pick(g, nil, &mesh.Tracing{Protocol: "zipkin"}, &mesh.Tracing{Protocol: "otlp"}),
	})}
}

func (g generator) namespaceFact() fact.Fact {
	name := g.namespace()
	return fact.Fact{Object: object("v1", "Namespace", "", name), Content: mesh.Seal(&fact.Namespace{
		Name: name, Member: g.often(), InboundTLS: pick(g, "", mesh.Permissive), Audit: g.IntN(3) == 0, OutboundServices: g.services(),
		DefaultAccess: pick(g, "", "", fact.Allow, fact.Deny, fact.Audit), Labels: g.labels(),
	})}
}

func (g generator) labels() map[string]string { return map[string]string{"app": pick(g, "x", "y")} }

// podLabels are labels, now and then of a pod of a gateway.
func (g generator) podLabels() map[string]string {
	all := g.labels()
	if g.IntN(5) == 0 {
		all[fact.GatewayLabel] = pick(g, "w1", "w2")
	}
	return all
}

func (g generator) gatewayClass() fact.Fact {
	return fact.Fact{Object: object(gatewayVersion, "GatewayClass", "", "k"), Content: mesh.Seal(&fact.GatewayClass{Name: "k", Class: "envoy"})}
}

func (g generator) gateway() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "w1", "w2")}
	index := -1
	return fact.Fact{Object: object(gatewayVersion, "Gateway", n.Namespace, n.Name), Content: mesh.Seal(&fact.Gateway{
		Name: n, Age: fact.Age{Created: g.created()}, Class: pick(g, "k", "k", "k", "other"),
		Listeners: some(g, 3, func() fact.GatewayListener {
			index++
			return fact.GatewayListener{
				Index: index, Name: pick(g, "l1", "l2"), Port: g.port(), Host: pick(g, "", "a.example.com", "*.example.com"), Protocol: pick(g, mesh.HTTP, mesh.HTTP, mesh.TCP), ByServerName: g.IntN(2) == 0,
				Kinds: pick(g, []fact.RouteKind{fact.HTTPRoute}, []fact.RouteKind{fact.HTTPRoute, fact.GRPCRoute}, []fact.RouteKind{fact.TCPRoute, fact.TLSRoute}), All: g.IntN(2) == 0, Same: g.IntN(2) == 0,
				Namespaces: g.selector(), Unusable: g.IntN(5) == 0, Terminates: g.IntN(2) == 0,
				Certificates: some(g, 2, func() fact.CertificateRef {
					return fact.CertificateRef{Field: "spec.listeners[0].tls.certificateRefs[0]", Secret: mesh.Name{Namespace: g.namespace(), Name: pick(g, "s1", "s2")}}
				}),
			}
		}),
	})}
}

func (g generator) serverCertificate() fact.Fact {
	content := &fact.ServerCertificate{Hosts: some(g, 2, func() string { return pick(g, "a.example.com", "b.example.com", "*.example.com", "a.b.example.com") }), Chain: mesh.DigestOf(g.IntN(3))}
	if g.IntN(5) == 0 {
		content = &fact.ServerCertificate{Flaw: &fact.Flaw{Reason: fact.ReasonInvalidCertificateRef, Message: "it is broken"}}
	}
	return fact.Fact{Object: object("v1", "Secret", g.namespace(), pick(g, "s1", "s2")), Content: mesh.Seal(content)}
}

func (g generator) referenceGrant() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: "g"}
	return fact.Fact{Object: object(gatewayVersion, "ReferenceGrant", n.Namespace, n.Name), Content: mesh.Seal(&fact.ReferenceGrant{
		Name: n, From: []fact.Referrer{{Kind: pick(g, "Gateway", "HTTPRoute"), Namespace: g.namespace()}}, Services: []string{fact.AllNames}, Secrets: []string{pick(g, fact.AllNames, "s1")},
	})}
}

// selector may select nothing.
func (g generator) selector() fact.Selector {
	return fact.NewSelector(pick(g, labels.Everything(), labels.Nothing(), labels.SelectorFromSet(g.labels())))
}

// accessPolicy is that of a namespace or of the cluster.
func (g generator) accessPolicy() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "p1", "p2")}
	policy := &fact.AccessPolicy{Name: n, Age: fact.Age{Created: g.created()}, Action: pick(g, fact.Allow, fact.Deny, fact.Audit)}
	ref := object("o/v1", "AccessPolicy", n.Namespace, n.Name)
	policy.Targets = some(g, 2, func() fact.AccessTarget {
		return pick(g, fact.AccessTarget{Pods: g.selector()}, fact.AccessTarget{Service: g.name()}, fact.AccessTarget{ServiceAccount: g.account().Name})
	})
	if g.IntN(3) == 0 {
		ref = object("o/v1", "ClusterAccessPolicy", "", n.Name)
		policy.Name.Namespace, policy.Namespaces, policy.Targets = "", g.selector(), []fact.AccessTarget{{Pods: g.selector()}}
		policy.Action = pick(g, fact.Allow, fact.Deny)
	}
	source := func() fact.PolicySource {
		selector := g.selector()
		return pick(g, fact.PolicySource{Namespaces: &selector}, fact.PolicySource{Identity: mesh.Identity{Namespace: g.namespace(), ServiceAccount: pick(g, "", "one", "two")}},
			fact.PolicySource{Identity: mesh.Identity{TrustDomain: pick(g, "td", "other"), Namespace: "bank", ServiceAccount: "one"}})
	}
	policy.Rules = some(g, 2, func() fact.PolicyRule {
		return fact.PolicyRule{
			Field: "spec.rules[0]", Everyone: g.IntN(3) == 0, Sources: some(g, 2, source), Except: some(g, 1, source), AnyPort: g.IntN(2) == 0, Ports: some(g, 2, g.port),
			Ranges: some(g, 1, func() netip.Prefix { return netip.MustParsePrefix("10.0.0.0/8") }),
			Requests: some(g, 2, func() mesh.HTTPMatch {
				return pick(g, mesh.HTTPMatch{}, mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/a"}}, mesh.HTTPMatch{Token: &mesh.TokenMatch{Issuer: pick(g, "", "i")}})
			}),
		}
	})
	return fact.Fact{Object: ref, Content: mesh.Seal(policy)}
}

func (g generator) tokenKeys() fact.Fact {
	sets := map[string]fact.KeySet{}
	for _, name := range some(g, 2, func() string { return pick(g, "a", "b") }) {
		sets[name] = fact.KeySet{Keys: some(g, 2, func() mesh.TokenKey {
			return mesh.TokenKey{Algorithm: pick(g, mesh.TokenRS256, mesh.TokenPS256, mesh.TokenEdDSA), Public: []byte("key")}
		})}
	}
	return fact.Fact{Object: object("v1", "ConfigMap", g.namespace(), fact.TokenKeysName), Content: mesh.Seal(&fact.TokenKeys{Sets: sets})}
}

func (g generator) tokenPolicy() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "p1", "p2")}
	return fact.Fact{Object: object("o/v1", "TokenPolicy", n.Namespace, n.Name), Content: mesh.Seal(&fact.TokenPolicy{Name: n, Issuers: some(g, 2, func() fact.TokenIssuer {
		if g.often() {
			return fact.TokenIssuer{Field: "spec.issuers[0]", Issuer: pick(g, "i", "j"), ConfigMapKey: pick(g, "a", "b")}
		}
		return fact.TokenIssuer{Field: "spec.issuers[0]", Issuer: pick(g, "i", "j"), Keys: some(g, 2, func() mesh.TokenKey {
			return mesh.TokenKey{Algorithm: pick(g, mesh.TokenRS256, mesh.TokenPS256, mesh.TokenEdDSA), Public: []byte("key")}
		})}
	})})}
}

// services are mostly none.
func (g generator) services() fact.Services {
	if g.often() {
		return nil
	}
	services := fact.Services(some(g, 3, func() mesh.Name {
		if g.IntN(12) == 0 {
			return mesh.Name{Namespace: fact.Any, Name: fact.Any}
		}
		return mesh.Name{Namespace: g.namespace(), Name: pick(g, g.name(), g.name(), fact.Any)}
	}))
	slices.SortFunc(services, mesh.Name.Compare)
	return slices.Compact(services)
}

func (g generator) workload() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: g.name()}
	return fact.Fact{Object: object("v1", "Pod", n.Namespace, n.Name), Content: mesh.Seal(&fact.Workload{
		Name: n, UID: "uid-" + n.String(), ServiceAccount: g.account().Name, Class: pick(g, "envoy", "envoy", "pipy", ""),
		Addresses: []netip.Addr{g.addressNear(n)}, Zone: pick(g, "", "z1"), Ended: g.IntN(8) == 0,
		Ports:            some(g, 2, func() fact.WorkloadPort { return fact.WorkloadPort{Name: pick(g, "web", ""), Number: g.port()} }),
		OutboundServices: g.services(), Labels: g.podLabels(),
	})}
}

// addressNear returns the address of the workload of a name, and now and then that of
// another or of a service.
func (g generator) addressNear(n mesh.Name) netip.Addr {
	switch g.IntN(12) {
	case 0:
		return addressOf(mesh.Name{Namespace: g.namespace(), Name: g.name()})
	case 1:
		return netip.AddrFrom4([4]byte{10, g.namespace()[0], g.name()[0], 2})
	}
	return addressOf(n)
}

// addressOf returns the address of the workload of a name.
func addressOf(n mesh.Name) netip.Addr {
	return netip.AddrFrom4([4]byte{10, n.Namespace[0], n.Name[0], 1})
}

func (g generator) service() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: g.name()}
	s := &fact.Service{Name: n, StickyClients: g.IntN(4) == 0, PreferZone: g.IntN(4) == 0}
	switch g.IntN(5) {
	case 0:
		s.Headless = true
	case 1:
		s.ExternalName = "example.com"
	default:
		s.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, n.Namespace[0], pick(g, n.Name[0], n.Name[0], 'a'), 2})}
	}
	for _, port := range []uint16{80, 81} {
		if g.often() {
			s.Ports = append(s.Ports, fact.PortSpec{
				Name: pick(g, "web", "db"), Port: port, Target: g.port(), TargetName: pick(g, "", "", "web"),
				Protocol: pick(g, mesh.HTTP, mesh.HTTP, mesh.GRPC, mesh.TCP, mesh.TCPServerFirst), Assumed: g.IntN(3) == 0,
			})
		}
	}
	return fact.Fact{Object: object("v1", "Service", n.Namespace, n.Name), Content: mesh.Seal(s)}
}

func (g generator) slice() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "s1", "s2", "s3")}
	s := &fact.EndpointSlice{Name: n, Service: g.name(), Ports: []fact.SlicePort{{Name: "web", Port: g.port()}, {Name: "db", Port: g.port()}}}
	for _, name := range []string{"a", "b", "c", "d"} {
		if g.IntN(2) == 0 {
			at := mesh.Name{Namespace: n.Namespace, Name: name}
			s.Endpoints = append(s.Endpoints, fact.SliceEndpoint{
				Addresses: []netip.Addr{g.addressNear(at)}, Workload: pick(g, name, name, name, ""),
				Ready: g.often(), Serving: g.often(), Terminating: g.IntN(4) == 0,
			})
		}
	}
	return fact.Fact{Object: object("d/v1", "EndpointSlice", n.Namespace, n.Name), Content: mesh.Seal(s)}
}

func (g generator) access() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "t1", "t2", "t3")}
	return fact.Fact{Object: object("a/v1", "TrafficTarget", n.Namespace, n.Name), Content: mesh.Seal(&fact.AccessRule{
		Name: n, Age: fact.Age{Created: g.created()}, Destination: g.account(), Sources: some(g, 3, g.account), Audit: g.IntN(4) == 0,
		Rules: some(g, 2, func() fact.AccessRoutes {
			return fact.AccessRoutes{Kind: pick(g, "HTTPRouteGroup", "TCPRoute"), Group: pick(g, "g1", "g2", "g3"), Matches: some(g, 1, func() string { return pick(g, "m1", "m2") })}
		}),
	})}
}

func (g generator) group() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "g1", "g2")}
	if g.IntN(3) == 0 {
		return fact.Fact{Object: object("s/v1", "TCPRoute", n.Namespace, n.Name), Content: mesh.Seal(&fact.RouteGroup{
			Name: n, TCP: &fact.TCPMatch{Ports: some(g, 2, g.port)},
		})}
	}
	return fact.Fact{Object: object("s/v1", "HTTPRouteGroup", n.Namespace, n.Name), Content: mesh.Seal(&fact.RouteGroup{
		Name: n, HTTP: some(g, 2, func() fact.NamedMatch {
			return fact.NamedMatch{Name: pick(g, "m1", "m2"), HTTPMatch: mesh.HTTPMatch{
				Path:    mesh.StringMatch{Regex: pick(g, "/a", "/b.*")},
				Headers: some(g, 1, func() mesh.KeyMatch { return mesh.KeyMatch{Name: "x"} }),
			}}
		}),
	})}
}

func (g generator) split() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "s1", "s2", "s3")}
	return fact.Fact{
		Object: object(pick(g, "p/v1", "p/v2"), "TrafficSplit", n.Namespace, n.Name),
		Content: mesh.Seal(&fact.Split{
			Name: n, Age: fact.Age{Created: g.created()}, Root: g.name(),
			Backends: some(g, 3, func() fact.SplitBackend { return fact.SplitBackend{Service: g.name(), Weight: uint32(g.IntN(3))} }),
			Matches:  some(g, 1, func() string { return pick(g, "g1", "g2") }),
		}),
		Problems: some(g, 1, func() mesh.Problem { return mesh.Problem{Reason: "Invalid", Message: "it is wrong"} }),
	}
}

func (g generator) route() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "r1", "r2", "r3")}
	service := func() mesh.Name { return mesh.Name{Namespace: g.namespace(), Name: g.name()} }
	kind := pick(g, fact.HTTPRoute, fact.HTTPRoute, fact.GRPCRoute, fact.TLSRoute, fact.TCPRoute)
	return fact.Fact{Object: object(gatewayVersion, string(kind), n.Namespace, n.Name), Content: mesh.Seal(&fact.Route{
		Name: n, Age: fact.Age{Created: g.created()}, Kind: kind,
		Hosts: some(g, 2, func() string { return pick(g, "a.example.com", "*.example.com") }),
		Parents: some(g, 2, func() fact.RouteParent {
			return fact.RouteParent{Service: service(), Port: pick[uint16](g, 0, 0, 80), PortName: pick(g, "", "", "http")}
		}),
		Gateways: some(g, 1, func() fact.GatewayParent {
			return fact.GatewayParent{Gateway: mesh.Name{Namespace: g.namespace(), Name: pick(g, "w1", "w2")}, Listener: pick(g, "", "", "l1"), Port: pick[uint16](g, 0, 0, 80)}
		}),
		Rules: some(g, 2, func() fact.RouteRule {
			return fact.RouteRule{
				Matches: some(g, 2, func() fact.RouteMatch {
					return fact.RouteMatch{HTTPMatch: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/a"}}, Precedence: fact.Precedence{g.IntN(3), g.IntN(2)}}
				}),
				Unusable: g.IntN(5) == 0,
				Session:  pick(g, nil, &fact.RouteSession{Name: "session"}),
				Mirrors: some(g, 1, func() fact.RouteMirror {
					return fact.RouteMirror{RouteBackend: fact.RouteBackend{Service: service(), Port: g.port()}, Numerator: 1, Denominator: 2}
				}),
				Backends: some(g, 2, func() fact.RouteBackend {
					return fact.RouteBackend{Service: service(), Port: g.port(), Weight: uint32(g.IntN(3))}
				}),
			}
		}),
	})}
}

func (g generator) egress() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "e1", "e2")}
	return fact.Fact{Object: object("o/v1", "Egress", n.Namespace, n.Name), Content: mesh.Seal(&fact.EgressRule{
		Name: n, Age: fact.Age{Created: g.created()}, Sources: some(g, 2, g.account),
		Hosts:  some(g, 2, func() string { return pick(g, "example.com", "*.example.org") }),
		Ranges: some(g, 1, func() netip.Prefix { return netip.MustParsePrefix("192.0.2.0/24") }),
		Ports: some(g, 2, func() fact.EgressPort {
			return fact.EgressPort{Number: g.port(), Protocol: pick(g, mesh.EgressHTTP, mesh.EgressTLS, mesh.EgressTCP)}
		}),
		Groups: some(g, 1, func() string { return pick(g, "g1", "g2") }), Settings: some(g, 1, func() string { return "u1" }),
	})}
}

func (g generator) ingress() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "i1", "i2")}
	return fact.Fact{Object: object("o/v1", "IngressBackend", n.Namespace, n.Name), Content: mesh.Seal(&fact.IngressRule{
		Name: n, Age: fact.Age{Created: g.created()},
		Backends: some(g, 2, func() fact.IngressBackend {
			return fact.IngressBackend{Service: g.name(), Port: g.port(), TLS: g.often()}
		}),
		Sources: some(g, 2, func() fact.IngressSource {
			return pick(g,
				fact.IngressSource{Service: mesh.Name{Namespace: g.namespace(), Name: g.name()}},
				fact.IngressSource{Range: netip.MustParsePrefix("198.51.100.0/24")},
				fact.IngressSource{Principal: pick(g, "*", "one.shop.td", "nobody")})
		}),
		Groups: some(g, 1, func() string { return pick(g, "g1", "g2") }),
	})}
}

func (g generator) retry() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "r1", "r2")}
	return fact.Fact{Object: object("o/v1", "Retry", n.Namespace, n.Name), Content: mesh.Seal(&fact.RetryRule{
		Name: n, Age: fact.Age{Created: g.created()}, Source: g.account(), Retry: mesh.Retry{On: []string{"5xx"}, Attempts: uint32(g.IntN(3)), PerTry: time.Duration(g.IntN(2))},
		Destinations: some(g, 2, func() mesh.Name { return mesh.Name{Namespace: g.namespace(), Name: g.name()} }),
	})}
}

// maybe is a limit, or none.
func maybe(g generator) *uint32 {
	if g.IntN(2) == 0 {
		return nil
	}
	return new(uint32(g.IntN(3)))
}

func (g generator) upstream() fact.Fact {
	n := mesh.Name{Namespace: g.namespace(), Name: pick(g, "u1", "u2")}
	return fact.Fact{Object: object("o/v1", "UpstreamTrafficSetting", n.Namespace, n.Name), Content: mesh.Seal(&fact.UpstreamSetting{
		Name: n, Age: fact.Age{Created: g.created()}, Host: pick(g, g.name(), g.name()+"."+g.namespace()+".svc.cluster.local", "example.com"),
		Policy: mesh.UpstreamPolicy{
			MaxConnections: maybe(g), RequestTimeout: time.Duration(g.IntN(2)) * time.Second,
			LoadBalancing: mesh.LoadBalancing{Policy: pick(g, "", mesh.Random, mesh.Maglev), PreferZone: g.IntN(4) == 0},
		},
		Limits: mesh.RateLimits{Connections: &mesh.TokenBucket{Tokens: 1, Interval: time.Second}},
	})}
}

// TestChangesGiveWhatTheFactsGive makes changes one by one and in bunches, and holds
// that the Snapshot is that of the facts alone, in whatever order they come, and
// that nothing is left of facts that are gone.
func TestChangesGiveWhatTheFactsGive(t *testing.T) {
	seeds, steps := uint64(40), 120
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			g := newGenerator(seed)
			grown := newJoin(Options{Features: features})
			facts := map[mesh.ObjectRef]fact.Fact{}
			for step := range steps {
				for range 1 + g.IntN(4) {
					f := g.factOf()
					grown.set(f)
					facts[f.Object] = f
					if f.Content == nil && len(f.Problems) == 0 {
						delete(facts, f.Object)
					}
				}
				got := grown.snapshot()
				var list []fact.Fact
				for _, f := range facts {
					list = append(list, f)
				}
				g.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
				want := BuildFor(list, Options{Features: features})
				addressesAreApart(t, got)
				// Problems are also about services that limited proxies do not know.
				for i, f := range list {
					list[i].Content = withoutOutboundServices(f.Content)
				}
				// Views of classes that lack AccessPolicies do not tell what is left out of them.
				needsAreTold(t, BuildFor(list, Options{Features: func(class string) []mesh.Feature {
					return append(features(class), mesh.FeatureAccessPolicies, mesh.FeatureTokens, mesh.FeatureGateways, mesh.FeatureTermination)
				}}), got)
				if got.Digest() != want.Digest() {
					t.Fatalf("after step %d the Snapshot is not that of its facts: %s", step, firstDifference(got, want))
				}
			}
			for _, f := range facts {
				grown.set(fact.Fact{Object: f.Object})
			}
			if got := grown.snapshot(); got.Digest() != Build(nil).Digest() {
				t.Errorf("with all facts gone there is %s", firstDifference(got, Build(nil)))
			}
		})
	}
}

// addressesAreApart holds that no two Destinations that a proxy sees are at one address
// and port.
func addressesAreApart(t *testing.T, s *fact.Snapshot) {
	t.Helper()
	for _, view := range s.Views.All() {
		at := map[netip.AddrPort]string{}
		for name, d := range view.Outbound.Destinations.All() {
			for _, address := range d.Addresses {
				where := netip.AddrPortFrom(address, d.Port)
				if other, taken := at[where]; taken {
					t.Fatalf("%s sees %s and %s at %s", view.Proxy.Name, name, other, where)
				}
				at[where] = name
			}
		}
	}
}

func firstDifference(got, want *fact.Snapshot) string {
	for _, uid := range changedViews(got.Views, want.Views) {
		was, _ := want.Views.Get(uid)
		is, _ := got.Views.Get(uid)
		return fmt.Sprintf("view %s:\n got %s\nwant %s", uid, asJSON(is), asJSON(was))
	}
	for change := range got.Problems.Diff(want.Problems) {
		was, _ := want.Problems.Get(change.Name)
		is, _ := got.Problems.Get(change.Name)
		return fmt.Sprintf("problems %s:\n got %s\nwant %s", change.Name, asJSON(is), asJSON(was))
	}
	names := slices.Concat(got.Namespaces.Names(), want.Namespaces.Names(), got.Services.Names(), want.Services.Names(), got.Workloads.Names(), want.Workloads.Names())
	return fmt.Sprintf("namespaces, services or workloads, among %v", names)
}
