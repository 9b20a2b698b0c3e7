package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func viewOf(t *testing.T, s *fact.Snapshot, pod string) *mesh.View {
	t.Helper()
	view, ok := s.Views.Get("uid-" + pod)
	if !ok {
		t.Fatalf("there is no View of %s", pod)
	}
	return view
}

// TestShared checks that proxies share equal parts by pointer.
func TestShared(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	replicas := list(pod("shop/cart-1", "cart", "10.1.0.2"), pod("shop/cart-2", "cart", "10.1.0.3"), service("shop/cart", "10.96.0.2", web),
		slice("shop/cart", []fact.PortSpec{web}, ready("cart-1", "10.1.0.2"), ready("cart-2", "10.1.0.3")))
	for _, policy := range []bool{true, false} {
		s := Build(slices.Concat(town(func(s *mesh.Settings) { s.PermissivePolicy = policy }), replicas,
			list(routes("shop/g", "/"), allow("shop/t", "shop/cart", []string{"shop/cart"}, "HTTPRouteGroup/g"), pod("shop/web-2", "web", "10.1.0.9"))))
		one, two, client, other := viewOf(t, s, "shop/cart-1"), viewOf(t, s, "shop/cart-2"), viewOf(t, s, "shop/web-1"), viewOf(t, s, "shop/web-2")
		if one.Inbound != two.Inbound || client.Inbound != other.Inbound {
			t.Errorf("permissive %t: replicas do not share what they take", policy)
		}
		if one.Inbound == client.Inbound {
			t.Errorf("permissive %t: a server takes what a client takes", policy)
		}
		if one.Outbound != two.Outbound || one.Egress != two.Egress || one.Settings != client.Settings {
			t.Errorf("permissive %t: replicas do not share what they call", policy)
		}
		if shared := one.Outbound == client.Outbound; shared != policy {
			t.Errorf("permissive %t: do proxies of two accounts share what they call: %t", policy, shared)
		}
	}
}

// TestRetriedAreTheirOwn checks that only the account of a Retry has different Destinations.
func TestRetriedAreTheirOwn(t *testing.T) {
	s := Build(slices.Concat(town(), server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.HTTP)),
		list(pod("shop/web-2", "web", "10.1.0.9"), pod("shop/b", "b", "10.1.0.8"), retry("shop/r", "shop/web", 3, 1, "shop/cart"), retry("shop/sql", "shop/b", 3, 1, "shop/db")),
		// Connections are not retried.
		server("shop/db", "10.96.0.3", "10.1.0.3", port(5432, 5432, mesh.TCP))))
	if one, two := viewOf(t, s, "shop/web-1").Outbound, viewOf(t, s, "shop/web-2").Outbound; one != two || one.Scope != "shop/web" {
		t.Errorf("pods of the account have %q and %q", one.Scope, two.Scope)
	}
	if b, cart := viewOf(t, s, "shop/b").Outbound, viewOf(t, s, "shop/cart-1").Outbound; b != cart || b.Scope != "*" {
		t.Errorf("pods of the others have %q and %q", b.Scope, cart.Scope)
	}
}

// TestWhatChangesIsAnother makes changes, and checks which Views are new, and that unchanged parts
// are the same pointers.
func TestWhatChangesIsAnother(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	base := slices.Concat(list(settings(), namespace("shop"), namespace("bank"), pod("shop/web-1", "web", "10.1.0.1"), pod("bank/teller", "teller", "10.1.9.9")),
		server("shop/cart", "10.96.0.2", "10.1.0.2", web), server("bank/vault", "10.96.0.3", "10.1.0.3", web),
		list(routes("shop/g", "/"), allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/g"),
			routes("bank/g", "/"), allow("bank/t", "bank/vault", []string{"bank/teller"}, "HTTPRouteGroup/g")))
	const cart, client, vault, teller = "uid-shop/cart-1", "uid-shop/web-1", "uid-bank/vault-1", "uid-bank/teller"
	all := []string{teller, vault, cart, client}
	for _, tt := range []struct {
		what  string
		facts []fact.Fact
		// other are the proxies with a new View, and outbound those with a new Outbound.
		other, outbound []string
	}{
		{"nothing", base, nil, nil},
		{"an endpoint", list(pod("shop/cart-2", "cart", "10.1.0.7"), slice("shop/cart", []fact.PortSpec{web}, ready("cart-1", "10.1.0.2"), ready("cart-2", "10.1.0.7"))), []string{"uid-shop/cart-2", client}, []string{client}},
		{"who may call", list(allow("shop/t", "shop/cart", []string{"shop/web", "shop/cart"}, "HTTPRouteGroup/g")), []string{cart}, []string{cart}},
		{"what may be asked", list(routes("shop/g", "/a")), []string{cart}, nil},
		{"an endpoint of another namespace", list(slice("bank/vault", []fact.PortSpec{web})), []string{teller, vault}, []string{teller}},
		{"a way out", list(egress("shop/e", 1, outPort(443, mesh.EgressTCP))), []string{client}, nil},
		{"a way in", list(ingress("shop/i", fact.IngressBackend{}, fact.IngressSource{Service: parseName("edge/gate")}), slice("edge/gate", nil, ready("a", "10.9.0.1"))), []string{cart}, nil},
		{"a retry", list(retry("shop/r", "shop/web", 3, 1, "shop/cart")), []string{client}, []string{client}},
		{"how a service is called", list(upstream("shop/u", "cart", 1, most(3))), []string{client}, []string{client}},
		{"a service that nobody may call", list(service("shop/new", "10.96.0.9", web)), nil, nil},
		{"the mode of a namespace", list(namespace("shop", func(n *fact.Namespace) { n.InboundTLS = mesh.Permissive })), []string{cart, client}, nil},
		{"a namespace that leaves", list(namespace("bank", func(n *fact.Namespace) { n.Member = false })), []string{teller, vault}, nil},
		{"the access log of a namespace", list(namespace("shop", func(n *fact.Namespace) { n.AccessLog = &mesh.AccessLog{Enabled: true} })), []string{cart, client}, nil},
		{"the access log of a pod", list(pod("shop/web-1", "web", "10.1.0.1", func(w *fact.Workload) { w.AccessLog = new(mesh.FullAccessLog()) })), []string{client}, nil},
		{"the access log", list(settings(func(s *mesh.Settings) { s.AccessLog = mesh.FullAccessLog() })), all, nil},
		{"the trust domain", list(settings(func(s *mesh.Settings) { s.TrustDomain = "other" })), all, []string{teller, client}},
		{"the settings go", list(gone(settings())), all, []string{teller, client}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			j := newJoin(Options{})
			for _, f := range base {
				j.set(f)
			}
			former := j.snapshot()
			for _, f := range tt.facts {
				j.set(f)
			}
			next := j.snapshot()
			other := changedViews(next.Views, former.Views)
			var outbound []string
			for _, uid := range all {
				was, _ := former.Views.Get(uid)
				is, ok := next.Views.Get(uid)
				if !ok {
					continue
				}
				if (was == is) == slices.Contains(other, uid) {
					t.Errorf("is the View of %s the same pointer: %t", uid, was == is)
				}
				if was.Outbound.Digest() != is.Outbound.Digest() {
					outbound = append(outbound, uid)
				} else if was.Outbound != is.Outbound {
					t.Errorf("what %s calls did not change, and is another pointer", uid)
				}
			}
			if !slices.Equal(other, slices.Sorted(slices.Values(tt.other))) {
				t.Errorf("the Views of %v are others, want %v", other, tt.other)
			}
			if !slices.Equal(outbound, tt.outbound) {
				t.Errorf("%v call otherwise, want %v", outbound, tt.outbound)
			}
			// Undo the change.
			for _, f := range slices.Concat(tt.facts, base) {
				if !slices.ContainsFunc(base, func(b fact.Fact) bool { return b.Object == f.Object }) {
					f = gone(f)
				}
				j.set(f)
			}
			if j.snapshot().Digest() != former.Digest() {
				t.Error("with the change undone the Snapshot is not what it was")
			}
		})
	}
}

// TestVersions has an object in two versions, as when a manifest is changed from one to the other.
func TestVersions(t *testing.T) {
	in := func(version string, f fact.Fact) fact.Fact {
		f.Object.APIVersion = version
		return f
	}
	old, late := in("v1alpha2", split("shop/s", "root", "v1=1")), in("v1alpha4", split("shop/s", "root", "none=1"))
	wrong := late
	wrong.Content, wrong.Problems = nil, []mesh.Problem{{Object: late.Object, Reason: "Invalid", Message: "it is wrong"}}
	for _, tt := range []struct {
		name  string
		facts []fact.Fact
		// want is the version that counts, found by its Problem; empty without a Problem.
		shares, want string
	}{
		{"the old", list(old), "shop/v1:80*1", ""},
		{"the late", list(late), "nothing", "v1alpha4 NotFound"},
		{"both", list(old, late), "nothing", "v1alpha4 NotFound"},
		{"both the other way round", list(late, old), "nothing", "v1alpha4 NotFound"},
		{"the old goes", list(old, late, gone(old)), "nothing", "v1alpha4 NotFound"},
		{"the old goes first", list(old, gone(old), late), "nothing", "v1alpha4 NotFound"},
		{"the late goes", list(old, late, gone(late)), "shop/v1:80*1", ""},
		{"the late is wrong", list(old, wrong), "shop/root:80*1", "v1alpha4 Invalid"},
		{"both go", list(old, late, gone(late), gone(old)), "shop/root:80*1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := newJoin(Options{})
			for _, f := range versions() {
				j.set(f)
			}
			for _, f := range tt.facts {
				j.set(f)
				j.snapshot()
			}
			s := j.snapshot()
			d, _ := viewOf(t, s, "shop/web-1").Outbound.Destinations.Get("shop/root:80")
			if got := sharesText(d.Routes[0].Backends); got != tt.shares {
				t.Errorf("it sends to %s, want %s", got, tt.shares)
			}
			got := ""
			if problems, ok := s.Problems.Get("TrafficSplit shop/s"); ok {
				got = problems.Object.APIVersion + " " + problems.List[0].Reason
			}
			if got != tt.want {
				t.Errorf("the Problem is %q, want %q", got, tt.want)
			}
		})
	}
}

// TestProblemsOfOneObject checks that an object's own Problems and those with other objects are
// in one list.
func TestProblemsOfOneObject(t *testing.T) {
	wrong := split("shop/s", "none", "v1=1")
	wrong.Problems = []mesh.Problem{{Object: wrong.Object, Reason: "Ignored", Field: "spec.extra", Message: "it is ignored"}}
	elsewhere := fact.Fact{Object: object("v1", "ConfigMap", "out", "x"), Problems: []mesh.Problem{{Object: object("v1", "ConfigMap", "out", "x"), Reason: "Invalid", Message: "it is wrong"}}}
	want := "ConfigMap out/x: Invalid\nTrafficSplit shop/s: Ignored spec.extra\nTrafficSplit shop/s: NotFound spec.service"
	if got := problemsText(t, Build(append(town(), wrong, elsewhere))); got != want {
		t.Errorf("the Problems are\n%s\nwant\n%s", got, want)
	}
}

// TestManyOutside checks that the message lists only a few of the endpoints.
func TestManyOutside(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	var endpoints []fact.SliceEndpoint
	for i := range 1000 {
		endpoints = append(endpoints, ready("", fmt.Sprintf("192.0.%d.%d", i/250, i%250)))
	}
	s := Build(append(town(), service("shop/cart", "10.96.0.2", web), slice("shop/cart", []fact.PortSpec{web}, endpoints...)))
	problems, _ := s.Problems.Get("Service shop/cart")
	want := "no traffic is sent to 192.0.0.0, 192.0.0.1, 192.0.0.2 and 997 more, which has no sidecar; inject one, or allow egress with spec.traffic.enableEgress of the MeshConfig"
	if problems == nil || problems.List[0].Message != want {
		t.Errorf("the message is %+v, want %s", problems, want)
	}
}
