package xds

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// wantEnd checks that the stream ended with the code and that the message has the
// reason.
func wantEnd(t *testing.T, err error, code codes.Code, why string) {
	t.Helper()
	if s := status.Convert(err); s.Code() != code || !strings.Contains(s.Message(), why) {
		t.Errorf("the stream ended with %v, want %s and %q", err, code, why)
	}
}

// TestUnauthorizedProxies connects proxies that do not match their certificate or View.
func TestUnauthorizedProxies(t *testing.T) {
	other := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "thief"}
	for name, tt := range map[string]struct {
		node   string
		change func(*mesh.Proxy)
		core   func(*core)
		code   codes.Code
		why    string
	}{
		"node id of another pod":     {node: "q", code: codes.PermissionDenied, why: `node id "q"`},
		"no node id":                 {node: "", code: codes.PermissionDenied, why: `node id ""`},
		"unknown pod":                {node: "p", core: func(c *core) { c.SetView("p", nil) }, code: codes.PermissionDenied, why: "no such proxy"},
		"pod of another identity":    {node: "p", change: func(p *mesh.Proxy) { p.Identity = other }, code: codes.PermissionDenied, why: other.String()},
		"pod of another class":       {node: "p", change: func(p *mesh.Proxy) { p.Class = "pipy" }, code: codes.PermissionDenied, why: `"pipy"`},
		"class in upper case":        {node: "p", change: func(p *mesh.Proxy) { p.Class = "TEST" }, code: codes.Unavailable, why: "shutting down"},
		"View of another proxy":      {node: "p", core: func(c *core) { view, _ := c.View("q"); c.SetView("p", view) }, code: codes.PermissionDenied, why: `"q"`},
		"too many proxies":           {node: "p", core: func(c *core) { c.Refuse(fmt.Errorf("1 is the most: %w", driver.ErrTooManyProxies)) }, code: codes.ResourceExhausted, why: "1 is the most"},
		"a registry that has failed": {node: "p", core: func(c *core) { c.Refuse(fmt.Errorf("no memory")) }, code: codes.Unavailable, why: "no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newCore(t).serve(t, forever)
			proxy := proxyOf("p")
			if tt.change != nil {
				tt.change(proxy)
			}
			h.put(proxyOf("q"), nil)
			h.put(proxy, shop.config(nil))
			if tt.core != nil {
				tt.core(h.core)
			}
			c := h.deltaOf(t, "p", tt.node)
			c.subscribe(clusters)
			if tt.code == codes.Unavailable && tt.core == nil {
				c.take("Cluster a=1 b=1")
				h.end()
			}
			wantEnd(t, c.ends(), tt.code, tt.why)
			if tt.code == codes.PermissionDenied && len(h.events) > 0 {
				t.Errorf("the registry has events %v", h.events)
			}
		})
	}
}

// TestCertificates connects with certificates that are not a workload's.
func TestCertificates(t *testing.T) {
	c := newCore(t)
	h := c.serve(t, forever)
	h.set("p", shop)
	uri := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/cart"}
	for name, tt := range map[string]struct {
		authority drivertest.TestAuthority
		template  x509.Certificate
		code      codes.Code
		why       string
	}{
		"no pod UID":        {c.ca, x509.Certificate{URIs: []*url.URL{uri}}, codes.PermissionDenied, "organizational unit"},
		"no identity":       {c.ca, x509.Certificate{Subject: pkix.Name{OrganizationalUnit: []string{"p"}}}, codes.PermissionDenied, "one URI"},
		"another authority": {drivertest.NewTestAuthority(t), x509.Certificate{Subject: pkix.Name{OrganizationalUnit: []string{"p"}}, URIs: []*url.URL{uri}}, codes.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			conn := h.dial(t, tt.authority.Sign(&tt.template, time.Hour))
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
			if err == nil {
				_, err = stream.Recv()
			}
			wantEnd(t, err, tt.code, tt.why)
		})
	}
}

// TestCertificateEnds checks that the stream ends before the certificate expires.
func TestCertificateEnds(t *testing.T) {
	c := newCore(t)
	c.notAfter = 2 * time.Second
	h := c.serve(t, forever)
	h.set("p", shop)
	client := h.delta(t, "p")
	begin := time.Now()
	client.subscribe(clusters)
	client.take("Cluster a=1 b=1")
	wantEnd(t, client.ends(), codes.Unavailable, "certificate expires soon")
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the stream ended after %s", took)
	}
}

// TestCertificateEndsConnection checks that a client needs a new connection, and so a new
// handshake, for the next stream.
func TestCertificateEndsConnection(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.set("p", shop)
	conn := h.dial(t, h.ca.SignFor(proxyOf("p"), 2*time.Second))
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err == nil {
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: clusters})
	}
	for err == nil {
		_, err = stream.Recv()
	}
	wantEnd(t, err, codes.Unavailable, "certificate expires soon")
	// An idle connection ends after a minute.
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !conn.WaitForStateChange(soon, connectivity.Ready) {
		t.Error("the connection stays open")
	}
}

// TestViewGoesAway ends the streams of a pod that was deleted or changed its identity,
// even if the proxy is busy.
func TestViewGoesAway(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy=%t", busy), func(t *testing.T) {
			h := newCore(t).serve(t, forever)
			c := connected(t, h)
			if busy {
				h.set("p", shop.with(clusters, "a", "2"))
				c.want("Cluster a=2")
			}
			h.SetView("p", nil)
			wantEnd(t, c.ends(), codes.PermissionDenied, "not in the mesh any more")
			eventually(t, "the registry hears of it", func() bool { return h.reported("close") })

			c = connected(t, h)
			proxy := proxyOf("p")
			proxy.Identity.ServiceAccount = "thief"
			h.put(proxy, nil)
			wantEnd(t, c.ends(), codes.PermissionDenied, "sa/thief")
		})
	}
}

// TestNotBeforeTheSnapshot has a proxy wait for the first complete Snapshot.
func TestNotBeforeTheSnapshot(t *testing.T) {
	c := newCore(t)
	ready := c.NotReady()
	h := c.serve(t, forever)
	h.set("p", state{})
	client := h.delta(t, "p")
	client.subscribe(clusters)
	select {
	case r := <-client.responses:
		t.Fatalf("%s is sent before there is a Snapshot", text(r))
	case <-time.After(50 * time.Millisecond):
	}
	h.set("p", shop)
	ready()
	client.take("Cluster a=1 b=1")
}

// TestServerEnds shuts the Server down while streams wait for something.
func TestServerEnds(t *testing.T) {
	c := newCore(t)
	c.NotReady()
	h := c.serve(t, forever)
	h.set("p", shop)
	waiting := h.delta(t, "p")
	waiting.subscribe(clusters)
	silent := h.delta(t, "p")
	eventually(t, "both have entered", func() bool { return len(h.server.streamsOf("p")) == 2 })
	begin := time.Now()
	h.end()
	wantEnd(t, waiting.ends(), codes.Unavailable, "shutting down")
	wantEnd(t, silent.ends(), codes.Unavailable, "")
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if h.server.Probes("x").Readiness() {
		t.Error("the Server reports that it is ready")
	}
}

// TestConnectsAgain opens too many streams of one proxy: the oldest ends.
func TestConnectsAgain(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.set("p", shop)
	var all []*deltaClient
	for range streamsPerProxy + 1 {
		c := h.delta(t, "p")
		c.subscribe(clusters)
		c.take("Cluster a=1 b=1")
		all = append(all, c)
	}
	wantEnd(t, all[0].ends(), codes.Unavailable, "connected again")
	for _, c := range all[1:] {
		c.quiet()
	}
}

// TestConnectsAgainWhileStuck blocks the oldest stream of a proxy: newer streams above
// the limit end all the same.
func TestConnectsAgainWhileStuck(t *testing.T) {
	h := newCore(t).serve(t, forever)
	big := state{}
	for i := range 40 {
		big = big.with(clusters, fmt.Sprint("c", i), strings.Repeat("x", 60_000))
	}
	h.put(proxyOf("p"), big.config(nil))
	conn := h.dial(t, h.ca.SignFor(proxyOf("p"), time.Hour))
	stuck, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{Node: &corev3.Node{Id: "p"}, TypeUrl: clusters}, {TypeUrl: endpoints, ResourceNamesSubscribe: []string{"x"}},
	} {
		if err := stuck.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	var newest *stream
	// Only the newest stream is compared, since the older ones may end at any time.
	entered := func() bool {
		all := h.server.streamsOf("p")
		if len(all) == 0 || all[len(all)-1] == newest {
			return false
		}
		newest = all[len(all)-1]
		return true
	}
	eventually(t, "the stuck one has entered", entered)
	var all []*deltaClient
	for i := range 3 * streamsPerProxy {
		c := h.delta(t, "p")
		c.subscribe(endpoints)
		all = append(all, c)
		eventually(t, "it has entered", entered)
		if i >= streamsPerProxy {
			// Checked before its connection exceeds the limit too and is closed without a
			// status.
			wantEnd(t, all[i-streamsPerProxy].ends(), codes.Unavailable, "connected again")
		}
	}
}

// TestLimits exceeds limits, which ends only the client's own stream.
func TestLimits(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.set("q", shop)
	other := h.delta(t, "q")
	other.subscribe(clusters)
	other.take("Cluster a=1 b=1")
	names := func(n, length int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("%0*d", length, i)
		}
		return out
	}
	for name, tt := range map[string]struct {
		ask  func(*deltaClient)
		code codes.Code
	}{
		"a long name":    {func(c *deltaClient) { c.subscribe(endpoints, strings.Repeat("x", maxNameBytes+1)) }, codes.InvalidArgument},
		"names at once":  {func(c *deltaClient) { c.subscribe(endpoints, names(maxNames+1, 8)...) }, codes.ResourceExhausted},
		"a long request": {func(c *deltaClient) { c.subscribe(endpoints, names(8000, 1000)...) }, codes.ResourceExhausted},
		"names": {func(c *deltaClient) {
			for i := range 12 {
				batch := names(5000, 100)
				for j := range batch {
					batch[j] = fmt.Sprint(i) + batch[j]
				}
				c.subscribe(endpoints, batch...)
			}
		}, codes.ResourceExhausted},
		"types": {func(c *deltaClient) {
			for i := range maxTypes + 1 {
				c.subscribe(fmt.Sprint("type.googleapis.com/t", i), "x")
			}
		}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			h.set("p", shop)
			c := h.delta(t, "p")
			tt.ask(c)
			wantEnd(t, c.ends(), tt.code, "")
			other.quiet()
		})
	}
}

// TestSlowClient has a client that does not read: other clients are served.
func TestSlowClient(t *testing.T) {
	h := newCore(t).serve(t, forever)
	big := state{}
	for i := range 40 {
		big = big.with(clusters, fmt.Sprint("c", i), strings.Repeat("x", 60_000))
	}
	h.put(proxyOf("slow"), big.config(nil))
	conn := h.dial(t, h.ca.SignFor(proxyOf("slow"), time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "slow"}, TypeUrl: clusters}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the slow one has entered", func() bool { return len(h.server.streamsOf("slow")) == 1 })
	c := connected(t, h)
	for _, content := range []string{"2", "3", "4"} {
		h.put(proxyOf("slow"), nil)
		h.set("p", shop.with(endpoints, "a@1", content))
		c.take("Endpoint a@1=" + content)
	}
}

// TestStuckClient closes the connection of a client that has not read for too long.
func TestStuckClient(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.server.sendTimeout = 50 * time.Millisecond
	big := state{}
	for i := range 40 {
		big = big.with(clusters, fmt.Sprint("c", i), strings.Repeat("x", 60_000))
	}
	h.set("stuck", big)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(h.dial(t, h.ca.SignFor(proxyOf("stuck"), time.Hour))).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*discoveryv3.DeltaDiscoveryRequest{
		{Node: &corev3.Node{Id: "stuck"}, TypeUrl: clusters}, {TypeUrl: endpoints, ResourceNamesSubscribe: []string{"x"}},
	} {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "its stream ends", func() bool { return h.reported("close") && len(h.server.streamsOf("stuck")) == 0 })
}
