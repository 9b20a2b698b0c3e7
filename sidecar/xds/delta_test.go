package xds

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const forever = time.Hour

// shop is the configuration of two services.
var shop = state{
	secrets:   {"s": "1"},
	clusters:  {"a": "1", "b": "1"},
	endpoints: {"a@1": "1", "b@1": "1"},
	listeners: {"l": "1"},
	routes:    {"r": "1"},
}

// connected returns a proxy that runs all of shop.
func connected(t testing.TB, h *harness) *deltaClient {
	t.Helper()
	view := h.set("p", shop)
	c := h.delta(t, "p")
	c.takeShop()
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(view))
	return c
}

// takeShop subscribes to everything in shop and takes it.
func (c *deltaClient) takeShop() {
	c.subscribe(clusters)
	c.take("Cluster a=1 b=1")
	c.subscribe(endpoints, "a@1", "b@1")
	c.take("Endpoint a@1=1 b@1=1")
	c.subscribe(listeners)
	c.take("Listener l=1")
	c.subscribe(routes, "r")
	c.take("Route r=1")
	c.subscribe(secrets, "s")
	c.take("Secret s=1")
}

func TestDeltaSendsChanges(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	view := h.set("p", shop.with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
	c.quiet()
	eventually(t, "the change is acknowledged", h.runs(view))
	h.set("p", shop)
	c.take("Endpoint b@1=1")
	c.quiet()
}

// TestDeltaEqualConfiguration changes the View but not the resources: the proxy runs the
// new View at once, so it must not count as waiting for it.
func TestDeltaEqualConfiguration(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	former := h.set("p", shop.with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
	eventually(t, "the change is acknowledged", h.runs(former))
	view := h.set("p", shop.with(endpoints, "b@1", "2"))
	eventually(t, "the View is acknowledged", h.runs(view))
	h.mu.Lock()
	defer h.mu.Unlock()
	if want := view.Digest().String(); h.sent != want {
		t.Errorf("the last version that was sent is %s, want %s, which is acknowledged", h.sent, want)
	}
}

// TestDeltaOrder changes all types at once.
func TestDeltaOrder(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	view := h.set("p", state{
		secrets:   {"s": "2"},
		clusters:  {"b": "1", "c": "1"},
		endpoints: {"b@1": "1", "c@1": "1"},
		listeners: {"m": "1"},
		routes:    {"r": "2"},
	})
	c.take("Secret s=2")
	c.take("Cluster c=1")
	// Neither listeners nor routes come before the endpoints of the new cluster.
	c.quiet()
	c.subscribe(endpoints, "c@1")
	r := c.want("Endpoint c@1=1")
	c.quiet()
	c.ack(r)
	r = c.want("Listener m=1")
	c.quiet()
	c.ack(r)
	r = c.want("Route r=2")
	c.quiet()
	c.ack(r)
	c.take("Listener -l")
	c.take("Cluster -a")
	c.take("Endpoint -a@1")
	c.quiet()
	eventually(t, "the change is acknowledged", h.runs(view))
}

// TestDeltaPatience has a proxy that neither subscribes to new endpoints nor
// acknowledges its listener.
func TestDeltaPatience(t *testing.T) {
	h := newCore(t).serve(t, 30*time.Millisecond)
	c := connected(t, h)
	h.set("p", shop.with(clusters, "c", "1").with(endpoints, "c@1", "1").with(listeners, "l", "2"))
	c.take("Cluster c=1")
	c.take("Listener l=2")
	h.set("p", shop.with(listeners, "l", "3"))
	r := c.want("Listener l=3")
	c.take("Cluster -c")
	// A listener that is never acknowledged does not block the rest forever.
	h.set("p", shop.with(listeners, "l", "4").with(endpoints, "a@1", "2"))
	c.take("Endpoint a@1=2")
	c.ack(r)
	c.take("Listener l=4")
	c.quiet()
}

// TestDeltaTurns lets the server send to one proxy at a time.
func TestDeltaTurns(t *testing.T) {
	for _, tt := range []struct {
		what string
		time time.Duration
		// ends ends the first proxy's turn.
		ends func(h *harness, c *deltaClient)
	}{
		{"it has everything", time.Hour, func(_ *harness, c *deltaClient) {
			c.take("Cluster a=1 b=1")
			c.subscribe(endpoints, "a@1", "b@1")
			c.take("Endpoint a@1=1 b@1=1")
			c.subscribe(listeners)
			c.take("Listener l=1")
		}},
		{"it is gone", time.Hour, func(_ *harness, c *deltaClient) { _ = c.stream.CloseSend() }},
		{"it is slow", 100 * time.Millisecond, func(*harness, *deltaClient) {}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			h := newCore(t).serve(t, forever)
			h.server.catchingUp, h.server.catchUpTime = semaphore.NewWeighted(7), tt.time
			h.set("p", shop)
			h.set("q", shop)
			first := h.delta(t, "p")
			first.subscribe(clusters)
			r := first.next()
			first.responses <- r
			// A stream that is open waits for its turn before it says anything.
			second := h.delta(t, "q")
			second.subscribe(clusters)
			if tt.time == time.Hour {
				select {
				case <-second.responses:
					t.Fatal("a proxy is served while another one is")
				case <-time.After(50 * time.Millisecond):
				}
			}
			tt.ends(h, first)
			second.take("Cluster a=1 b=1")
		})
	}
}

// TestDeltaCoalesces changes resources while the proxy has not yet acknowledged a
// response.
func TestDeltaCoalesces(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	h.set("p", shop.with(endpoints, "a@1", "2"))
	r := c.want("Endpoint a@1=2")
	for _, content := range []string{"3", "4", "5"} {
		h.set("p", shop.with(endpoints, "a@1", content).with(endpoints, "b@1", content))
	}
	c.quiet()
	c.ack(r)
	c.take("Endpoint a@1=5 b@1=5")
	c.quiet()
}

// TestDeltaEndsWhatItBegan adds clusters faster than the proxy subscribes to their
// endpoints: listeners are still sent.
func TestDeltaEndsWhatItBegan(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	next := shop.with(listeners, "l", "2").with(clusters, "c", "1").with(endpoints, "c@1", "1")
	h.set("p", next)
	r := c.want("Cluster c=1")
	h.set("p", next.with(clusters, "d", "1").with(endpoints, "d@1", "1"))
	c.ack(r)
	c.quiet()
	c.subscribe(endpoints, "c@1")
	c.take("Endpoint c@1=1")
	c.take("Listener l=2")
	c.take("Cluster d=1")
}

// TestDeltaReconnect reconnects with the versions that the proxy has.
func TestDeltaReconnect(t *testing.T) {
	h := newCore(t).serve(t, forever)
	former := connected(t, h)
	again := func() *deltaClient {
		c := h.delta(t, "p")
		for _, typeURL := range []string{clusters, endpoints, listeners, routes, secrets} {
			r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, InitialResourceVersions: former.versions[typeURL]}
			for name := range former.versions[typeURL] {
				if typeURL != clusters && typeURL != listeners {
					r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, name)
				}
			}
			c.ask(r)
		}
		return c
	}
	c := again()
	c.quiet()

	// Versions are the same on another replica, and after a restart.
	other := newCore(t)
	if err := other.Trust(h.ca.Authority); err != nil {
		t.Fatal(err)
	}
	other.ca = h.ca
	view := other.set("p", shop)
	h = other.serve(t, forever)
	c = again()
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(view))

	// Only what changed in the meantime is sent.
	h.set("p", shop.with(clusters, "a", "").with(endpoints, "a@1", "").with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
	c.take("Cluster -a")
	c.take("Endpoint -a@1")
	c = again()
	c.take("Endpoint -a@1")
	c.take("Endpoint b@1=2")
	c.take("Cluster -a")
	c.quiet()
}

// TestDeltaReconnectForWhatHasEnded subscribes to removed routes that a draining
// listener still uses.
func TestDeltaReconnectForWhatHasEnded(t *testing.T) {
	core := newCore(t)
	core.types = slices.Clone(testTypes)
	for i := range core.types {
		core.types[i].Quiet = core.types[i].Named
	}
	h := core.serve(t, forever)
	former := connected(t, h)
	h.set("p", shop.with(routes, "r", ""))
	former.quiet()

	c := h.delta(t, "p")
	c.ask(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: routes, InitialResourceVersions: former.versions[routes], ResourceNamesSubscribe: []string{"r"},
	})
	c.quiet()
	// The route is back in another version than the proxy's.
	h.set("p", shop.with(routes, "r", "2"))
	c.take("Route r=2")
}

// TestDeltaNames subscribes to nonexistent names and unsubscribes from others.
func TestDeltaNames(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	c.subscribe(endpoints, "nowhere")
	c.take("Endpoint -nowhere")
	h.set("p", shop.with(endpoints, "nowhere", "1"))
	c.take("Endpoint nowhere=1")
	// A proxy that subscribes again has lost the resource.
	c.subscribe(endpoints, "nowhere")
	c.take("Endpoint nowhere=1")
	c.ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpoints, ResourceNamesUnsubscribe: []string{"nowhere", "a@1"}})
	c.quiet()
	h.set("p", shop.with(endpoints, "a@1", "2").with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
	c.quiet()
	c.subscribe(endpoints, "a@1")
	c.take("Endpoint a@1=2")
	c.quiet()
}

func TestDeltaWildcard(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.set("p", state{})
	c := h.delta(t, "p")
	// A proxy awaits its first response even if it is empty.
	c.subscribe(clusters, "*")
	c.take("Cluster")
	c.subscribe(clusters, "x")
	c.take("Cluster -x")
	h.set("p", state{clusters: {"x": "1", "y": "1"}})
	c.take("Cluster x=1 y=1")
	c.ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusters, ResourceNamesUnsubscribe: []string{"*"}})
	c.quiet()
	h.set("p", state{clusters: {"x": "2", "y": "2"}})
	c.take("Cluster x=2")
	c.quiet()
}

// TestDeltaNack rejects one resource.
func TestDeltaNack(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	bad := h.set("p", shop.with(clusters, "a", "bad").with(endpoints, "a@bad", "1").with(listeners, "l", "2"))
	c.refuse("Cluster a=bad", "no such thing")
	// Everything else is still sent.
	c.take("Listener l=2")
	c.quiet()
	want := []driver.Rejection{{
		Version: bad.Digest().String(), Message: "no such thing",
		Resources: []string{"Cluster a"}, Objects: []mesh.ObjectRef{{Kind: "Service", Namespace: "shop", Name: "a"}},
	}}
	if diff := cmp.Diff(want, h.rejections()); diff != "" {
		t.Errorf("rejections (-want +got):\n%s", diff)
	}
	if h.runs(bad)() {
		t.Error("a partly rejected View is reported as running")
	}
	// It is not sent again when something else changes.
	h.set("p", shop.with(clusters, "a", "bad").with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
	c.take("Listener l=1")
	c.quiet()
	// The proxy still has the good version.
	good := h.set("p", shop)
	c.take("Endpoint b@1=1")
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(good))
	// The same version may be tried again after another one.
	h.set("p", shop.with(clusters, "a", "bad"))
	c.refuse("Cluster a=bad", "no such thing")
	h.set("p", shop.with(clusters, "a", "better"))
	c.take("Cluster a=better")
	c.quiet()
}

// TestDeltaNackOfMany rejects responses in which one of several resources is bad.
func TestDeltaNackOfMany(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	next := shop
	for _, name := range []string{"c:1", "d:1", "e:1", "f:1"} {
		next = next.with(clusters, name, "1")
	}
	view := h.set("p", next)
	// Envoy names the bad clusters.
	c.refuse("Cluster c:1=1 d:1=1 e:1=1 f:1=1", "Error adding/updating cluster(s) e:1: no such thing")
	c.take("Cluster c:1=1 d:1=1 f:1=1")
	c.refuse("Cluster e:1=1", "Error adding/updating cluster(s) e:1: no such thing")
	c.quiet()
	for _, r := range h.rejections() {
		if diff := cmp.Diff([]string{"Cluster e:1"}, r.Resources); diff != "" {
			t.Errorf("rejections (-want +got):\n%s", diff)
		}
	}
	if h.runs(view)() {
		t.Error("a partly rejected View is reported as running")
	}
	// The message may also name nothing.
	for _, name := range []string{"c:1", "d:1", "f:1"} {
		next = next.with(clusters, name, "2")
	}
	next = next.with(clusters, "e:1", "")
	h.set("p", next)
	c.refuse("Cluster c:1=2 d:1=2 f:1=2", "?")
	c.take("Cluster c:1=2")
	c.refuse("Cluster d:1=2 f:1=2", "?")
	c.refuse("Cluster d:1=2", "?")
	c.take("Cluster f:1=2")
	c.quiet()
	if got := h.rejections(); len(got) != 2 || len(got[1].Resources) != 1 || got[1].Resources[0] != "Cluster d:1" {
		t.Errorf("rejections are %v", got)
	}
}

// TestDeltaNackIsOver checks that a View is reported as running when it replaces a
// rejected one, and when the client unsubscribes from the rejected resource.
func TestDeltaNackIsOver(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	before, _ := h.View("p")
	h.set("p", shop.with(listeners, "l", "bad"))
	c.refuse("Listener l=bad", "?")
	c.quiet()
	h.SetView(before.Proxy.UID, before)
	c.quiet()
	eventually(t, "the View is acknowledged again", h.runs(before))
	next := h.set("p", shop.with(routes, "r", "bad"))
	c.refuse("Route r=bad", "?")
	c.ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routes, ResourceNamesUnsubscribe: []string{"r"}})
	eventually(t, "the View is acknowledged", h.runs(next))
}

// TestResync sends everything again except for what was rejected.
func TestResync(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	h.set("p", shop.with(clusters, "b", "bad"))
	c.refuse("Cluster b=bad", "?")
	c.quiet()
	h.SetResyncInterval(time.Millisecond)
	c.want("Secret s=1")
	c.want("Cluster a=1")
	c.want("Endpoint a@1=1 b@1=1")
	h.SetResyncInterval(0)
}

// TestDeltaUnknownTypeWithVersions has a proxy that comes back with resources of a type that this
// server does not know, from a later version for example: they delay nothing.
func TestDeltaUnknownTypeWithVersions(t *testing.T) {
	h := newCore(t).serve(t, forever)
	view := h.set("p", shop)
	c := h.delta(t, "p")
	c.ask(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: "type.googleapis.com/test.Other", InitialResourceVersions: map[string]string{"x": "1"},
	})
	c.takeShop()
	eventually(t, "the View is acknowledged", h.runs(view))
	view = h.set("p", shop.with(clusters, "a", "2"))
	c.take("Cluster a=2")
	eventually(t, "the next View is acknowledged", h.runs(view))
}
