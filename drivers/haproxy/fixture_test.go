package haproxy

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

func identity(namespace, serviceAccount string) mesh.Identity {
	return mesh.Identity{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: serviceAccount}
}

var (
	store = identity("bookstore", "bookstore")
	buyer = identity("bookbuyer", "bookbuyer")
	ops   = identity("ops", "gateway.main")

	anyone     = mesh.Access{Anyone: true}
	anyRequest = anything
)

func access(rules ...mesh.Permission) mesh.Access { return mesh.Access{Rules: rules} }

func permission(name string, requests []mesh.HTTPMatch, sources ...mesh.Identity) mesh.Permission {
	return mesh.Permission{Origin: drivertest.Origin("TrafficTarget", name), Sources: sources, Requests: requests}
}

func ranges(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// fixture builds a View.
type fixture struct {
	settings     mesh.Settings
	proxy        mesh.Proxy
	inbound      mesh.Inbound
	destinations []*mesh.Destination
	backends     []*mesh.Backend
	egress       mesh.Egress
}

func newFixture(id mesh.Identity) *fixture {
	return &fixture{
		settings: mesh.Settings{TrustDomain: "cluster.local", InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}, AccessLog: mesh.FullAccessLog()},
		proxy: mesh.Proxy{
			Name: mesh.Name{Namespace: id.Namespace, Name: id.ServiceAccount + "-1"}, UID: "uid-" + id.ServiceAccount, Class: name,
			Identity: id, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		},
		inbound: mesh.Inbound{TLS: mesh.Strict},
	}
}

func (f *fixture) view() *mesh.View {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	for _, d := range f.destinations {
		destinations[d.Name] = mesh.Seal(d)
	}
	for _, b := range f.backends {
		backends[b.Name] = mesh.Seal(b)
	}
	settings, proxy, inbound, egress := f.settings, f.proxy, f.inbound, f.egress
	return mesh.NewView(mesh.Seal(&proxy), mesh.Seal(&settings), mesh.Seal(&inbound),
		mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.TableOf(backends)), mesh.Seal(&egress))
}

// service adds a destination at the address with routes to the backends, each of which gets
// an endpoint.
func (f *fixture) service(service mesh.ServicePort, protocol mesh.Protocol, address string, backends ...*mesh.Backend) *mesh.Destination {
	d := &mesh.Destination{
		Name: service.String(), Service: service, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Port: service.Port, Protocol: protocol,
	}
	var shares []mesh.WeightedBackend
	for _, b := range backends {
		shares = append(shares, mesh.WeightedBackend{Backend: b.Name, Weight: 1})
	}
	if protocol.IsHTTP() {
		d.Routes = []mesh.Route{{Backends: shares}}
	} else {
		d.Backends = shares
	}
	f.destinations, f.backends = append(f.destinations, d), append(f.backends, backends...)
	return d
}

func servicePort(name string, port uint16) mesh.ServicePort {
	return mesh.ServicePort{Name: mesh.Name{Namespace: "bookstore", Name: name}, Port: port}
}

func backend(service mesh.ServicePort, protocol mesh.Protocol, id mesh.Identity, endpoints ...string) *mesh.Backend {
	b := &mesh.Backend{Name: service.String(), Service: service, Protocol: protocol}
	for _, text := range endpoints {
		to := netip.MustParseAddrPort(text)
		b.Endpoints = append(b.Endpoints, mesh.Endpoint{Addresses: []netip.Addr{to.Addr()}, Port: to.Port(), ServerName: id.DNSName()})
	}
	return b
}

// fixtures are the Views for a real HAProxy, by name.
func fixtures() map[string]*fixture {
	out := map[string]*fixture{"empty": newFixture(store)}

	f := newFixture(store)
	f.inbound.Ports = []mesh.InboundPort{
		{Port: 8080, Protocol: mesh.HTTP, Access: access(
			permission("a/b", []mesh.HTTPMatch{
				{Path: mesh.StringMatch{Regex: "/books(/.*)?"}, Methods: []string{"GET", "HEAD"}},
				{Path: mesh.StringMatch{Prefix: "/public/"}, Headers: []mesh.KeyMatch{
					{Name: "x-tenant", StringMatch: mesh.StringMatch{Exact: `it's "a" $HOME # \ %`}},
					{Name: "host", StringMatch: mesh.StringMatch{Prefix: "books"}}, {Name: "x-any", StringMatch: mesh.StringMatch{Present: true}}}},
				{Query: []mesh.KeyMatch{{Name: "id", StringMatch: mesh.StringMatch{Exact: "1"}}, {Name: "re", StringMatch: mesh.StringMatch{Regex: "a+"}}}},
			}, buyer, ops), permission("nobody", anyRequest))},
		{Port: 3306, Protocol: mesh.TCPServerFirst, Access: access(permission("db", anyRequest, buyer)), Limits: mesh.RateLimits{Connections: &mesh.TokenBucket{Tokens: 3, Interval: time.Second}}},
		{Port: 50051, Protocol: mesh.GRPC, Access: anyone, Limits: mesh.RateLimits{
			Requests: &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 3, Burst: 1, Interval: time.Hour}, Status: 503, AddHeaders: []mesh.Header{{Name: "x-limit", Value: "100% 'of' \"it\""}}},
			Routes:   []mesh.RouteLimit{{Path: "/slow.*", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Minute}}}},
		}},
	}
	f.inbound.Others = access(permission("others", anyRequest, ops))
	out["inbound"] = f

	g := newFixture(store)
	g.inbound = f.inbound
	g.inbound.TLS = mesh.Permissive
	g.inbound.Ports = append([]mesh.InboundPort{{Port: 80, Protocol: mesh.HTTP, Access: anyone, Ingress: []mesh.Ingress{
		{Origin: drivertest.Origin("IngressBackend", "a/plain"), Ranges: ranges("127.0.0.0/8", "fd00::/8"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/health"}}}},
		{Origin: drivertest.Origin("IngressBackend", "a/gateway"), TLS: true, SNIHosts: []string{"books.example.com", "*.shop.example.com"}, Principals: []mesh.Identity{ops}, Requests: anyRequest},
		{Origin: drivertest.Origin("IngressBackend", "a/open"), TLS: true, SkipClientCert: true, Ranges: ranges("127.0.0.1/32"), Requests: anyRequest},
		{Origin: drivertest.Origin("IngressBackend", "a/any"), TLS: true, AnyPrincipal: true, Requests: anyRequest},
	}}}, g.inbound.Ports...)
	out["permissive"] = g

	plain := newFixture(store)
	plain.proxy.Plaintext, plain.inbound = true, g.inbound
	out["plaintext-class"] = plain

	closed := newFixture(store)
	closed.inbound = g.inbound
	closed.settings.Authorization = &mesh.Authorization{Host: "x", Port: 1}
	out["authorization"] = closed

	out["outbound"] = outboundFixture()
	out["both families"], out["ipv6"] = sixFixture("127.0.0.1", "fd00::1"), sixFixture("fd00::1")
	out["ipv6"].inbound = g.inbound
	for _, protocol := range []string{"zipkin", "otlp"} {
		for _, logged := range []bool{true, false} {
			traced := outboundFixture()
			traced.inbound = g.inbound
			traced.settings.AccessLog = mesh.AccessLog{Enabled: logged, Sampled: mesh.EverythingSampled}
			traced.settings.Tracing = &mesh.Tracing{Protocol: protocol, Host: "collector.example.com", Port: 9411, Path: "/api/v2/spans", Sampled: 500_000}
			r := &traced.destinations[0].Routes[0]
			r.Retry = &mesh.Retry{On: []string{"5xx", "gateway-error", "reset"}, Codes: []uint16{409, 429}, Attempts: 2, Backoff: time.Second, PerTry: time.Second}
			r.Mirrors = []mesh.Mirror{{Backend: traced.backends[1].Name, Numerator: 1, Denominator: 3}, {Backend: "gone", Numerator: 1, Denominator: 1}}
			out[fmt.Sprintf("%s, logged: %t", protocol, logged)] = traced
		}
	}

	// Hosts whose section names must not collide.
	alike := newFixture(buyer)
	for port, protocol := range map[uint16]mesh.EgressProtocol{80: mesh.EgressHTTP, 443: mesh.EgressTLS} {
		routes := mesh.EgressRoutes{Port: port, Protocol: protocol}
		for _, host := range []string{"*.invalid", "any.invalid", "localhost", "localhost_h2", "localhost.h2"} {
			routes.Hosts = append(routes.Hosts, mesh.EgressHost{Host: host, Matches: anyRequest})
		}
		alike.egress.Ports = append(alike.egress.Ports, routes)
	}
	out["hosts that are alike"] = alike
	return out
}

func outboundFixture() *fixture {
	f := newFixture(buyer)
	v1, v2 := servicePort("bookstore-v1", 80), servicePort("bookstore-v2", 80)
	one := backend(v1, mesh.HTTP, store, "10.244.0.11:8080", "10.244.0.12:8080")
	two := backend(v2, mesh.HTTP, store, "10.244.0.13:8080")
	two.Policy = mesh.UpstreamPolicy{MaxConnections: new(uint32(10)), MaxRequests: new(uint32(3)), MaxPendingRequests: new(uint32(2)), RequestsPerConnection: 7, ConnectTimeout: time.Second, IdleTimeout: time.Minute,
		LoadBalancing: mesh.LoadBalancing{Policy: mesh.LeastRequest}}
	two.HealthChecks = true
	one.Endpoints[1].Draining = true
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", one, two)
	d.Routes = []mesh.Route{
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/books.*"}, Methods: []string{"GET"}},
			Backends: []mesh.WeightedBackend{{Backend: one.Name, Weight: 90}, {Backend: two.Name, Weight: 10}, {Backend: "gone", Weight: 0}},
			Timeout:  3 * time.Second, Retry: &mesh.Retry{On: []string{"5xx", "connect-failure"}, Attempts: 3, PerTry: time.Second}},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/admin"}}},
		d.Routes[0],
	}
	f.service(v1, mesh.HTTP, "10.96.0.11", one)
	f.service(v2, mesh.HTTP, "10.96.0.12", two)
	f.service(servicePort("inventory", 50051), mesh.GRPC, "10.96.0.13", backend(servicePort("inventory", 50051), mesh.GRPC, store, "10.244.0.11:50051"))
	db, other := backend(servicePort("db", 3306), mesh.TCP, store, "10.244.0.21:3306"), backend(servicePort("db2", 3306), mesh.TCP, store, "10.244.0.22:3306")
	other.Endpoints[0].ServerName = ""
	f.service(servicePort("db", 3306), mesh.TCPServerFirst, "10.96.0.14", db)
	f.service(servicePort("both", 3306), mesh.TCP, "10.96.0.15", db, other)
	f.service(servicePort("none", 3306), mesh.TCP, "10.96.0.16")
	external := backend(servicePort("outside", 80), mesh.HTTP, store)
	external.ExternalName = "localhost"
	f.service(servicePort("outside", 80), mesh.HTTP, "10.96.0.17", external)
	f.egress.Ports = []mesh.EgressRoutes{
		{Port: 80, Protocol: mesh.EgressHTTP, Ranges: ranges("10.0.0.0/8"), Hosts: []mesh.EgressHost{
			{Host: "localhost", Matches: anyRequest}, {Host: "*.example.com", Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/a"}}}},
			{Host: "within.example.com", Within: []mesh.EgressWithin{{Ranges: ranges("198.51.100.0/24", "2001:db8::/32"), Matches: anyRequest}}, Matches: []mesh.HTTPMatch{{Methods: []string{"GET"}}}},
			{Host: "127.0.0.1", Matches: anyRequest, Policy: mesh.UpstreamPolicy{RequestTimeout: time.Second}},
		}},
		{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "localhost", Matches: anyRequest}, {Host: "*.example.com", Matches: anyRequest}, {Host: "closed.example.com"},
			{Host: "within.example.com", Within: []mesh.EgressWithin{{Ranges: ranges("198.51.100.0/24"), Matches: anyRequest}}}}},
		{Port: 5432, Protocol: mesh.EgressTCP, Ranges: ranges("192.0.2.0/24")},
		{Port: 5433, Protocol: mesh.EgressTCP},
	}
	return f
}
