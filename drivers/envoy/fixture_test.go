package envoy

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// settings are those of a mesh with defaults.
func settings() *mesh.Settings {
	return mesh.Seal(&mesh.Settings{
		TrustDomain: "cluster.local", PermissivePolicy: true, InboundTLS: mesh.Strict,
		TLS: mesh.TLS{Min: "1.3", Max: "1.3"}, Roots: exampleRoot,
	})
}

// exampleRoot is a root whose key was discarded.
const exampleRoot = `-----BEGIN CERTIFICATE-----
MIIBhTCCASugAwIBAgIUF0pYFE1A2CPhObsTLjn69uifPT4wCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMRXhhbXBsZSBSb290MCAXDTI2MTEyMjEyNDk1MFoYDzIxMjYx
MDI5MTI0OTUwWjAXMRUwEwYDVQQDDAxFeGFtcGxlIFJvb3QwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAASY6AeJgcw4GnGqbc5LSnKjVNtWSyyJ0gXrnXRzGnWD1ciJ
h2jvy9tSXFG4GW1o84rIn9A0pXjX4S8Gx/e7Pt1Go1MwUTAdBgNVHQ4EFgQUwPp7
Dbd61X0TMkG28sR97L36+dwwHwYDVR0jBBgwFoAUwPp7Dbd61X0TMkG28sR97L36
+dwwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiB+ekkHltJs3HTb
ooVjS2qgGOnhreLrc3vKZXCH4rmpngIhAOyLRCLZLgh5lhRJxN3NyXgl/UJCI6ov
1wG7hezka8To
-----END CERTIFICATE-----
`

// proxy is the client of the fixtures.
func proxy() *mesh.Proxy { return mesh.Seal(newProxy()) }

func newProxy() *mesh.Proxy {
	return &mesh.Proxy{
		Name: mesh.Name{Namespace: "bookbuyer", Name: "bookbuyer-1"}, UID: "uid-1", Class: "envoy",
		Identity:  mesh.Identity{TrustDomain: "cluster.local", Namespace: "bookbuyer", ServiceAccount: "bookbuyer"},
		Addresses: addresses("10.244.0.5"),
	}
}

// fixture is an unfinished View.
type fixture struct {
	settings     *mesh.Settings
	proxy        *mesh.Proxy
	scope        string
	destinations []*mesh.Destination
	backends     []*mesh.Backend
	egress       mesh.Egress
	unknown      []netip.Prefix
}

func (f fixture) view() *mesh.View {
	if f.settings == nil {
		f.settings = settings()
	}
	if f.proxy == nil {
		f.proxy = proxy()
	}
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	for _, d := range f.destinations {
		destinations[d.Name] = mesh.Seal(d)
	}
	for _, b := range f.backends {
		backends[b.Name] = mesh.Seal(b)
	}
	outbound := mesh.NewOutbound(f.scope, mesh.TableOf(destinations), mesh.TableOf(backends))
	if len(f.unknown) > 0 {
		outbound = outbound.WithUnknown(f.unknown)
	}
	return mesh.NewView(f.proxy, f.settings, mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}),
		outbound, mesh.Seal(&f.egress))
}

func addresses(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParseAddr(text)
	}
	return out
}

func port(name string, number uint16) mesh.ServicePort {
	return mesh.ServicePort{Name: mesh.Name{Namespace: "bookstore", Name: name}, Port: number}
}

// destination returns a service's Destination with equal shares for the backends.
func destination(service mesh.ServicePort, protocol mesh.Protocol, address string, backends ...*mesh.Backend) *mesh.Destination {
	d := &mesh.Destination{
		Name: service.String(), Service: service, Addresses: addresses(address), Port: service.Port, Protocol: protocol,
		Origins: []mesh.Origin{drivertest.Origin("Service", service.Name.String())},
	}
	if protocol.IsHTTP() {
		d.Routes = []mesh.Route{{Backends: shares(backends...)}}
	} else {
		d.Backends = shares(backends...)
	}
	return d
}

func shares(backends ...*mesh.Backend) []mesh.WeightedBackend {
	var out []mesh.WeightedBackend
	for _, b := range backends {
		out = append(out, mesh.WeightedBackend{Backend: b.Name, Weight: 1})
	}
	return out
}

func backend(service mesh.ServicePort, protocol mesh.Protocol, endpoints ...mesh.Endpoint) *mesh.Backend {
	return &mesh.Backend{
		Name: service.String(), Service: service, Protocol: protocol, Endpoints: endpoints,
		Origins: []mesh.Origin{drivertest.Origin("Service", service.Name.String()), drivertest.Origin("UpstreamTrafficSetting", service.Name.String())},
	}
}

// endpoint returns an endpoint in the mesh.
func endpoint(port uint16, texts ...string) mesh.Endpoint {
	return mesh.Endpoint{
		Addresses: addresses(texts...), Port: port,
		ServerName: "bookstore.bookstore.sa.cluster.local", Workload: "bookstore/bookstore-1",
	}
}

// views are the cases of the goldens.
func views() map[string]fixture {
	store := port("bookstore", 14001)
	v1, v2 := port("bookstore-v1", 14001), port("bookstore-v2", 14001)
	db := port("mysql", 3306)
	one := func(d *mesh.Destination, backends ...*mesh.Backend) fixture {
		return fixture{scope: "*", destinations: []*mesh.Destination{d}, backends: backends}
	}
	cases := map[string]fixture{"empty": {scope: "*"}}

	b := backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11"), endpoint(14001, "10.244.0.12"))
	cases["http"] = one(destination(store, mesh.HTTP, "10.96.0.10", b), b)
	grpc := port("inventory", 50051)
	b = backend(grpc, mesh.GRPC, endpoint(50051, "10.244.0.11"))
	cases["grpc"] = one(destination(grpc, mesh.GRPC, "10.96.0.14", b), b)

	one1 := backend(v1, mesh.HTTP, endpoint(14001, "10.244.0.11"))
	two := backend(v2, mesh.HTTP, endpoint(14001, "10.244.0.12"))
	d := destination(store, mesh.HTTP, "10.96.0.10")
	d.Routes = []mesh.Route{
		{
			Origin: drivertest.Origin("HTTPRoute", "bookstore/canary"),
			Match: mesh.HTTPMatch{
				Path: mesh.StringMatch{Regex: "/books.*"}, Methods: []string{"GET", "HEAD"},
				Headers: []mesh.KeyMatch{
					{Name: "host", StringMatch: mesh.StringMatch{Prefix: "bookstore"}},
					{Name: "user-agent", StringMatch: mesh.StringMatch{Regex: ".*Firefox.*"}},
					{Name: "x-session", StringMatch: mesh.StringMatch{Present: true}},
				},
				Query: []mesh.KeyMatch{{Name: "id", StringMatch: mesh.StringMatch{Exact: "1"}}, {Name: "page", StringMatch: mesh.StringMatch{Present: true}}},
			},
			Backends: []mesh.WeightedBackend{{Backend: one1.Name, Weight: 90}, {Backend: two.Name, Weight: 10}, {Backend: "bookstore/off:14001"}},
			Timeout:  3 * time.Second,
			Retry:    &mesh.Retry{On: []string{"5xx", "connect-failure"}, Attempts: 3, PerTry: time.Second, Backoff: 50 * time.Millisecond},
		},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/buy"}, Methods: []string{"POST"}}, Backends: shares(two)},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/admin/"}}},
		{Backends: shares(one1)},
	}
	cases["split"] = one(d, one1, two)

	d = destination(store, mesh.HTTP, "10.96.0.10", one1)
	d.Routes = []mesh.Route{
		{
			Match:    mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/basket"}},
			Backends: []mesh.WeightedBackend{{Backend: one1.Name, Response: mesh.HeaderChanges{Set: []mesh.Header{{Name: "x-version", Value: "1"}}}}, {Backend: two.Name, Weight: 1}, {Weight: 1}},
			Session:  &mesh.Session{Rule: "HTTPRoute bookstore/basket/0", Cookie: "basket", Path: "/basket", Lifetime: time.Hour, Permanent: true},
		},
		{Backends: shares(one1), Retry: &mesh.Retry{On: []string{"5xx"}, Attempts: 2}, Session: &mesh.Session{Rule: "HTTPRoute bookstore/basket/1", Header: "x-session"}},
	}
	cases["sessions"] = one(d, one1, two)

	b = backend(db, mesh.TCP, endpoint(3306, "10.244.0.21"))
	other := backend(port("mysql-new", 3306), mesh.TCP, endpoint(3306, "10.244.0.22"))
	cases["tcp"] = one(destination(db, mesh.TCP, "10.96.0.11", b, other), b, other)
	b = backend(db, mesh.TCPServerFirst, endpoint(3306, "10.244.0.21"))
	cases["server-first"] = one(destination(db, mesh.TCPServerFirst, "10.96.0.11", b), b)
	cases["no-backends"] = one(destination(db, mesh.TCP, "10.96.0.11"))

	headless := fixture{scope: "*"}
	for _, e := range []struct{ name, address string }{{"mysql-0", "10.244.0.21"}, {"10.244.0.22", "10.244.0.22"}} {
		b := backend(db, mesh.TCP, endpoint(3306, e.address))
		b.Name = db.String() + "@" + e.name
		d := destination(db, mesh.TCP, e.address, b)
		d.Name = b.Name
		headless.destinations, headless.backends = append(headless.destinations, d), append(headless.backends, b)
	}
	cases["headless"] = headless

	b = backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11", "fd00::11"), endpoint(14001, "fd00::12"))
	d = destination(store, mesh.HTTP, "10.96.0.10", b)
	d.Addresses = addresses("10.96.0.10", "fd00:96::10")
	dual := one(d, b)
	client := newProxy()
	client.Addresses = addresses("10.244.0.5", "fd00::5")
	dual.proxy = mesh.Seal(client)
	cases["dual-stack"] = dual

	b = backend(port("outside", 80), mesh.HTTP)
	b.ExternalName = "www.example.com"
	cases["external-name"] = one(destination(b.Service, mesh.HTTP, "10.96.0.12", b), b)

	client = newProxy()
	client.Plaintext = true
	b = backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11"))
	plaintext := one(destination(store, mesh.HTTP, "10.96.0.10", b), b)
	plaintext.proxy = mesh.Seal(client)
	cases["plaintext-class"] = plaintext

	outside := endpoint(14001, "10.244.0.99")
	outside.ServerName = ""
	b = backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11"), outside)
	cases["plaintext-endpoint"] = one(destination(store, mesh.HTTP, "10.96.0.10", b), b)

	near, far, farther := endpoint(14001, "10.244.0.11"), endpoint(14001, "10.244.1.11"), endpoint(14001, "10.244.2.11")
	near.Zone, far.Zone, farther.Zone = "zone-b", "zone-a", "zone-c"
	b = backend(store, mesh.HTTP, near, far, farther)
	b.Policy.LoadBalancing.PreferZone = true
	zones := one(destination(store, mesh.HTTP, "10.96.0.10", b), b)
	client = newProxy()
	client.Zone = "zone-b"
	zones.proxy = mesh.Seal(client)
	cases["zones"] = zones

	gone := endpoint(14001, "10.244.0.12")
	gone.Draining = true
	b = backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11"), gone)
	all := backend(v1, mesh.HTTP, gone)
	cases["draining"] = one(destination(store, mesh.HTTP, "10.96.0.10", b, all), b, all)

	hash := fixture{scope: "*"}
	for i, policy := range []mesh.LoadBalancingPolicy{mesh.RingHash, mesh.Maglev, mesh.LeastRequest, mesh.Random, mesh.RoundRobin} {
		number := uint16(8000 + i)
		b := backend(port("bookstore", number), mesh.HTTP, endpoint(14001, "10.244.0.11"))
		b.Policy.LoadBalancing = mesh.LoadBalancing{Policy: policy}
		d := destination(b.Service, mesh.HTTP, "10.96.0.10", b)
		if policy == mesh.RingHash {
			d.HashOn = []mesh.HashOn{{Header: "x-user"}, {Cookie: "session"}, {Cookie: "day", CookieTTL: 24 * time.Hour}, {SourceIP: true}}
		}
		hash.destinations, hash.backends = append(hash.destinations, d), append(hash.backends, b)
	}
	b = backend(db, mesh.TCP, endpoint(3306, "10.244.0.21"))
	d = destination(db, mesh.TCP, "10.96.0.11", b)
	d.HashOn = []mesh.HashOn{{Header: "x-user"}, {SourceIP: true}}
	hash.destinations, hash.backends = append(hash.destinations, d), append(hash.backends, b)
	cases["load-balancing"] = hash

	b = backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11"))
	b.HealthChecks = true
	b.Policy = mesh.UpstreamPolicy{
		MaxConnections: new(uint32(10)), MaxRequests: new(uint32(20)), MaxPendingRequests: new(uint32(30)), MaxRetries: new(uint32(4)), RequestsPerConnection: 50,
		ConnectTimeout: time.Second, IdleTimeout: time.Minute,
		Ejection: &mesh.Ejection{ConsecutiveErrors: 7, Interval: 2 * time.Second, BaseTime: 30 * time.Second, MaxPercent: 80},
	}
	cases["limits"] = one(destination(store, mesh.HTTP, "10.96.0.10", b), b)

	observed := *settings()
	observed.AccessLog = mesh.FullAccessLog()
	observed.Tracing = &mesh.Tracing{Protocol: "zipkin", Host: "jaeger.osm-system.svc", Port: 9411, Path: "/api/v2/spans", Sampled: 1_000_000}
	b = backend(store, mesh.HTTP, endpoint(14001, "10.244.0.11"))
	logs := one(destination(store, mesh.HTTP, "10.96.0.10", b), b)
	logs.settings = mesh.Seal(&observed)
	cases["logs-and-tracing"] = logs

	cases["egress"] = fixture{scope: "*", egress: everyEgress()}
	open := fixture{scope: "*", egress: everyEgress()}
	open.egress.AllowAll = true
	cases["egress-allow-all"] = open
	// One range contains two of egress, and the other is within one.
	onDemand := fixture{scope: "shop/web on-demand", egress: everyEgress()}
	onDemand.unknown = []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16"), netip.MustParsePrefix("2001:db8::/48")}
	cases["on-demand"] = onDemand
	return cases
}

// everyEgress has every kind of egress.
func everyEgress() mesh.Egress {
	everything := []mesh.HTTPMatch{{}}
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	// The rules apply to a range within another one as well.
	within := []mesh.EgressWithin{
		{Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("198.51.100.0/24")}, Matches: everything},
		{Ranges: []netip.Prefix{netip.MustParsePrefix("198.51.0.0/16")}, Matches: []mesh.HTTPMatch{{Methods: []string{"GET"}}}},
	}
	return mesh.Egress{Ports: []mesh.EgressRoutes{
		{Port: 80, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{
			{Host: "*.example.com", Matches: everything},
			{
				Host:    "httpbin.org",
				Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/status/200"}, Methods: []string{"GET"}}},
				Policy:  mesh.UpstreamPolicy{MaxConnections: new(uint32(5)), RequestTimeout: 2 * time.Second},
			},
			{Host: "nothing.example.org"},
			{Host: "within.example.org", Within: within, Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/anywhere"}}}},
		}},
		{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{
			{Host: "*.example.com", Matches: everything}, {Host: "github.com", Matches: everything},
			{Host: "within.example.org", Within: within},
		}, Ranges: ranges},
		{Port: 3306, Protocol: mesh.EgressTCP, Ranges: ranges[:1]},
		{Port: 8080, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "*.example.com", Matches: everything}}, Ranges: ranges},
		{Port: 8443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "example.net", Matches: everything}}},
		{Port: 9000, Protocol: mesh.EgressTCP},
	}}
}

// writeIdentity writes the agent's files.
func writeIdentity(dir string, chain, key, bundle []byte) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "chain.pem"), chain, 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"), key, 0o600),
		os.WriteFile(filepath.Join(dir, "bundle.pem"), bundle, 0o600),
	)
}
