package ondemand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

var web = fact.ServiceAccount{Namespace: "users", Name: "web"}

func serviceName(name string) mesh.Name { return mesh.Name{Namespace: "shop", Name: name} }

func uses(services ...string) fact.Used {
	var used fact.Used
	for _, name := range services {
		used = used.With(fact.Used{Services: fact.Services{serviceName(name)}})
	}
	return used
}

func object1(kind, namespace, name string) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "v1", Kind: kind, Namespace: namespace, Name: name}
}

// factsOf returns a mesh in permissive mode with the services, one of which has no addresses
// left, and a client that gets them on demand.
func factsOf(services ...string) []fact.Fact {
	facts := []fact.Fact{
		{Object: object1("MeshConfig", "osm", "config"), Content: mesh.Seal(&mesh.Settings{TrustDomain: "cluster.local", PermissivePolicy: true})},
		{Object: object1("Namespace", "", "users"), Content: mesh.Seal(&fact.Namespace{Name: "users", Member: true, OutboundServices: fact.Services{fact.OnDemand}})},
		{Object: object1("Namespace", "", "shop"), Content: mesh.Seal(&fact.Namespace{Name: "shop", Member: true})},
		{Object: object1("Pod", "users", "web-1"), Content: mesh.Seal(&fact.Workload{
			Name: mesh.Name{Namespace: "users", Name: "web-1"}, UID: "uid-1", ServiceAccount: "web", Class: "envoy", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
		})},
		{Object: object1("Pod", "shop", "clerk-1"), Content: mesh.Seal(&fact.Workload{
			Name: mesh.Name{Namespace: "shop", Name: "clerk-1"}, UID: "uid-2", ServiceAccount: "clerk", Class: "envoy", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")},
		})},
	}
	for i, name := range services {
		facts = append(facts, fact.Fact{Object: object1("Service", "shop", name), Content: mesh.Seal(&fact.Service{
			Name: serviceName(name), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})},
			Ports: []fact.PortSpec{{Name: "http", Port: 80, Target: 8080, Protocol: mesh.HTTP}, {Name: "db", Port: 3306, Target: 3306, Protocol: mesh.TCPServerFirst}},
		})})
	}
	return facts
}

// counted is a Store that counts what it is asked to add.
type counted struct {
	Store
	added atomic.Int32
	fails error
}

func (c *counted) Add(ctx context.Context, account fact.ServiceAccount, used fact.Used) error {
	c.added.Add(1)
	if c.fails != nil {
		return c.fails
	}
	return c.Store.Add(ctx, account, used)
}

// TestLearn has pods ask about addresses.
func TestLearn(t *testing.T) {
	t.Parallel()
	cat := catalog.New(catalog.Options{HoldOff: time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	go cat.Run(t.Context())
	cat.Apply(factsOf("cart", "other")...)
	cat.Synced()
	path := filepath.Join(t.TempDir(), "learned.json")
	file, err := NewFile(path, cat.Apply, cat.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	store := &counted{Store: file}
	learner := NewLearner(cat, store)
	ask := func(account fact.ServiceAccount, uid, at string, want bool, added int32) {
		t.Helper()
		got, err := learner.Learn(t.Context(), account, uid, netip.MustParseAddrPort(at))
		if got != want || err != nil || store.added.Load() != added {
			t.Errorf("%s of %s is in the mesh: %v, %v after %d additions; want %v after %d", at, uid, got, err, store.added.Load(), want, added)
		}
	}
	ask(web, "uid-1", "192.0.2.1:80", false, 0)
	ask(web, "uid-1", "10.96.0.1:81", false, 0)
	// Another one, which knows everything, changes nothing by asking, and neither does one
	// without a sidecar.
	ask(fact.ServiceAccount{Namespace: "shop", Name: "clerk"}, "uid-2", "10.96.0.1:80", true, 0)
	ask(web, "nobody", "10.96.0.1:80", true, 0)
	ask(web, "uid-1", "10.96.0.1:80", true, 1)
	view, _ := cat.View("uid-1")
	if _, whole := view.Outbound.Destinations.Get("shop/cart:3306"); view.Outbound.Destinations.Len() != 2 || !whole {
		t.Errorf("the View has the destinations %v, want both of shop/cart", view.Outbound.Destinations.Names())
	}
	ask(web, "uid-1", "10.96.0.1:3306", true, 1)
	store.fails = errors.New("the disk is full")
	if _, err := learner.Learn(t.Context(), web, "uid-1", netip.MustParseAddrPort("10.96.0.2:80")); !errors.Is(err, store.fails) {
		t.Errorf("the error is %v", err)
	}

	// After a restart it is still known.
	var again []fact.Fact
	if _, err := NewFile(path, func(facts ...fact.Fact) { again = append(again, facts...) }, cat.Snapshot); err != nil {
		t.Fatal(err)
	}
	snapshot := catalog.Build(append(factsOf("cart", "other"), again...))
	if view, _ := snapshot.Views.Get("uid-1"); view.Outbound.Destinations.Len() != 2 {
		t.Errorf("after a restart the View has the destinations %v", view.Outbound.Destinations.Names())
	}
}

// TestKube adds to the ConfigMap of a namespace, which others change too. Its clock stands still while
// something runs, so that both additions are gathered.
func TestKube(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testKube)
}

func testKube(t *testing.T) {
	snapshot := catalog.Build(factsOf("cart", "other", "third"))
	client := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "users", Name: fact.LearnedName},
		Data:       map[string]string{"web": "shop/gone\nshop/other\npod/shop/gone\n", "someone": "# not mine\nshop/gone"},
	})
	var conflicts atomic.Int32
	client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts.Add(1) == 1 {
			return true, nil, apierrors.NewConflict(corev1.Resource("configmaps"), fact.LearnedName, errors.New("another replica was faster"))
		}
		return false, nil, nil
	})
	k := NewKube(client, "osm", func() *fact.Snapshot { return snapshot })
	var group sync.WaitGroup
	for _, name := range []string{"cart", "third"} {
		group.Go(func() {
			if err := k.Add(t.Context(), web, uses(name)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := conflicts.Load(); n != 2 {
		t.Errorf("it was updated %d times, want once after a conflict", n)
	}
	wantText(t, client, "users", "web", "shop/cart\nshop/other\nshop/third\n")
	wantText(t, client, "users", "someone", "# not mine\nshop/gone")

	// Nothing is written that is there.
	if err := k.Add(t.Context(), web, uses("cart")); err != nil || conflicts.Load() != 2 {
		t.Errorf("%v after %d updates", err, conflicts.Load())
	}
	if err := k.Add(t.Context(), fact.ServiceAccount{Namespace: "shop", Name: "clerk"}, fact.Used{Pods: []mesh.Name{{Namespace: "shop", Name: "clerk-1"}}}); err != nil {
		t.Error(err)
	}
	wantText(t, client, "shop", "clerk", "pod/shop/clerk-1\n")

	client.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), fact.LearnedName, errors.New("no right"))
	})
	err := k.Add(t.Context(), fact.ServiceAccount{Namespace: "plain", Name: "x"}, uses("cart"))
	if err == nil || !strings.Contains(err.Error(), "ConfigMap plain/"+fact.LearnedName) {
		t.Errorf("without the right the error is %v", err)
	}
}

func wantText(t *testing.T, client *fake.Clientset, namespace, account, want string) {
	t.Helper()
	found, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), fact.LearnedName, metav1.GetOptions{})
	if err != nil || found.Data[account] != want {
		t.Errorf("%s/%s has used %q, %v; want %q", namespace, account, found.Data[account], err, want)
	}
}

// TestBounds has an account use more than is kept, and a namespace with a full ConfigMap.
func TestBounds(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range maxEach + 1 {
		names = append(names, fmt.Sprintf("service-%03d", i))
	}
	snapshot := catalog.Build(factsOf(names...))
	if got := merge(uses(names[:maxEach-1]...), uses(names[maxEach-1]), snapshot); got.All || len(got.Services) != maxEach {
		t.Errorf("%d services are kept as %d, all: %v", maxEach, len(got.Services), got.All)
	}
	if got := merge(uses(names[:maxEach]...), uses(names[maxEach]), snapshot); !got.All {
		t.Errorf("%d services are kept", len(got.Services))
	}
	full := &corev1.ConfigMap{Data: map[string]string{"big": strings.Repeat("shop/service-000\n", maxSize/17)}}
	full.Name = fact.LearnedName
	addTo(full, map[string]fact.Used{"web": uses(names[0], names[1])}, snapshot)
	if full.Data["web"] != "*\n" {
		t.Errorf("in a full ConfigMap an account has used %q, want everything", full.Data["web"])
	}
}
