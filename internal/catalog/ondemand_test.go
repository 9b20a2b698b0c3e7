package catalog

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestOnDemand calls, in random meshes whose sidecars get services on demand, what a sidecar
// that knows everything could call. Each address must be found and, once what it belongs to
// is learned, the sidecar must have the same Destination there with all Backends. An address
// that no Destination has must not be found.
func TestOnDemand(t *testing.T) {
	seeds, learned, direct := uint64(200), 0, 0
	if testing.Short() {
		seeds = 40
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
		for i, f := range list {
			list[i].Content = withoutOutboundServices(f.Content)
		}
		all := Build(list)
		for i, f := range list {
			list[i].Content = onDemand(f.Content)
		}
		j := newJoin(Options{})
		for _, f := range list {
			j.set(f)
		}
		was := j.snapshot()
		var everything fact.Used
		for _, f := range list {
			switch content := f.Content.(type) {
			case *fact.Service:
				everything.Services = append(everything.Services, content.Name)
			case *fact.Workload:
				everything.Pods = append(everything.Pods, content.Name)
			}
		}
		everything = everything.With(fact.Used{})
		for uid, whole := range all.Views.All() {
			if whole.Proxy.Gateway {
				continue
			}
			view, _ := was.Views.Get(uid)
			if n := view.Outbound.Destinations.Len(); n > 0 {
				t.Fatalf("seed %d: %s has %d Destinations before its first call", seed, uid, n)
			}
			account := fact.ServiceAccount{Namespace: whole.Proxy.Identity.Namespace, Name: whole.Proxy.Identity.ServiceAccount}
			if _, found := j.find(account, netip.MustParseAddrPort("192.0.2.1:80")); found {
				t.Fatalf("seed %d: an address outside the mesh is found", seed)
			}
			for name, d := range whole.Outbound.Destinations.All() {
				for _, address := range d.Addresses {
					used, found := j.find(account, netip.AddrPortFrom(address, d.Port))
					if !found {
						t.Fatalf("seed %d: %s does not find %s:%d of %s", seed, uid, address, d.Port, name)
					}
					if !slices.ContainsFunc(view.Outbound.Unknown, func(p netip.Prefix) bool { return p.Contains(address) }) {
						t.Fatalf("seed %d: %s does not ask about %s of %s", seed, uid, address, name)
					}
					if !slices.Contains(used.Services, d.Service.Name) {
						direct++
					}
					j.set(learn(account, used))
					is, _ := j.snapshot().Views.Get(uid)
					got, ok := is.Outbound.Destinations.Get(name)
					if !ok || got.Digest() != d.Digest() {
						t.Fatalf("seed %d: %s, which has used %+v, has for %s\n%s, want\n%s", seed, uid, used, name, asJSON(got), asJSON(d))
					}
					for of := range d.AllBackends() {
						want, has := whole.Outbound.Backends.Get(of)
						if b, ok := is.Outbound.Backends.Get(of); ok != has || ok && b.Digest() != want.Digest() {
							t.Fatalf("seed %d: %s has another Backend %s", seed, uid, of)
						}
					}
					wantPart(t, seed, is, whole)
					learned++
				}
			}
			// A person may write what the account may not call.
			j.set(learn(account, everything))
			is, _ := j.snapshot().Views.Get(uid)
			wantPart(t, seed, is, whole)
			if is.Outbound.Destinations.Len() != whole.Outbound.Destinations.Len() {
				t.Fatalf("seed %d: %s has used all services and pods, and has %d of %d Destinations", seed, uid, is.Outbound.Destinations.Len(), whole.Outbound.Destinations.Len())
			}
			j.set(learn(account, fact.Used{All: true}))
			if is, _ := j.snapshot().Views.Get(uid); is.Digest() != whole.Digest() {
				t.Fatalf("seed %d: %s has learned everything and has another View than without", seed, uid)
			}
			j.set(learn(account, fact.Used{}))
		}
	}
	if learned == 0 || direct == 0 {
		t.Errorf("%d addresses were learned, %d of them of pods", learned, direct)
	}
}

// wantPart checks that a proxy has nothing that it would not have otherwise.
func wantPart(t *testing.T, seed uint64, is, whole *mesh.View) {
	t.Helper()
	for name, d := range is.Outbound.Destinations.All() {
		if want, ok := whole.Outbound.Destinations.Get(name); !ok || d.Digest() != want.Digest() {
			t.Fatalf("seed %d: %s has %s, which it would not have otherwise", seed, is.Proxy.UID, name)
		}
	}
	for name, b := range is.Outbound.Backends.All() {
		if want, ok := whole.Outbound.Backends.Get(name); !ok || b.Digest() != want.Digest() {
			t.Fatalf("seed %d: %s has the Backend %s, which it would not have otherwise", seed, is.Proxy.UID, name)
		}
	}
}

func learn(account fact.ServiceAccount, used fact.Used) fact.Fact {
	return fact.Fact{
		Object:  object("v1", "ConfigMap", account.Namespace, fact.LearnedName),
		Content: mesh.Seal(&fact.Learned{Accounts: map[string]fact.Used{account.Name: used}}),
	}
}

func onDemand(content mesh.Digester) mesh.Digester {
	if ns, ok := content.(*fact.Namespace); ok {
		with := *ns
		with.Sealed, with.OutboundServices = mesh.Sealed{}, fact.Services{fact.OnDemand}
		return mesh.Seal(&with)
	}
	return content
}

// TestWorkOnDemand checks that a change of a service costs nothing for proxies that have not
// used it, however many.
func TestWorkOnDemand(t *testing.T) {
	var runs [2]uint64
	for i, n := range []int{2, 50} {
		j := newJoin(Options{})
		web := port(80, 8080, mesh.HTTP)
		facts := slices.Concat(list(settings(permissive), namespace("shop")), server("shop/cart", "10.0.0.1", "10.1.0.1", web), server("shop/other", "10.0.0.2", "10.1.0.2", web))
		used := map[string]fact.Used{}
		for k := range n {
			account := fmt.Sprintf("client-%d", k)
			used[account] = fact.Used{Services: fact.Services{{Namespace: "shop", Name: "other"}}}
			facts = append(facts, pod("shop/"+account, account, fmt.Sprintf("10.2.0.%d", k+1), func(w *fact.Workload) {
				w.OutboundServices = fact.Services{fact.OnDemand}
			}))
		}
		facts = append(facts, fact.Fact{Object: object("v1", "ConfigMap", "shop", fact.LearnedName), Content: mesh.Seal(&fact.Learned{Accounts: used})})
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
		if len(after.Views.Outbounds.Names()) > n+1 {
			t.Errorf("%d accounts have %d Outbounds", n, after.Views.Outbounds.Len())
		}
	}
	if runs[0] != runs[1] {
		t.Errorf("%d functions run with two proxies, and %d with 50", runs[0], runs[1])
	}
}
