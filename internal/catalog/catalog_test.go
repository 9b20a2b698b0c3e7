package catalog

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	holdOff    = 100 * time.Millisecond
	maxHoldOff = time.Second
)

// running returns a Catalog that runs in a bubble of synctest until the test ends.
func running(t *testing.T) *Catalog {
	t.Helper()
	return runningWith(t, Options{})
}

func runningWith(t *testing.T, options Options) *Catalog {
	t.Helper()
	options.HoldOff, options.MaxHoldOff, options.Log = holdOff, maxHoldOff, slog.New(slog.DiscardHandler)
	c := New(options)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c
}

// settled returns a running Catalog whose first Snapshot has the facts.
func settled(t *testing.T, facts ...fact.Fact) *Catalog {
	t.Helper()
	c := running(t)
	c.Apply(facts...)
	c.Synced()
	<-c.Ready()
	return c
}

func isReady(c *Catalog) bool {
	select {
	case <-c.Ready():
		return true
	default:
		return false
	}
}

func TestNothingBeforeSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t)
		empty := c.Snapshot()
		if empty == nil || empty.Settings == nil || empty.Settings.PermissivePolicy || empty.Settings.Egress {
			t.Errorf("the first Snapshot is %+v, want one that lets nothing through", empty)
		}
		if view, ok := c.View("uid-shop/web-1"); view != nil || ok {
			t.Error("there is a View before there are facts")
		}
		c.Apply(town()...)
		time.Sleep(time.Hour)
		if c.Snapshot() != empty || isReady(c) {
			t.Error("a Snapshot was made before Synced")
		}
		c.Apply(pod("shop/web-2", "web", "10.1.0.9"))
		c.Synced()
		synctest.Wait()
		if isReady(c) {
			t.Error("it did not wait for more facts")
		}
		<-c.Ready()
		if view, ok := c.View("uid-shop/web-1"); !ok || view.Proxy.UID != "uid-shop/web-1" {
			t.Errorf("there is no View of a pod that came before Synced, only of %v", c.Snapshot().Views.Names())
		}
		if c.Snapshot().Views.Len() != 2 {
			t.Errorf("there are Views of %v, want two", c.Snapshot().Views.Names())
		}
	})
}

func TestReadyWithoutFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := running(t)
		c.Synced()
		<-c.Ready()
		if c.Snapshot().Digest() != Build(nil).Digest() {
			t.Error("the Snapshot of no facts is not that of Build")
		}
	})
}

func TestHoldOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, town()...)
		former, begin := c.Snapshot(), time.Now()
		// since waits for the next Snapshot and returns how long it took since begin.
		since := func() time.Duration {
			for c.Snapshot() == former {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			former = c.Snapshot()
			return time.Since(begin).Round(10 * time.Millisecond)
		}
		c.Apply(pod("shop/a", "web", "10.1.0.2"))
		if waited := since(); waited != holdOff {
			t.Errorf("a change waits %s, want %s", waited, holdOff)
		}
		time.Sleep(maxHoldOff)
		begin = time.Now()
		c.Apply(pod("shop/a", "web", "10.1.0.3"))
		if waited := since(); waited != holdOff/5 {
			t.Errorf("a change after a quiet time waits %s, want %s", waited, holdOff/5)
		}

		begin = time.Now()
		for i := range 5 {
			c.Apply(pod(fmt.Sprintf("shop/b-%d", i), "web", "10.1.0.2"))
			time.Sleep(holdOff / 2)
		}
		if waited, want := since(), 3*holdOff; waited != want {
			t.Errorf("changes for %s make a Snapshot after %s, want %s", 2*holdOff, waited, want)
		}
		if c.Snapshot().Views.Len() != 7 {
			t.Errorf("it has Views of %v, want seven", c.Snapshot().Views.Names())
		}

		begin = time.Now()
		stop := make(chan struct{})
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(holdOff / 2):
					c.Apply(pod(fmt.Sprintf("shop/c-%d", i), "web", "10.1.0.2"))
				}
			}
		}()
		if waited, want := since(), maxHoldOff+holdOff/2; waited != want {
			t.Errorf("changes that do not end make a Snapshot after %s, want %s", waited, want)
		}
		begin = time.Now()
		if waited := since(); waited < maxHoldOff {
			t.Errorf("changes that do not end make the next Snapshot after %s, want no less than %s", waited, maxHoldOff)
		}
		close(stop)

		time.Sleep(time.Hour)
		former = c.Snapshot()
		time.Sleep(time.Hour)
		if c.Snapshot() != former {
			t.Error("a Snapshot was made of nothing")
		}
	})
}

func TestOptions(t *testing.T) {
	if o := New(Options{}).options; o.HoldOff != 50*time.Millisecond || o.MaxHoldOff != 500*time.Millisecond || o.Log == nil {
		t.Errorf("without Options there are %+v", o)
	}
}

// TestLastFactCounts applies several facts of one object between two Snapshots.
func TestLastFactCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, town()...)
		changed := c.Subscribe(t.Context().Done())
		next := func() *fact.Snapshot {
			time.Sleep(2 * holdOff)
			return c.Snapshot()
		}
		former := c.Snapshot()
		web := pod("shop/web-1", "web", "10.1.0.1")
		c.Apply(gone(web), pod("shop/web-1", "other", "10.1.0.1"), web)
		if next().Digest() != former.Digest() {
			t.Error("a pod that is as it was in the end is another")
		}
		c.Apply(pod("shop/new", "web", "10.1.0.7"))
		c.Apply(gone(pod("shop/new", "web", "10.1.0.7")))
		if next().Digest() != former.Digest() {
			t.Error("a pod that came and went is there")
		}
		c.Apply(gone(web))
		c.Apply(pod("shop/web-1", "other", "10.1.0.1"))
		if view, _ := next().Views.Get("uid-shop/web-1"); view.Proxy.Identity.ServiceAccount != "other" {
			t.Errorf("the pod is %+v, want the latest fact", view.Proxy)
		}
		if uid := <-changed; uid != "uid-shop/web-1" {
			t.Errorf("the first changed proxy is %q", uid)
		}
		select {
		case uid := <-changed:
			t.Errorf("%q did not change, but was reported as changed", uid)
		case <-time.After(time.Hour):
		}
	})
}

func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, town()...)
		stop := make(chan struct{})
		changed := c.Subscribe(stop)
		// A subscriber that receives nothing must not block others.
		slow := c.Subscribe(t.Context().Done())
		c.View("uid-shop/web-1")
		// next applies facts and returns the sorted names that are sent, and follows these.
		next := func(facts ...fact.Fact) []string {
			c.Apply(facts...)
			time.Sleep(2 * holdOff)
			var uids []string
			for {
				synctest.Wait()
				select {
				case uid := <-changed:
					uids = append(uids, uid)
					c.View(uid)
				default:
					slices.Sort(uids)
					return uids
				}
			}
		}
		two := pod("shop/web-2", "web", "10.1.0.2")
		cart := server("shop/cart", "10.96.0.2", "10.1.0.3", port(80, 8080, mesh.HTTP))
		for _, tt := range []struct {
			what  string
			facts []fact.Fact
			want  []string
		}{
			{"what was there before", nil, nil},
			{"a new proxy", list(two), []string{"uid-shop/web-2"}},
			{"a service for all", cart, []string{"uid-shop/cart-1", "uid-shop/web-1", "uid-shop/web-2"}},
			{"the same again", cart, nil},
			{"a pod of which only its own proxy says something", list(pod("shop/web-2", "web", "10.1.0.2", func(w *fact.Workload) { w.Zone = "z" })), []string{"uid-shop/web-2"}},
			{"a proxy is gone", list(gone(two)), []string{"uid-shop/web-2"}},
			{"another pod of the name", list(pod("shop/web-1", "web", "10.1.0.1", func(w *fact.Workload) { w.UID = "again" })), []string{"again", "uid-shop/web-1"}},
			{"a namespace leaves the mesh", list(namespace("shop", func(n *fact.Namespace) { n.Member = false })), []string{"again", "uid-shop/cart-1"}},
			{"and comes back", list(namespace("shop")), []string{"again", "uid-shop/cart-1"}},
		} {
			if got := next(tt.facts...); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v were reported as changed, want %v", tt.what, got, tt.want)
			}
		}

		// The slow subscriber gets each name once, except the name that was being delivered.
		var late []string
		for range 5 {
			late = append(late, <-slow)
		}
		select {
		case uid := <-slow:
			t.Errorf("the slow subscriber received %v and then %s", late, uid)
		case <-time.After(time.Hour):
		}
		slices.Sort(late)
		if want := []string{"again", "uid-shop/cart-1", "uid-shop/web-1", "uid-shop/web-2", "uid-shop/web-2"}; !slices.Equal(late, want) {
			t.Errorf("the slow subscriber received %v, want %v", late, want)
		}

		close(stop)
		synctest.Wait()
		if uid, ok := <-changed; ok {
			t.Errorf("%s was reported after the end", uid)
		}
		c.proxies.mu.Lock()
		left := len(c.proxies.subscribers)
		c.proxies.mu.Unlock()
		if left != 1 {
			t.Errorf("%d subscribers are left, and one is subscribed", left)
		}
	})
}

func TestSubscribeObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, versions()...)
		changed := c.SubscribeObjects(t.Context().Done())
		next := func(facts ...fact.Fact) []string {
			c.Apply(facts...)
			time.Sleep(2 * holdOff)
			var objects []string
			for {
				synctest.Wait()
				select {
				case object := <-changed:
					objects = append(objects, object.String())
				default:
					slices.Sort(objects)
					return objects
				}
			}
		}
		if got := next(); len(got) != len(versions()) {
			t.Errorf("%v were reported at first, want every object", got)
		}
		half := split("shop/s", "root", "v1=1 v2=1")
		v2 := service("shop/v2", "10.96.0.12", port(80, 8080, mesh.HTTP))
		for _, tt := range []struct {
			what  string
			facts []fact.Fact
			want  []string
		}{
			{"an object without Problems", list(half), []string{"TrafficSplit shop/s"}},
			{"an object that leads nowhere by another's end", list(gone(v2)), []string{"Service shop/v2", "TrafficSplit shop/s"}},
			{"the other comes back", list(v2), []string{"Service shop/v2", "TrafficSplit shop/s"}},
			{"an object that does not change", list(v2), []string{"Service shop/v2"}},
			{"an object that goes", list(gone(half)), []string{"TrafficSplit shop/s"}},
		} {
			if got := next(tt.facts...); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v were reported as changed, want %v", tt.what, got, tt.want)
			}
		}
		if problems := c.Problems(half.Object); problems != nil {
			t.Errorf("an object that is gone has the Problems %v", problems)
		}
		next(half, gone(v2))
		if problems := c.Problems(half.Object); len(problems) != 1 || problems[0].Reason != ReasonNotFound || problems[0].Object != half.Object {
			t.Errorf("an object that leads nowhere has the Problems %v", problems)
		}
	})
}

// TestStopWhileSending stops a subscriber to which a name is being sent. In the bubble, a
// leaked goroutine fails the test.
func TestStopWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, town()...)
		stop := make(chan struct{})
		changed := c.Subscribe(stop)
		c.Apply(pod("shop/a", "web", "10.1.0.2"), pod("shop/b", "web", "10.1.0.3"))
		time.Sleep(2 * holdOff)
		close(stop)
		synctest.Wait()
		if uid, ok := <-changed; ok {
			t.Errorf("%s was reported after the end", uid)
		}
	})
}

// TestManyAtOnce applies facts, reads and subscribes concurrently, for the race detector.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, town()...)
		ended := make(chan struct{})
		const writers, each = 4, 50
		for i := range writers {
			go func() {
				defer func() { ended <- struct{}{} }()
				for k := range each {
					c.Apply(pod(fmt.Sprintf("shop/p-%d-%d", i, k), "web", "10.1.0.2"))
					time.Sleep(time.Duration(k) * time.Millisecond)
				}
			}()
			go func() {
				defer func() { ended <- struct{}{} }()
				stop := make(chan struct{})
				defer close(stop)
				for uid := range c.Subscribe(stop) {
					if view, ok := c.View(uid); !ok || view.Digest().IsZero() || c.Snapshot().Digest().IsZero() {
						t.Errorf("the View of %s was announced but does not exist", uid)
					}
					if c.Snapshot().Views.Len() == writers*each+1 {
						return
					}
				}
			}()
		}
		for range 2 * writers {
			<-ended
		}
	})
}

// TestOtherMeshConfig replaces a MeshConfig by one with another name, with the facts in either
// order.
func TestOtherMeshConfig(t *testing.T) {
	other := settings(permissive)
	other.Object.Name = "other"
	for name, facts := range map[string][]fact.Fact{
		"gone first": {settings(), gone(settings()), other},
		"gone last":  {settings(), other, gone(settings())},
	} {
		if !Build(facts).Settings.PermissivePolicy {
			t.Errorf("%s: the other MeshConfig does not count", name)
		}
	}
	if Build([]fact.Fact{other, gone(other)}).Settings.PermissivePolicy {
		t.Error("a MeshConfig that is gone counts")
	}
}

// TestNothingNew applies facts again that there are, in another order and made anew, and deletes and recreates
// equal objects within the hold-off: no proxy's View is another one, and nobody is told of any.
func TestNothingNew(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			// The same seed makes the same facts in other memory.
			facts := func() []fact.Fact {
				g, last := newGenerator(seed), map[mesh.ObjectRef]fact.Fact{}
				for range 150 {
					f := g.factOf()
					last[f.Object] = f
				}
				return slices.Collect(maps.Values(last))
			}
			c := settled(t, facts()...)
			stop := make(chan struct{})
			defer close(stop)
			told := c.Subscribe(stop)
			views := map[string]*mesh.View{}
			for _, uid := range c.Snapshot().Views.Viewers.Names() {
				views[uid], _ = c.View(uid)
			}
			if len(views) == 0 {
				t.Skip("no proxies in this mesh")
			}
			synctest.Wait()
			drain := func() (uids []string) {
				for {
					synctest.Wait()
					select {
					case uid := <-told:
						uids = append(uids, uid)
					default:
						return uids
					}
				}
			}
			drain()
			same := func(what string) {
				t.Helper()
				time.Sleep(2 * maxHoldOff)
				if uids := drain(); len(uids) > 0 {
					t.Errorf("seed %d: after %s, %v are told", seed, what, uids)
				}
				for uid, view := range views {
					if now, ok := c.View(uid); !ok || now.Digest() != view.Digest() {
						t.Errorf("seed %d: after %s, %s has another View", seed, what, uid)
					}
				}
			}
			c.Apply(facts()...)
			same("the same facts")
			for _, f := range facts() {
				c.Apply(fact.Fact{Object: f.Object})
			}
			c.Apply(facts()...)
			same("objects that were recreated")
		})
	}
}
