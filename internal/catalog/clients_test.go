package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestOutboundServices checks, in random meshes, that a proxy that is limited to some
// services has what it would have otherwise, without the Destinations of the others and
// the Backends that only these use, and that nothing else of its View changes.
func TestOutboundServices(t *testing.T) {
	seeds, limited, less := uint64(300), 0, 0
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		g := newGenerator(seed)
		facts := map[mesh.ObjectRef]fact.Fact{}
		for range 120 {
			if f := g.factOf(); f.Content != nil {
				facts[f.Object] = f
			}
		}
		list := slices.Collect(maps.Values(facts))
		got := Build(list)
		for i, f := range list {
			list[i].Content = withoutOutboundServices(f.Content)
		}
		all := Build(list)
		for uid, view := range got.Views.All() {
			whole, _ := all.Views.Get(uid)
			services := outboundServices(facts, view.Proxy.Name)
			if services == nil || services.All() {
				if view.Digest() != whole.Digest() {
					t.Fatalf("seed %d: the View of %s, which is not limited, changes", seed, uid)
				}
				continue
			}
			if view.Proxy.Gateway {
				if view.Digest() != whole.Digest() {
					t.Fatalf("seed %d: the View of %s, a gateway, changes", seed, uid)
				}
				continue
			}
			limited++
			if view.Egress.Digest() != whole.Egress.Digest() || view.Inbound.Digest() != whole.Inbound.Digest() {
				t.Fatalf("seed %d: the Inbound or the Egress of %s changes", seed, uid)
			}
			backends := map[string]bool{}
			for name, d := range whole.Outbound.Destinations.All() {
				known := services.Has(d.Service.Name)
				if strings.HasPrefix(name, "pod/") {
					known = slices.ContainsFunc(servicesOfPod(facts, d.Service.Name), services.Has)
				}
				kept, ok := view.Outbound.Destinations.Get(name)
				switch {
				case ok != known:
					t.Fatalf("seed %d: %s, limited to %s: its Outbound has %s: %v", seed, uid, services, name, ok)
				case !known:
					less++
					continue
				case kept.Digest() != d.Digest():
					t.Fatalf("seed %d: %s is\n%s for %s, want\n%s", seed, name, asJSON(kept), uid, asJSON(d))
				}
				for b := range d.AllBackends() {
					backends[b] = true
				}
			}
			for name, b := range view.Outbound.Backends.All() {
				if of, ok := whole.Outbound.Backends.Get(name); !ok || of.Digest() != b.Digest() {
					t.Fatalf("seed %d: %s has another Backend %s", seed, uid, name)
				}
				delete(backends, name)
			}
			for name := range backends {
				if _, ok := whole.Outbound.Backends.Get(name); ok {
					t.Fatalf("seed %d: %s lacks the Backend %s", seed, uid, name)
				}
			}
		}
	}
	if limited == 0 || less == 0 {
		t.Errorf("%d Views are limited, and lack %d Destinations", limited, less)
	}
}

func withoutOutboundServices(content mesh.Digester) mesh.Digester {
	switch c := content.(type) {
	case *fact.Namespace:
		all := *c
		all.Sealed, all.OutboundServices = mesh.Sealed{}, nil
		return mesh.Seal(&all)
	case *fact.Workload:
		all := *c
		all.Sealed, all.OutboundServices = mesh.Sealed{}, nil
		return mesh.Seal(&all)
	}
	return content
}

// outboundServices returns a pod's own, or its namespace's.
func outboundServices(facts map[mesh.ObjectRef]fact.Fact, pod mesh.Name) fact.Services {
	if w := facts[object("v1", "Pod", pod.Namespace, pod.Name)].Content.(*fact.Workload); w.OutboundServices != nil {
		return w.OutboundServices
	}
	return facts[object("v1", "Namespace", "", pod.Namespace)].Content.(*fact.Namespace).OutboundServices
}

func servicesOfPod(facts map[mesh.ObjectRef]fact.Fact, pod mesh.Name) (services []mesh.Name) {
	for _, f := range facts {
		if s, ok := f.Content.(*fact.EndpointSlice); ok && s.Namespace == pod.Namespace &&
			slices.ContainsFunc(s.Endpoints, func(e fact.SliceEndpoint) bool { return e.Workload == pod.Name }) {
			services = append(services, mesh.Name{Namespace: s.Namespace, Name: s.Service})
		}
	}
	return services
}

// TestWorkOfLimits checks that a change of a service costs nothing for proxies that are
// limited to others, however many.
func TestWorkOfLimits(t *testing.T) {
	var runs [2]uint64
	for i, n := range []int{2, 50} {
		j := newJoin(Options{})
		web := port(80, 8080, mesh.HTTP)
		facts := slices.Concat(list(settings(permissive), namespace("shop")), server("shop/cart", "10.0.0.1", "10.1.0.1", web), server("shop/other", "10.0.0.2", "10.1.0.2", web))
		for k := range n {
			// Each with a list of its own.
			facts = append(facts, pod(fmt.Sprintf("shop/client-%d", k), "client", fmt.Sprintf("10.2.0.%d", k+1), func(w *fact.Workload) {
				w.OutboundServices = fact.Services{{Namespace: "shop", Name: "other"}, {Namespace: "shop", Name: fmt.Sprintf("z%d", k)}}
			}))
		}
		for _, f := range facts {
			j.set(f)
		}
		before := j.snapshot()
		start := j.graph.Runs()
		j.set(slice("shop/cart", []fact.PortSpec{web}, ready("cart-1", "10.1.0.1"), ready("client-0", "10.2.0.1")))
		after := j.snapshot()
		runs[i] = j.graph.Runs() - start
		for k := range n {
			uid := fmt.Sprintf("uid-shop/client-%d", k)
			was, _ := before.Views.Get(uid)
			is, _ := after.Views.Get(uid)
			if was.Outbound.Digest() != is.Outbound.Digest() || is.Outbound.Destinations.Len() != 1 {
				t.Errorf("the Outbound of %s has %d Destinations, and has changed: %v", uid, is.Outbound.Destinations.Len(), was.Outbound.Digest() != is.Outbound.Digest())
			}
		}
	}
	if runs[0] != runs[1] {
		t.Errorf("%d functions run with two proxies, and %d with 50", runs[0], runs[1])
	}
}
