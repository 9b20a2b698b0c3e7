package xds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// sotwClient is a proxy that uses the SotW protocol.
type sotwClient struct {
	t         testing.TB
	stream    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node      *corev3.Node
	responses chan *discoveryv3.DiscoveryResponse
	err       chan error
	fences    int
	// names are the subscribed names, and versions the last accepted ones, by type.
	names    map[string][]string
	versions map[string]string
	nonces   map[string]string
}

func (h *harness) sotw(t testing.TB, uid string) *sotwClient {
	t.Helper()
	conn := h.dial(t, h.ca.SignFor(proxyOf(uid), h.notAfter))
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &sotwClient{
		t: t, stream: stream, node: &corev3.Node{Id: uid}, responses: make(chan *discoveryv3.DiscoveryResponse, 1024), err: make(chan error, 1),
		names: map[string][]string{}, versions: map[string]string{}, nonces: map[string]string{},
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				c.err <- err
				return
			}
			c.responses <- r
		}
	}()
	return c
}

// ask subscribes to the names, or to everything if there are none.
func (c *sotwClient) ask(typeURL string, names ...string) {
	c.names[typeURL] = names
	c.send(typeURL, nil)
}

func (c *sotwClient) send(typeURL string, refusal *status.Status) {
	c.t.Helper()
	r := &discoveryv3.DiscoveryRequest{
		Node: c.node, TypeUrl: typeURL, ResourceNames: c.names[typeURL], VersionInfo: c.versions[typeURL], ResponseNonce: c.nonces[typeURL], ErrorDetail: refusal,
	}
	c.node = nil
	if err := c.stream.Send(r); err != nil {
		c.t.Logf("sending: %v", err)
	}
}

func (c *sotwClient) next() *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	select {
	case r := <-c.responses:
		return r
	case err := <-c.err:
		c.t.Fatalf("the stream ended: %v", err)
	case <-time.After(20 * time.Second):
		c.t.Fatal("no response came")
	}
	return nil
}

func sotwText(r *discoveryv3.DiscoveryResponse) string {
	var words []string
	for _, any := range r.Resources {
		var m clusterv3.Cluster
		if err := proto.Unmarshal(any.Value, &m); err != nil || any.TypeUrl != r.TypeUrl {
			return fmt.Sprint(err, any.TypeUrl)
		}
		words = append(words, m.Name+"="+m.AltStatName)
	}
	slices.SortFunc(words, cmp.Compare)
	return strings.Join(append([]string{shortType(r.TypeUrl)}, words...), " ")
}

func (c *sotwClient) want(want string) *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	r := c.next()
	if got := sotwText(r); got != want {
		c.t.Fatalf("the response is %q, want %q", got, want)
	}
	return r
}

func (c *sotwClient) take(want string) {
	c.t.Helper()
	c.ack(c.want(want))
}

func (c *sotwClient) ack(r *discoveryv3.DiscoveryResponse) {
	c.t.Helper()
	c.versions[r.TypeUrl], c.nonces[r.TypeUrl] = r.VersionInfo, r.Nonce
	c.send(r.TypeUrl, nil)
}

func (c *sotwClient) refuse(want string) {
	c.t.Helper()
	r := c.want(want)
	c.nonces[r.TypeUrl] = r.Nonce
	c.send(r.TypeUrl, &status.Status{Code: int32(codes.Internal), Message: "?"})
}

// quiet checks that nothing more is sent.
func (c *sotwClient) quiet() {
	c.t.Helper()
	c.fences++
	fence := fmt.Sprintf("test.Fence%d", c.fences%maxTypes)
	c.ask("type.googleapis.com/"+fence, "x")
	c.take(shortType(fence))
}

func connectedSotW(t testing.TB, h *harness) *sotwClient {
	t.Helper()
	view := h.set("p", shop)
	c := h.sotw(t, "p")
	c.ask(clusters)
	c.take("Cluster a=1 b=1")
	c.ask(endpoints, "a@1", "b@1")
	c.take("Endpoint a@1=1 b@1=1")
	c.ask(listeners)
	c.take("Listener l=1")
	c.ask(routes, "r")
	c.take("Route r=1")
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(view))
	return c
}

func TestSotWOrder(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connectedSotW(t, h)
	view := h.set("p", state{
		clusters:  {"b": "1", "c": "1"},
		endpoints: {"b@1": "1", "c@1": "1"},
		listeners: {"m": "1"},
		routes:    {"r": "2"},
	})
	// Removed resources stay until everything else has arrived.
	c.take("Cluster a=1 b=1 c=1")
	c.quiet()
	c.ask(endpoints, "b@1", "c@1")
	c.take("Endpoint c@1=1")
	c.take("Listener l=1 m=1")
	c.take("Route r=2")
	c.take("Listener m=1")
	c.take("Cluster b=1 c=1")
	c.quiet()
	eventually(t, "the change is acknowledged", h.runs(view))
	h.set("p", state{
		clusters: {"b": "1", "c": "1"}, endpoints: {"b@1": "2", "c@1": "1"}, listeners: {"m": "1"}, routes: {"r": "2"},
	})
	c.take("Endpoint b@1=2")
	c.quiet()
}

// TestOptionalType has a client that subscribes to listeners only, as gRPC's servers do.
func TestOptionalType(t *testing.T) {
	core := newCore(t)
	core.types = slices.Clone(testTypes)
	core.types[1].Optional = true
	h := core.serve(t, forever)
	view := h.set("p", state{listeners: {"l": "1", "m": "1"}})
	c := h.sotw(t, "p")
	c.ask(listeners, "l", "m")
	c.take("Listener l=1 m=1")
	eventually(t, "the View is acknowledged", h.runs(view))
	view = h.set("p", state{listeners: {"m": "1"}})
	c.take("Listener m=1")
	eventually(t, "the removal is acknowledged", h.runs(view))
}

func TestSotWReconnect(t *testing.T) {
	h := newCore(t).serve(t, forever)
	former := connectedSotW(t, h)
	again := func(also ...string) *sotwClient {
		c := h.sotw(t, "p")
		for typeURL, version := range former.versions {
			if !strings.Contains(typeURL, "Fence") {
				c.versions[typeURL] = version
			}
		}
		c.ask(clusters)
		c.ask(endpoints, append(also, "a@1", "b@1")...)
		c.ask(listeners)
		c.ask(routes, "r")
		return c
	}
	c := again()
	// Names may have been dropped and added again under the same version.
	c.take("Endpoint a@1=1 b@1=1")
	c.take("Route r=1")
	c.quiet()
	view := h.set("p", shop.with(endpoints, "c@1", "1").with(listeners, "l", "2"))
	c.take("Listener l=2")
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(view))
	c = again("c@1")
	c.take("Endpoint a@1=1 b@1=1 c@1=1")
	c.take("Listener l=2")
	c.take("Route r=1")
	c.quiet()
}

// TestSotWLateRequest sends a request while a response is in flight.
func TestSotWLateRequest(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connectedSotW(t, h)
	h.set("p", shop.with(endpoints, "a@1", "2"))
	r := c.want("Endpoint a@1=2")
	c.ask(endpoints, "a@1")
	c.quiet()
	c.names[endpoints] = []string{"a@1", "b@1"}
	c.ack(r)
	c.quiet()
	h.set("p", shop.with(endpoints, "a@1", "2").with(endpoints, "b@1", "2"))
	c.take("Endpoint b@1=2")
}

func TestSotWNack(t *testing.T) {
	h := newCore(t).serve(t, forever)
	c := connectedSotW(t, h)
	h.set("p", shop.with(clusters, "a", "bad").with(clusters, "c", "1").with(listeners, "l", "2").with(endpoints, "c@1", "1"))
	c.refuse("Cluster a=bad b=1 c=1")
	// Then each half, together with the good resources.
	c.refuse("Cluster a=bad b=1")
	c.take("Cluster a=1 b=1 c=1")
	c.ask(endpoints, "a@1", "b@1", "c@1")
	c.take("Endpoint c@1=1")
	c.take("Listener l=2")
	c.quiet()
	if got := h.rejections(); len(got) != 1 || len(got[0].Resources) != 1 || got[0].Resources[0] != "Cluster a" {
		t.Errorf("rejections are %v", got)
	}
	good := h.set("p", shop)
	c.take("Listener l=1")
	c.take("Cluster a=1 b=1")
	c.quiet()
	eventually(t, "the View is acknowledged", h.runs(good))
}

// TestSotWNames subscribes to clusters by name, as gRPC's own clients do.
func TestSotWNames(t *testing.T) {
	h := newCore(t).serve(t, 10*time.Millisecond)
	h.set("p", shop)
	c := h.sotw(t, "p")
	c.ask(clusters, "a")
	c.take("Cluster a=1")
	c.ask(clusters, "a", "b", "x")
	c.take("Cluster a=1 b=1")
	h.set("p", shop.with(clusters, "b", "").with(clusters, "x", "1"))
	c.take("Cluster a=1 b=1 x=1")
	c.take("Cluster a=1 x=1")
	c.ask(clusters, "x")
	c.quiet()
	h.set("p", shop.with(clusters, "x", "2"))
	c.take("Cluster x=2")
	c.quiet()
	c.ask(endpoints)
	c.take("Endpoint")
	c.quiet()
}
