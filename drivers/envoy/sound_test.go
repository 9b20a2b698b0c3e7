package envoy

import (
	"crypto/tls"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// TestDuration checks that durations keep their meaning for Envoy, which drops
// fractions of a millisecond and takes 0 for no limit.
func TestDuration(t *testing.T) {
	for _, tt := range []struct{ given, want time.Duration }{
		{0, 0},
		{1, time.Millisecond},
		{500 * time.Microsecond, time.Millisecond},
		{time.Second, time.Second},
		{math.MaxInt64, math.MaxInt32 * time.Second},
	} {
		if got := duration(tt.given).AsDuration(); got != tt.want {
			t.Errorf("duration(%v) = %v, want %v", tt.given, got, tt.want)
		}
	}
}

// TestLongestDurations has Envoy accept a policy with only the longest durations.
func TestLongestDurations(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	f := fixture{scope: "*", settings: mesh.Seal(&mesh.Settings{
		Roots:       exampleRoot,
		TrustDomain: "cluster.local", InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"},
		Authorization: &mesh.Authorization{Host: "authz.example.com", Port: 9191, Timeout: longest},
	})}
	b := backend(port("web", 80), mesh.HTTP)
	b.Policy = mesh.UpstreamPolicy{
		ConnectTimeout: longest, IdleTimeout: longest, RequestTimeout: longest,
		Ejection: &mesh.Ejection{ConsecutiveErrors: 1, Interval: longest, BaseTime: longest},
	}
	d := destination(b.Service, mesh.HTTP, "10.96.0.1", b)
	d.HashOn = []mesh.HashOn{{Cookie: "c", CookieTTL: longest}}
	d.Routes[0].Timeout = longest
	d.Routes[0].Retry = &mesh.Retry{On: []string{"5xx"}, Attempts: 1, PerTry: longest, Backoff: longest}
	f.backends, f.destinations = append(f.backends, b), append(f.destinations, d)
	if err := check(t, f.view()); err != nil {
		t.Error(err)
	}
}

// TestAllAddresses checks that no filter chain has the range of all addresses, since
// Envoy would pick arbitrarily between it and a chain without a range.
func TestAllAddresses(t *testing.T) {
	all := ranges("0.0.0.0/0", "0.0.0.0/1", "::/0")
	inbound := inboundCase{inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{Port: 9443, Protocol: mesh.TCP, Ingress: []mesh.Ingress{
		{Origin: drivertest.Origin("IngressBackend", "db/ops"), TLS: true, Principals: []mesh.Identity{ops}, Requests: anyRequest},
		{Origin: drivertest.Origin("IngressBackend", "db/all"), TLS: true, SkipClientCert: true, Ranges: all, Requests: anyRequest},
		{Origin: drivertest.Origin("IngressBackend", "db/plain"), Ranges: all, Requests: anyRequest},
	}}}}}
	in := makeInbound(t, inbound)
	f := fixture{scope: "*", egress: mesh.Egress{Ports: []mesh.EgressRoutes{{
		Port: 80, Protocol: mesh.EgressHTTP, Ranges: all, Hosts: []mesh.EgressHost{{Host: "example.com", Matches: anyRequest}},
	}}}}
	out := made{t, NewTranslator().Config(f.view())}.message(listenerType, outboundListener).(*listenerv3.Listener)
	want := []string{"0.0.0.0/1", "128.0.0.0/1", "8000::/1", "::/1"}
	var sources, destinations []string
	for _, chain := range in.chains() {
		for _, r := range chain.GetFilterChainMatch().GetSourcePrefixRanges() {
			sources = append(sources, rangeText(r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
		}
	}
	for _, chain := range out.GetFilterChains() {
		for _, r := range chain.GetFilterChainMatch().GetPrefixRanges() {
			destinations = append(destinations, rangeText(r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
		}
	}
	slices.Sort(sources)
	slices.Sort(destinations)
	if sources = slices.Compact(sources); !slices.Equal(sources, want) {
		t.Errorf("the ranges of callers are %q, want %q", sources, want)
	}
	if !slices.Equal(destinations, want) {
		t.Errorf("the ranges outside the mesh are %q, want %q", destinations, want)
	}
	for _, view := range []*mesh.View{inbound.view(), f.view()} {
		if err := check(t, view); err != nil {
			t.Error(err)
		}
	}
}

func rangeText(address string, bits uint32) string {
	return netip.PrefixFrom(netip.MustParseAddr(address), int(bits)).String()
}

// TestRealEjection has one of two endpoints fail, with a maximum percentage of less
// than one endpoint, and then the only one.
func TestRealEjection(t *testing.T) {
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	good := httptest.NewServer(say("good"))
	t.Cleanup(bad.Close)
	t.Cleanup(good.Close)
	endpoint := func(s *httptest.Server) mesh.Endpoint {
		at := addressOf(s.Listener)
		return mesh.Endpoint{Addresses: []netip.Addr{at.Addr()}, Port: at.Port()}
	}
	f := fixture{scope: "*"}
	for address, b := range map[string]*mesh.Backend{
		"10.96.0.1": backend(port("two", 80), mesh.HTTP, endpoint(bad), endpoint(good)),
		"10.96.0.2": backend(port("one", 80), mesh.HTTP, endpoint(bad)),
	} {
		b.Policy.Ejection = &mesh.Ejection{ConsecutiveErrors: 2, BaseTime: time.Hour, MaxPercent: 10}
		f.backends, f.destinations = append(f.backends, b), append(f.destinations, destination(b.Service, mesh.HTTP, address, b))
	}
	dir := t.TempDir()
	if err := program.WriteIdentity(dir, proxy().Identity); err != nil {
		t.Fatal(err)
	}
	e := startEnvoy(t, f.view(), dir, "outbound")
	// Envoy's main thread ejects, some time after a worker saw the second error.
	inRow := 0
	for deadline := time.Now().Add(20 * time.Second); inRow < 40; {
		if status, _ := e.get(t, "10.96.0.1:80", "http://two/"); status == 200 {
			inRow++
		} else if inRow = 0; time.Now().After(deadline) {
			t.Fatal("requests to two endpoints still fail, want the failing one ejected for an hour")
		}
		// There is no other endpoint, so the ejected one is still used.
		if status, _ := e.get(t, "10.96.0.2:80", "http://one/"); status != 500 {
			t.Fatalf("the only endpoint's answer is %d, want its own 500", status)
		}
	}
}

// TestRealRetry has one of two randomly chosen endpoints fail: without the host
// predicate half of the retries would go to the failing one.
func TestRealRetry(t *testing.T) {
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	good := httptest.NewServer(say("good"))
	t.Cleanup(bad.Close)
	t.Cleanup(good.Close)
	var endpoints []mesh.Endpoint
	for _, s := range []*httptest.Server{bad, good} {
		at := addressOf(s.Listener)
		endpoints = append(endpoints, mesh.Endpoint{Addresses: []netip.Addr{at.Addr()}, Port: at.Port()})
	}
	b := backend(port("web", 80), mesh.HTTP, endpoints...)
	b.Policy.LoadBalancing = mesh.LoadBalancing{Policy: mesh.Random}
	d := destination(b.Service, mesh.HTTP, "10.96.0.1", b)
	d.Routes[0].Retry = &mesh.Retry{On: []string{"5xx"}, Attempts: 1}
	f := fixture{scope: "*", backends: []*mesh.Backend{b}, destinations: []*mesh.Destination{d}}
	dir := t.TempDir()
	if err := program.WriteIdentity(dir, proxy().Identity); err != nil {
		t.Fatal(err)
	}
	e := startEnvoy(t, f.view(), dir, "outbound")
	for range 40 {
		if status, _ := e.get(t, "10.96.0.1:80", "http://web/"); status != 200 {
			t.Fatalf("a retriable request gives %d", status)
		}
	}
}

// TestRealConnectionLimit opens a port with a limit of one connection per hour, by
// every filter chain.
func TestRealConnectionLimit(t *testing.T) {
	e := runInbound(t, func(p *app) inboundCase {
		return inboundCase{inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{{
			Port: p.tcp, Protocol: mesh.TCP, Access: anyone,
			Limits: mesh.RateLimits{Connections: &mesh.TokenBucket{Tokens: 1, Interval: time.Hour}},
		}}}}
	})
	if got, err := e.hello(e.tcp, e.as(buyer)); got != "hello\n" {
		t.Fatalf("the first connection reads %q, %v", got, err)
	}
	if got, _ := e.hello(e.tcp, e.as(buyer)); got != "" {
		t.Errorf("a second one reads %q", got)
	}
	if got, _ := e.hello(e.tcp, nil); got != "" {
		t.Errorf("one in plaintext reads %q", got)
	}
	conn, err := e.call(e.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: "app.example.com"}).Handshake()
	if n, _ := conn.Read(make([]byte, 1)); n > 0 {
		t.Error("one in the application's own TLS is answered")
	}
}
