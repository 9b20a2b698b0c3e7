package xds

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const forever = time.Hour

// shop is a state of two services.
var shop = state{
	secrets:   {"s": "1"},
	clusters:  {"a": "1", "b": "1"},
	endpoints: {"a@1": "1", "b@1": "1"},
	listeners: {"l": "1"},
	routes:    {"r": "1"},
}

// connected is a proxy that has all of the shop.
func connected(t testing.TB, h *harness) *deltaClient {
	t.Helper()
	view := h.set("p", shop)
	c := h.delta(t, "p")
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
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(view))
	return c
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

// TestDeltaOrder changes everything at once.
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

// TestDeltaPatience has a proxy that asks for no endpoints, and does not answer.
func TestDeltaPatience(t *testing.T) {
	h := newCore(t).serve(t, 30*time.Millisecond)
	c := connected(t, h)
	h.set("p", shop.with(clusters, "c", "1").with(endpoints, "c@1", "1").with(listeners, "l", "2"))
	c.take("Cluster c=1")
	c.take("Listener l=2")
	h.set("p", shop.with(listeners, "l", "3"))
	r := c.want("Listener l=3")
	c.take("Cluster -c")
	// That the listener is never answered holds nothing for good.
	h.set("p", shop.with(listeners, "l", "4").with(endpoints, "a@1", "2"))
	c.take("Endpoint a@1=2")
	c.ack(r)
	c.take("Listener l=4")
	c.quiet()
}

// TestDeltaCoalesces has a proxy that is slow.
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

// TestDeltaEndsWhatItBegan has clusters change faster than the proxy asks for their
// endpoints: listeners get their turn.
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

// TestDeltaReconnect connects again with what the proxy has.
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

	// Another replica, or the same one after a restart, calls everything the same.
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

	// What changed in the meantime is sent, and nothing else.
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

// TestDeltaReconnectForWhatHasEnded asks for routes that have ended, for the sake of a
// listener that is still draining.
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
	// It is there again, and what the proxy has of it is not what it should have.
	h.set("p", shop.with(routes, "r", "2"))
	c.take("Route r=2")
}

// TestDeltaNames asks for names that there are not, and no longer for others.
func TestDeltaNames(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	c.subscribe(endpoints, "nowhere")
	c.take("Endpoint -nowhere")
	h.set("p", shop.with(endpoints, "nowhere", "1"))
	c.take("Endpoint nowhere=1")
	// A proxy that asks again has forgotten.
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
	// A proxy waits for its first response even if there is nothing.
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

// TestDeltaNack refuses one resource.
func TestDeltaNack(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	bad := h.set("p", shop.with(clusters, "a", "bad").with(endpoints, "a@bad", "1").with(listeners, "l", "2"))
	c.refuse("Cluster a=bad", "no such thing")
	// The rest goes on.
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
		t.Error("a View is told to run of which a part is refused")
	}
	// It is not sent again whatever else changes.
	h.set("p", shop.with(clusters, "a", "bad").with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
	c.take("Listener l=1")
	c.quiet()
	// The proxy still has the good one, which needs not be sent.
	good := h.set("p", shop)
	c.take("Endpoint b@1=1")
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(good))
	// The same bytes after others are another try.
	h.set("p", shop.with(clusters, "a", "bad"))
	c.refuse("Cluster a=bad", "no such thing")
	h.set("p", shop.with(clusters, "a", "better"))
	c.take("Cluster a=better")
	c.quiet()
}

// TestDeltaNackOfMany refuses responses with several resources, of which one is bad.
func TestDeltaNackOfMany(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connected(t, h)
	next := shop
	for _, name := range []string{"c:1", "d:1", "e:1", "f:1"} {
		next = next.with(clusters, name, "1")
	}
	view := h.set("p", next)
	// Envoy names those that it refuses.
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
		t.Error("a View is told to run of which a part is refused")
	}
	// Or it says nothing that helps.
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

// TestDeltaNackIsOver tells that a View runs that ran before something was refused, and
// one of which what was refused is not asked for any more.
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

// TestResync sends everything again.
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
