package catalog

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// world makes facts at random, of few names, so that they often refer to each other
// and often to nothing.
type world struct{ *rand.Rand }

func newWorld(seed uint64) world { return world{rand.New(rand.NewPCG(seed, 1))} }

func pick[T any](w world, of ...T) T { return of[w.IntN(len(of))] }

func (w world) namespace() string { return pick(w, "shop", "bank", "out") }
func (w world) name() string      { return pick(w, "a", "b", "c", "d") }
func (w world) account() fact.ServiceAccount {
	return fact.ServiceAccount{Namespace: w.namespace(), Name: pick(w, "one", "two", "a.b")}
}
func (w world) port() uint16   { return pick[uint16](w, 80, 81, 8080) }
func (w world) often() bool    { return w.IntN(4) > 0 }
func (w world) created() int64 { return int64(w.IntN(3)) }

func some[T any](w world, most int, make func() T) []T {
	var list []T
	for range w.IntN(most + 1) {
		list = append(list, make())
	}
	return list
}

func object(apiVersion, kind, namespace, name string) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
}

// factOf returns a fact about one of a few objects; one in six reports that it is gone.
func (w world) factOf() fact.Fact {
	makers := []func() fact.Fact{
		w.settings, w.namespaceFact, w.workload, w.workload, w.workload, w.service, w.service, w.slice, w.slice, w.slice,
		w.access, w.group, w.split, w.route, w.route, w.egress, w.ingress, w.retry, w.upstream,
	}
	f := pick(w, makers...)()
	if w.IntN(6) == 0 {
		f.Content, f.Problems = nil, nil
	}
	return f
}

func (w world) settings() fact.Fact {
	return fact.Fact{Object: object("c/v1", "MeshConfig", "osm", "config"), Content: mesh.Seal(&mesh.Settings{
		TrustDomain: pick(w, "td", "td", "other"), PermissivePolicy: w.IntN(3) == 0, InboundTLS: pick(w, mesh.Strict, mesh.Permissive),
		Egress: w.IntN(3) == 0, EgressPolicy: w.often(), IngressPolicy: w.often(), RetryPolicy: w.often(),
		PlaintextClasses: some(w, 1, func() string { return "pipy" }), TLS: mesh.TLS{Min: pick(w, "1.2", "1.3"), Max: "1.3"},
		HealthChecks: w.IntN(3) == 0, Tracing: pick(w, nil, &mesh.Tracing{Protocol: "zipkin"}, &mesh.Tracing{Protocol: "otlp"}),
	})}
}

func (w world) namespaceFact() fact.Fact {
	name := w.namespace()
	return fact.Fact{Object: object("v1", "Namespace", "", name), Content: mesh.Seal(&fact.Namespace{
		Name: name, Member: w.often(), InboundTLS: pick(w, "", mesh.Permissive),
	})}
}

func (w world) workload() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: w.name()}
	return fact.Fact{Object: object("v1", "Pod", n.Namespace, n.Name), Content: mesh.Seal(&fact.Workload{
		Name: n, UID: "uid-" + n.String(), ServiceAccount: w.account().Name, Class: pick(w, "envoy", "envoy", "pipy", ""),
		Addresses: []netip.Addr{w.addressNear(n)}, Zone: pick(w, "", "z1"), Ended: w.IntN(8) == 0,
		Ports: some(w, 2, func() fact.WorkloadPort { return fact.WorkloadPort{Name: pick(w, "web", ""), Number: w.port()} }),
	})}
}

// addressNear returns the address of the workload of a name, and now and then that of
// another or of a service.
func (w world) addressNear(n mesh.Name) netip.Addr {
	switch w.IntN(12) {
	case 0:
		return addressOf(mesh.Name{Namespace: w.namespace(), Name: w.name()})
	case 1:
		return netip.AddrFrom4([4]byte{10, w.namespace()[0], w.name()[0], 2})
	}
	return addressOf(n)
}

// addressOf returns the address of the workload of a name.
func addressOf(n mesh.Name) netip.Addr {
	return netip.AddrFrom4([4]byte{10, n.Namespace[0], n.Name[0], 1})
}

func (w world) service() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: w.name()}
	s := &fact.Service{Name: n, StickyClients: w.IntN(4) == 0, PreferZone: w.IntN(4) == 0}
	switch w.IntN(5) {
	case 0:
		s.Headless = true
	case 1:
		s.ExternalName = "example.com"
	default:
		s.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, n.Namespace[0], pick(w, n.Name[0], n.Name[0], 'a'), 2})}
	}
	for _, port := range []uint16{80, 81} {
		if w.often() {
			s.Ports = append(s.Ports, fact.PortSpec{
				Name: pick(w, "web", "db"), Port: port, Target: w.port(), TargetName: pick(w, "", "", "web"),
				Protocol: pick(w, mesh.HTTP, mesh.HTTP, mesh.GRPC, mesh.TCP, mesh.TCPServerFirst),
			})
		}
	}
	return fact.Fact{Object: object("v1", "Service", n.Namespace, n.Name), Content: mesh.Seal(s)}
}

func (w world) slice() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "s1", "s2", "s3")}
	s := &fact.EndpointSlice{Name: n, Service: w.name(), Ports: []fact.SlicePort{{Name: "web", Port: w.port()}, {Name: "db", Port: w.port()}}}
	for _, name := range []string{"a", "b", "c", "d"} {
		if w.IntN(2) == 0 {
			at := mesh.Name{Namespace: n.Namespace, Name: name}
			s.Endpoints = append(s.Endpoints, fact.SliceEndpoint{
				Addresses: []netip.Addr{w.addressNear(at)}, Workload: pick(w, name, name, name, ""),
				Ready: w.often(), Serving: w.often(), Terminating: w.IntN(4) == 0,
			})
		}
	}
	return fact.Fact{Object: object("d/v1", "EndpointSlice", n.Namespace, n.Name), Content: mesh.Seal(s)}
}

func (w world) access() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "t1", "t2", "t3")}
	return fact.Fact{Object: object("a/v1", "TrafficTarget", n.Namespace, n.Name), Content: mesh.Seal(&fact.AccessRule{
		Name: n, Age: fact.Age{Created: w.created()}, Destination: w.account(), Sources: some(w, 3, w.account),
		Rules: some(w, 2, func() fact.AccessRoutes {
			return fact.AccessRoutes{Kind: pick(w, "HTTPRouteGroup", "TCPRoute"), Group: pick(w, "g1", "g2", "g3"), Matches: some(w, 1, func() string { return pick(w, "m1", "m2") })}
		}),
	})}
}

func (w world) group() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "g1", "g2")}
	if w.IntN(3) == 0 {
		return fact.Fact{Object: object("s/v1", "TCPRoute", n.Namespace, n.Name), Content: mesh.Seal(&fact.RouteGroup{
			Name: n, TCP: &fact.TCPMatch{Ports: some(w, 2, w.port)},
		})}
	}
	return fact.Fact{Object: object("s/v1", "HTTPRouteGroup", n.Namespace, n.Name), Content: mesh.Seal(&fact.RouteGroup{
		Name: n, HTTP: some(w, 2, func() fact.NamedMatch {
			return fact.NamedMatch{Name: pick(w, "m1", "m2"), HTTPMatch: mesh.HTTPMatch{
				Path:    mesh.StringMatch{Regex: pick(w, "/a", "/b.*")},
				Headers: some(w, 1, func() mesh.KeyMatch { return mesh.KeyMatch{Name: "x"} }),
			}}
		}),
	})}
}

func (w world) split() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "s1", "s2", "s3")}
	return fact.Fact{
		Object: object(pick(w, "p/v1", "p/v2"), "TrafficSplit", n.Namespace, n.Name),
		Content: mesh.Seal(&fact.Split{
			Name: n, Age: fact.Age{Created: w.created()}, Root: w.name(),
			Backends: some(w, 3, func() fact.SplitBackend { return fact.SplitBackend{Service: w.name(), Weight: uint32(w.IntN(3))} }),
			Matches:  some(w, 1, func() string { return pick(w, "g1", "g2") }),
		}),
		Problems: some(w, 1, func() mesh.Problem { return mesh.Problem{Reason: "Invalid", Message: "it is wrong"} }),
	}
}

func (w world) route() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "r1", "r2", "r3")}
	service := func() mesh.Name { return mesh.Name{Namespace: w.namespace(), Name: w.name()} }
	kind := pick(w, fact.HTTPRoute, fact.HTTPRoute, fact.GRPCRoute, fact.TLSRoute, fact.TCPRoute)
	return fact.Fact{Object: object(gatewayVersion, string(kind), n.Namespace, n.Name), Content: mesh.Seal(&fact.Route{
		Name: n, Age: fact.Age{Created: w.created()}, Kind: kind,
		Hosts: some(w, 2, func() string { return pick(w, "a.example.com", "*.example.com") }),
		Parents: some(w, 2, func() fact.RouteParent {
			return fact.RouteParent{Service: service(), Port: pick[uint16](w, 0, 0, 80), PortName: pick(w, "", "", "http")}
		}),
		Rules: some(w, 2, func() fact.RouteRule {
			return fact.RouteRule{
				Matches: some(w, 2, func() fact.RouteMatch {
					return fact.RouteMatch{HTTPMatch: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/a"}}, Precedence: fact.Precedence{w.IntN(3), w.IntN(2)}}
				}),
				Unusable: w.IntN(5) == 0,
				Mirrors: some(w, 1, func() fact.RouteMirror {
					return fact.RouteMirror{RouteBackend: fact.RouteBackend{Service: service(), Port: w.port()}, Numerator: 1, Denominator: 2}
				}),
				Backends: some(w, 2, func() fact.RouteBackend {
					return fact.RouteBackend{Service: service(), Port: w.port(), Weight: uint32(w.IntN(3))}
				}),
			}
		}),
	})}
}

func (w world) egress() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "e1", "e2")}
	return fact.Fact{Object: object("o/v1", "Egress", n.Namespace, n.Name), Content: mesh.Seal(&fact.EgressRule{
		Name: n, Age: fact.Age{Created: w.created()}, Sources: some(w, 2, w.account),
		Hosts:  some(w, 2, func() string { return pick(w, "example.com", "*.example.org") }),
		Ranges: some(w, 1, func() netip.Prefix { return netip.MustParsePrefix("192.0.2.0/24") }),
		Ports: some(w, 2, func() fact.EgressPort {
			return fact.EgressPort{Number: w.port(), Protocol: pick(w, mesh.EgressHTTP, mesh.EgressTLS, mesh.EgressTCP)}
		}),
		Groups: some(w, 1, func() string { return pick(w, "g1", "g2") }), Settings: some(w, 1, func() string { return "u1" }),
	})}
}

func (w world) ingress() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "i1", "i2")}
	return fact.Fact{Object: object("o/v1", "IngressBackend", n.Namespace, n.Name), Content: mesh.Seal(&fact.IngressRule{
		Name: n, Age: fact.Age{Created: w.created()},
		Backends: some(w, 2, func() fact.IngressBackend {
			return fact.IngressBackend{Service: w.name(), Port: w.port(), TLS: w.often()}
		}),
		Sources: some(w, 2, func() fact.IngressSource {
			return pick(w,
				fact.IngressSource{Service: mesh.Name{Namespace: w.namespace(), Name: w.name()}},
				fact.IngressSource{Range: netip.MustParsePrefix("198.51.100.0/24")},
				fact.IngressSource{Principal: pick(w, "*", "one.shop.td", "nobody")})
		}),
		Groups: some(w, 1, func() string { return pick(w, "g1", "g2") }),
	})}
}

func (w world) retry() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "r1", "r2")}
	return fact.Fact{Object: object("o/v1", "Retry", n.Namespace, n.Name), Content: mesh.Seal(&fact.RetryRule{
		Name: n, Age: fact.Age{Created: w.created()}, Source: w.account(), Retry: mesh.Retry{On: []string{"5xx"}, Attempts: uint32(w.IntN(3)), PerTry: time.Duration(w.IntN(2))},
		Destinations: some(w, 2, func() mesh.Name { return mesh.Name{Namespace: w.namespace(), Name: w.name()} }),
	})}
}

// maybe is a limit, or none.
func maybe(w world) *uint32 {
	if w.IntN(2) == 0 {
		return nil
	}
	return new(uint32(w.IntN(3)))
}

func (w world) upstream() fact.Fact {
	n := mesh.Name{Namespace: w.namespace(), Name: pick(w, "u1", "u2")}
	return fact.Fact{Object: object("o/v1", "UpstreamTrafficSetting", n.Namespace, n.Name), Content: mesh.Seal(&fact.UpstreamSetting{
		Name: n, Age: fact.Age{Created: w.created()}, Host: pick(w, w.name(), w.name()+"."+w.namespace()+".svc.cluster.local", "example.com"),
		Policy: mesh.UpstreamPolicy{
			MaxConnections: maybe(w), RequestTimeout: time.Duration(w.IntN(2)) * time.Second,
			LoadBalancing: mesh.LoadBalancing{Policy: pick(w, "", mesh.Random, mesh.Maglev), PreferZone: w.IntN(4) == 0},
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
			w := newWorld(seed)
			grown := newJoin(features)
			facts := map[mesh.ObjectRef]fact.Fact{}
			for step := range steps {
				for range 1 + w.IntN(4) {
					f := w.factOf()
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
				w.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
				want := BuildFor(list, features)
				addressesAreApart(t, got)
				needsAreTold(t, got)
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
	for change := range got.Views.Diff(want.Views) {
		was, _ := want.Views.Get(change.Name)
		is, _ := got.Views.Get(change.Name)
		return fmt.Sprintf("view %s:\n got %s\nwant %s", change.Name, asJSON(is), asJSON(was))
	}
	for change := range got.Problems.Diff(want.Problems) {
		was, _ := want.Problems.Get(change.Name)
		is, _ := got.Problems.Get(change.Name)
		return fmt.Sprintf("problems %s:\n got %s\nwant %s", change.Name, asJSON(is), asJSON(was))
	}
	names := slices.Concat(got.Services.Names(), want.Services.Names(), got.Workloads.Names(), want.Workloads.Names())
	return fmt.Sprintf("services or workloads, among %v", names)
}
