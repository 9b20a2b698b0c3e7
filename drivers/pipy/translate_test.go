package pipy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// manyServices returns an Outbound with that many services, whose endpoints depend on the
// generation.
func manyServices(n, changed, generation int) *mesh.Outbound {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	for i := range n {
		service := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", i)}, Port: 80}
		last := byte(1)
		if i == changed {
			last = byte(generation)
		}
		name := service.String()
		backends[name] = mesh.Seal(&mesh.Backend{Name: name, Service: service, Protocol: mesh.HTTP, Endpoints: []mesh.Endpoint{
			{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), last})}, Port: 8080, ServerName: store.DNSName()},
		}})
		destinations[name] = mesh.Seal(&mesh.Destination{Name: name, Service: service, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}, Port: 80, Protocol: mesh.HTTP,
			Routes: []mesh.Route{{Backends: []mesh.WeightedBackend{{Backend: name, Weight: 1}}}}})
	}
	return mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.TableOf(backends))
}

func viewOf(proxy string, outbound *mesh.Outbound) *mesh.View {
	p := &mesh.Proxy{Name: mesh.Name{Namespace: "shop", Name: proxy}, UID: "uid-" + proxy, Class: name, Identity: store}
	s := &mesh.Settings{TrustDomain: trustDomain, InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.2", Max: "1.3", Ciphers: []string{"A", "B"}}}
	return mesh.NewView(mesh.Seal(p), mesh.Seal(s), mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}), outbound, mesh.Seal(&mesh.Egress{}))
}

// TestDocumentsAreShared changes one endpoint: only one document is new, and proxies with
// equal parts share it.
func TestDocumentsAreShared(t *testing.T) {
	tr := newTranslator()
	before := tr.set(viewOf("a", manyServices(500, 7, 1)))
	after := tr.set(viewOf("a", manyServices(500, 7, 2)))
	var changed []string
	for change := range after.Diff(before) {
		changed = append(changed, change.Name)
	}
	if diff := cmp.Diff([]string{"config/backends/shop/s7:80.json"}, changed); diff != "" {
		t.Errorf("the changed documents (-want +got):\n%s", diff)
	}
	other := tr.set(viewOf("b", manyServices(500, 7, 2)))
	for change := range other.Diff(after) {
		if change.Name != settingsFile {
			t.Errorf("%s differs between proxies with equal parts", change.Name)
		}
	}
	one, _ := after.Get("config/backends/shop/s7:80.json")
	two, _ := other.Get("config/backends/shop/s7:80.json")
	if one == nil || one != two {
		t.Error("the document is not shared")
	}
	if got, want := mirror.Version(after), mirror.Version(newTranslator().set(viewOf("a", manyServices(500, 7, 2)))); got != want {
		t.Errorf("a translator with a cache returns %s, and one without %s", got, want)
	}
	gone := tr.set(viewOf("a", manyServices(499, 7, 2)))
	if _, there := gone.Get("config/backends/shop/s499:80.json"); there {
		t.Error("a removed service still has a document")
	}
}

// TestTranslatorIsForMany uses one translator from many goroutines.
func TestTranslatorIsForMany(t *testing.T) {
	tr := newTranslator()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for g := range 5 {
				view := viewOf(fmt.Sprint(i), manyServices(50, g, i))
				if got, want := mirror.Version(tr.set(view)), mirror.Version(newTranslator().set(view)); got != want {
					t.Errorf("proxy %d, generation %d: %s, want %s", i, g, got, want)
				}
			}
		})
	}
	group.Wait()
}

// TestDocumentNames uses names that are no valid paths.
func TestDocumentNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"shop/cart:80", "shop/cart:80@shop/cart-1", "shop/cart:80@2001:db8::1", "shop/cart:80@" + strings.Repeat("a", 250),
		"..", "a/../b", "/a", "a//b", ".hidden/a", "a/", "a\nb", "a\\b", "ä/b", "a b/c", "", "by-digest/x", "a\xff",
	} {
		file := newDocument(documentName(backendsDir, name), backendDocument{Name: name})
		if former, there := seen[file.Name]; there {
			t.Errorf("%q and %q have the same file, %s", name, former, file.Name)
		}
		seen[file.Name] = name
		if !strings.HasPrefix(file.Name, backendsDir) {
			t.Errorf("%q has the file %s", name, file.Name)
		}
	}
	if got := documentName(destinationsDir, "shop/cart:80@shop/cart-1"); got != "config/destinations/shop/cart:80@shop/cart-1.json" {
		t.Errorf("an ordinary name has the file %s", got)
	}
}

func TestSettings(t *testing.T) {
	proxy := &mesh.Proxy{Name: mesh.Name{Namespace: "bookstore", Name: "store-1"}, UID: "uid", Identity: store, Zone: "z", Plaintext: true, Addresses: []netip.Addr{storeAddress}}
	got, err := json.Marshal(settings(mesh.Seal(proxy), mesh.Seal(&mesh.Settings{
		TrustDomain: trustDomain, TLS: mesh.TLS{Min: "1.2", Max: "1.3", Ciphers: []string{"A", "B"}}, AccessLog: mesh.FullAccessLog(),
		Tracing: &mesh.Tracing{Protocol: "zipkin", Host: "2001:db8::9", Port: 9411, Sampled: 250_000}, Authorization: &mesh.Authorization{Host: "authz", Port: 9191, StatPrefix: "my-authz"},
	})))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"schema":3,"pod":"bookstore/store-1","namespace":"bookstore","name":"store-1","serviceAccount":"bookstore","uid":"uid","zone":"z","addresses":["198.18.0.10"],` +
		`"serverName":"bookstore.bookstore.sa.cluster.local","trustDomain":"cluster.local","plaintext":true,"tls":{"min":"TLS1.2","max":"TLS1.3","ciphers":"A:B"},"accessLog":true,` +
		`"tracing":{"address":"[2001:db8::9]:9411","path":"/api/v2/spans","sampled":0.25},"authorization":{"address":"authz:9191","timeout":0.2,"metrics":"envoy_http_ext_authz_my_authz_"}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("the settings (-want +got):\n%s", diff)
	}
	otlp := settings(mesh.Seal(proxy), mesh.Seal(&mesh.Settings{Tracing: &mesh.Tracing{Protocol: "otlp", Host: "collector", Port: 4317, Sampled: 1_000_000}}))
	if want := (tracingDocument{OTLP: true, Address: "collector:4317", Sampled: 1}); *otlp.Tracing != want {
		t.Errorf("with OTLP the tracing is %+v, want %+v", *otlp.Tracing, want)
	}
}

// TestIdentitiesStayClosed uses invalid identities.
func TestIdentitiesStayClosed(t *testing.T) {
	got := each([]mesh.Identity{buyer, {}, account("a.b", "c"), account("b", "c.a"), {Namespace: "x", ServiceAccount: "y"}}, spiffeID)
	want := []string{buyer.String(), nobody, "spiffe://cluster.local/ns/a.b/sa/c", "spiffe://cluster.local/ns/b/sa/c.a", nobody}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the names (-want +got):\n%s", diff)
	}
}

func TestRequestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limit mesh.RequestLimit
		want  requestLimit
	}{
		"usual":     {mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 10, Burst: 5, Interval: time.Second}}, requestLimit{bucketDocument{15, 10, 1}, 429, nil}},
		"no tokens": {mesh.RequestLimit{Status: 200}, requestLimit{bucketDocument{1, 1, 0.05}, 429, nil}},
		"no status": {mesh.RequestLimit{Status: 499, TokenBucket: mesh.TokenBucket{Tokens: 1, Burst: 1<<32 - 1, Interval: time.Minute}}, requestLimit{bucketDocument{1<<32 - 1, 1, 60}, 429, nil}},
		"headers": {mesh.RequestLimit{Status: 503, TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Second}, AddHeaders: []mesh.Header{{Name: "X-A", Value: "b"}, {Name: "x b", Value: "c"}, {Name: "x-c", Value: "d\r\ne"}, {Name: "", Value: "f"}}},
			requestLimit{bucketDocument{1, 1, 1}, 503, map[string]string{"x-a": "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, newRequestLimit(tt.limit), cmp.AllowUnexported(requestLimit{}, bucketDocument{})); diff != "" {
				t.Errorf("the limit (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProxiesShareTheirTranslation bounds what a change of one endpoint costs for each further
// proxy that sees the same services.
func TestProxiesShareTheirTranslation(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	tr := newTranslator()
	var proxies []*mesh.View
	for i := range 100 {
		proxies = append(proxies, viewOf(fmt.Sprint("p", i), manyServices(1000, 7, 1)))
	}
	translate := func() {
		for _, view := range proxies {
			tr.set(view)
		}
	}
	translate()
	if each := testing.AllocsPerRun(10, translate) / float64(len(proxies)); each > 20 {
		t.Errorf("the files of a further proxy cost %.0f allocations", each)
	}
}

func BenchmarkFurtherProxy(b *testing.B) {
	tr := newTranslator()
	outbound := manyServices(1000, 7, 1)
	views := []*mesh.View{viewOf("a", outbound), viewOf("b", outbound)}
	tr.set(views[0])
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		tr.set(views[i%2])
	}
}

func BenchmarkOneEndpoint(b *testing.B) {
	tr := newTranslator()
	views := []*mesh.View{viewOf("a", manyServices(1000, 7, 1)), viewOf("a", manyServices(1000, 7, 2))}
	tr.set(views[0])
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		tr.set(views[i%2])
	}
}
