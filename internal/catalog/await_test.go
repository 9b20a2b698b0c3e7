package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// web is the identity of the pods of town.
var web = mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"}

// finder is a fake API server for finding pods.
type finder struct {
	asked atomic.Int32
	// pod is nil while there is none.
	pod atomic.Pointer[fact.Fact]
	err atomic.Pointer[error]
}

func (f *finder) find(_ context.Context, identity mesh.Identity, uid string) (fact.Fact, bool, error) {
	f.asked.Add(1)
	if err := f.err.Load(); err != nil {
		return fact.Fact{}, false, *err
	}
	found := f.pod.Load()
	if found == nil {
		return fact.Fact{}, false, nil
	}
	w, ok := found.Content.(*fact.Workload)
	if !ok || w.UID != uid || w.Namespace != identity.Namespace || w.ServiceAccount != identity.ServiceAccount {
		return fact.Fact{}, false, nil
	}
	return *found, true, nil
}

// awaiting returns a Catalog of town that uses the finder.
func awaiting(t *testing.T, f *finder) *Catalog {
	t.Helper()
	c := running(t)
	c.options.Find = f.find
	c.Apply(town()...)
	c.Synced()
	<-c.Ready()
	return c
}

func TestAwaitView(t *testing.T) {
	late := pod("shop/web-2", "web", "10.1.0.9")
	unavailable := errors.New("the API server is away")
	without := pod("shop/web-2", "web", "10.1.0.9", func(w *fact.Workload) { w.Class = "" })
	for _, tt := range []struct {
		name     string
		uid      string
		identity mesh.Identity
		found    *fact.Fact
		err      error
		// after is when the fact of the pod is applied; 0 means never.
		after time.Duration
		want  error
		// takes is the maximum duration, and asks the number of calls of the finder.
		takes time.Duration
		asks  int32
	}{
		{name: "known", uid: "uid-shop/web-1", identity: web},
		{name: "comes a little later", uid: "uid-shop/web-2", identity: web, after: time.Second, takes: time.Second + holdOff/5},
		{name: "is found", uid: "uid-shop/web-2", identity: web, found: &late, takes: defaultPatience + holdOff/5, asks: 1},
		{name: "is nowhere", uid: "uid-shop/web-2", identity: web, want: ErrNoProxy, takes: defaultPatience, asks: 1},
		{name: "is found without a sidecar", uid: "uid-shop/web-2", identity: web, found: &without, want: ErrNoProxy, takes: defaultPatience + holdOff/5, asks: 1},
		{name: "cannot be asked for", uid: "uid-shop/web-2", identity: web, err: unavailable, want: unavailable, takes: defaultPatience, asks: 1},
		{name: "of another service account", uid: "uid-shop/web-1", identity: mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "cart"}, want: ErrNoProxy},
		{name: "of another trust domain", uid: "uid-shop/web-1", identity: mesh.Identity{TrustDomain: "other", Namespace: "shop", ServiceAccount: "web"}, want: ErrNoProxy},
		{name: "found for another service account", uid: "uid-shop/web-2", identity: mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "cart"}, found: &late, want: ErrNoProxy, takes: defaultPatience, asks: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &finder{}
				f.pod.Store(tt.found)
				if tt.err != nil {
					f.err.Store(&tt.err)
				}
				c := awaiting(t, f)
				if tt.after > 0 {
					time.AfterFunc(tt.after, func() { c.Apply(late) })
				}
				begin := time.Now()
				view, err := c.AwaitView(t.Context(), tt.identity, tt.uid)
				if !errors.Is(err, tt.want) || (tt.want == nil) != (view != nil) {
					t.Fatalf("got the View %v and the error %v, want the error %v", view, err, tt.want)
				}
				if view != nil && view.Proxy.UID != tt.uid {
					t.Errorf("got the View of %s", view.Proxy.UID)
				}
				if took := time.Since(begin); took != tt.takes {
					t.Errorf("it took %v, want %v", took, tt.takes)
				}
				if asked := f.asked.Load(); asked != tt.asks {
					t.Errorf("it asked %d times, want %d", asked, tt.asks)
				}
			})
		})
	}
}

// TestAwaitViewEnds checks that waiting ends with the caller's context and leaves nothing
// behind.
func TestAwaitViewEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the proxy has gone")
		begin := time.Now()
		early := running(t)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		if _, err := early.AwaitView(ctx, web, "uid-shop/web-1"); !errors.Is(err, gone) {
			t.Errorf("before there is a Snapshot: error %v, want that of the context", err)
		}
		c := awaiting(t, &finder{})
		ctx, cancel = context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		if _, err := c.AwaitView(ctx, web, "uid-shop/web-9"); !errors.Is(err, gone) {
			t.Errorf("while waiting: error %v, want that of the context", err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		if len(c.awaited.byName) > 0 {
			t.Errorf("%d are waited for, and nobody waits", len(c.awaited.byName))
		}
	})
}

// TestAwaitManyViews lets a thousand proxies wait for one rollout.
func TestAwaitManyViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &finder{}
		c := awaiting(t, f)
		const many = 1000
		errs := make(chan error, many)
		for i := range many {
			go func() {
				_, err := c.AwaitView(t.Context(), web, fmt.Sprintf("uid-shop/many-%d", i))
				errs <- err
			}()
		}
		synctest.Wait()
		for i := range many {
			c.Apply(pod(fmt.Sprintf("shop/many-%d", i), "web", fmt.Sprintf("10.2.%d.%d", i/250, 1+i%250)))
		}
		for range many {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		if f.asked.Load() > 0 || len(c.awaited.byName) > 0 {
			t.Errorf("%d were asked for, and %d are still waited for", f.asked.Load(), len(c.awaited.byName))
		}
	})
}

// TestFoundAfterItsEnd deletes a pod between the answer to a query and its use: the pod
// must not stay forever.
func TestFoundAfterItsEnd(t *testing.T) {
	late := pod("shop/web-2", "web", "10.1.0.9")
	has := func(c *Catalog) bool { _, ok := c.View("uid-shop/web-2"); return ok }
	synctest.Test(t, func(t *testing.T) {
		f := &finder{}
		f.pod.Store(&late)
		c := awaiting(t, f)
		if _, err := c.AwaitView(t.Context(), web, "uid-shop/web-2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultRecheck + holdOff)
		if !has(c) {
			t.Error("a pod that is still found was dropped")
		}
		f.pod.Store(nil)
		away := errors.New("the API server is away")
		f.err.Store(&away)
		time.Sleep(defaultRecheck + holdOff)
		if !has(c) {
			t.Error("a pod was dropped because nobody could be asked")
		}
		f.err.Store(nil)
		time.Sleep(defaultRecheck + holdOff)
		if has(c) {
			t.Error("a pod that is no more found is still there")
		}
		asked := f.asked.Load()
		time.Sleep(10 * defaultRecheck)
		if f.asked.Load() != asked {
			t.Error("it goes on asking for what is gone")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &finder{}
		f.pod.Store(&late)
		c := awaiting(t, f)
		if _, err := c.AwaitView(t.Context(), web, "uid-shop/web-2"); err != nil {
			t.Fatal(err)
		}
		// Once the pod's fact was applied, its deletion will be applied too.
		c.Apply(late)
		f.pod.Store(nil)
		time.Sleep(10 * defaultRecheck)
		if !has(c) || f.asked.Load() != 1 {
			t.Errorf("asked %d times about a pod that has come by itself, and it is there: %t", f.asked.Load(), has(c))
		}
	})
}

func TestReport(t *testing.T) {
	target := factOf("TrafficTarget", "shop/t", &fact.AccessRule{Name: parseName("shop/t")}, nil)
	target.Problems = []mesh.Problem{{Object: target.Object, Reason: "Invalid", Field: "spec.a", Message: "own"}}
	group := factOf("HTTPRouteGroup", "shop/g", &fact.RouteGroup{Name: parseName("shop/g")}, nil)
	refused := func(message string) []mesh.Problem {
		return []mesh.Problem{{Object: mesh.ObjectRef{Kind: "whatever"}, Reason: "Rejected", Message: message}}
	}
	reasons := func(c *Catalog, object mesh.ObjectRef) []string {
		var list []string
		for _, p := range c.Problems(object) {
			if p.Object != object {
				t.Errorf("a Problem of %s is about %s", object, p.Object)
			}
			if p.Reason == "Rejected" || p.Reason == "Invalid" {
				list = append(list, p.Reason+" "+p.Message)
			}
		}
		return list
	}
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, append(town(), target)...)
		changed := c.SubscribeObjects(t.Context().Done())
		expect := func(what string, object mesh.ObjectRef, want ...string) {
			t.Helper()
			time.Sleep(2 * holdOff)
			if got := reasons(c, object); !slices.Equal(got, want) {
				t.Errorf("%s: %s has the Problems %q, want %q", what, object, got, want)
			}
		}
		c.Report(target.Object, refused("proxy a"))
		expect("reported", target.Object, "Rejected proxy a", "Invalid own")
		c.Report(target.Object, refused("proxy b"))
		expect("reported anew", target.Object, "Rejected proxy b", "Invalid own")
		c.Apply(factOf("TrafficTarget", "shop/t", &fact.AccessRule{Name: parseName("shop/t")}, nil))
		expect("its own is solved", target.Object, "Rejected proxy b")
		c.Apply(gone(target))
		expect("the object is gone", target.Object)
		c.Apply(target)
		expect("the object is back", target.Object, "Rejected proxy b", "Invalid own")
		c.Report(target.Object, nil)
		expect("ended", target.Object, "Invalid own")

		c.Report(group.Object, refused("no such object yet"))
		expect("no object", group.Object)
		c.Apply(group)
		expect("the object has come", group.Object, "Rejected no such object yet")
		seen := map[mesh.ObjectRef]bool{}
		for len(seen) < len(town())+2 {
			seen[<-changed] = true
		}
		if !seen[target.Object] || !seen[group.Object] || !seen[town()[0].Object] {
			t.Errorf("received %v, want all objects and then those that changed", seen)
		}
	})
}

func TestFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, append(town(), factOf("Retry", "shop/b", &fact.RetryRule{Name: parseName("shop/b")}, nil),
			factOf("Retry", "shop/a", &fact.RetryRule{Name: parseName("shop/a")}, nil), factOf("Egress", "shop/e", &fact.EgressRule{Name: parseName("shop/e")}, nil))...)
		var got []string
		for _, f := range c.Facts("Retry", "Egress") {
			got = append(got, f.Object.String())
		}
		if want := []string{"Egress shop/e", "Retry shop/a", "Retry shop/b"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
