package mesh_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestViewNeeds(t *testing.T) {
	quiet := func(change func(*mesh.Settings)) func(*parts) {
		return func(p *parts) {
			s := mesh.Settings{TLS: mesh.TLS{Min: "1.3", Max: "1.3"}}
			change(&s)
			p.settings = mesh.Seal(&s)
		}
	}
	called := func(d mesh.Destination) func(*parts) {
		return func(p *parts) { p.destinations = mesh.TableOf(map[string]*mesh.Destination{"a": mesh.Seal(&d)}) }
	}
	backed := func(b mesh.Backend) func(*parts) {
		return func(p *parts) { p.backends = mesh.TableOf(map[string]*mesh.Backend{"a": mesh.Seal(&b)}) }
	}
	policy := func(policy mesh.UpstreamPolicy) func(*parts) { return backed(mesh.Backend{Policy: policy}) }
	taken := func(port mesh.InboundPort) func(*parts) {
		return func(p *parts) {
			p.inbound = mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{port}})
		}
	}
	out := func(routes ...mesh.EgressRoutes) func(*parts) {
		return func(p *parts) { p.egress = mesh.Seal(&mesh.Egress{Ports: routes}) }
	}
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	anywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	header := mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x"}}}
	for _, tt := range []struct {
		name   string
		change func(*parts)
		want   []mesh.Feature
	}{
		{"nothing", func(*parts) {}, nil},
		{"the MeshConfig's", quiet(func(s *mesh.Settings) {
			s.HealthChecks, s.Authorization, s.AccessLog = true, &mesh.Authorization{}, mesh.FullAccessLog()
			s.Tracing = &mesh.Tracing{Protocol: "otlp"}
		}), []mesh.Feature{mesh.FeatureHealthChecks, mesh.FeatureExternalAuthorization, mesh.FeatureAccessLogs, mesh.FeatureOTLPTracing}},
		{"Zipkin", quiet(func(s *mesh.Settings) { s.Tracing = &mesh.Tracing{Protocol: "zipkin"} }), []mesh.Feature{mesh.FeatureZipkinTracing}},
		{"an older TLS", quiet(func(s *mesh.Settings) { s.TLS.Min = "1.2" }), []mesh.Feature{mesh.FeatureTLSSettings}},
		{"only an older TLS", quiet(func(s *mesh.Settings) { s.TLS = mesh.TLS{Min: "1.2", Max: "1.2"} }), []mesh.Feature{mesh.FeatureTLSSettings}},
		{"curves", quiet(func(s *mesh.Settings) { s.TLS.Curves = []string{"P-256"} }), []mesh.Feature{mesh.FeatureTLSCurves}},
		{"ciphers", quiet(func(s *mesh.Settings) { s.TLS.Ciphers = []string{"x"} }), []mesh.Feature{mesh.FeatureTLSSettings}},
		{"moving in", func(p *parts) { p.inbound = mesh.Seal(&mesh.Inbound{TLS: mesh.Permissive}) }, []mesh.Feature{mesh.FeaturePermissiveTLS}},
		{"no mesh TLS", func(p *parts) {
			quiet(func(s *mesh.Settings) { s.TLS.Min = "1.2" })(p)
			p.proxy, p.inbound = mesh.Seal(&mesh.Proxy{Plaintext: true}), mesh.Seal(&mesh.Inbound{TLS: mesh.Permissive})
		}, []mesh.Feature{mesh.FeaturePlaintextMesh}},
		{"an own address of IPv6", func(p *parts) { p.proxy = mesh.Seal(&mesh.Proxy{Addresses: []netip.Addr{four, six}}) }, []mesh.Feature{mesh.FeatureIPv6}},

		{"a destination of IPv6", called(mesh.Destination{Addresses: []netip.Addr{four, six}}), []mesh.Feature{mesh.FeatureIPv6}},
		{"IPv4 written as IPv6", called(mesh.Destination{Addresses: []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.1")}}), nil},
		{"gRPC", called(mesh.Destination{Protocol: mesh.GRPC}), []mesh.Feature{mesh.FeatureHTTP2, mesh.FeatureHTTP2Resets}},
		{"HTTP and TCP", called(mesh.Destination{Protocol: mesh.HTTP, Routes: []mesh.Route{{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/a"}, Methods: []string{"GET"}}}}}), nil},
		{"a server that speaks first", backed(mesh.Backend{Protocol: mesh.TCPServerFirst}), []mesh.Feature{mesh.FeatureServerFirst}},
		{"a route", called(mesh.Destination{Routes: []mesh.Route{{Match: header, Timeout: 1, Retry: &mesh.Retry{Attempts: 1}}}}), []mesh.Feature{mesh.FeatureHeaderMatches, mesh.FeatureRetries, mesh.FeatureTimeouts}},
		{"a limit of each try", called(mesh.Destination{Routes: []mesh.Route{{Retry: &mesh.Retry{PerTry: 1}}}}), []mesh.Feature{mesh.FeatureRetries, mesh.FeatureTimeouts}},
		{"sessions", called(mesh.Destination{Routes: []mesh.Route{{Session: &mesh.Session{Cookie: "a"}}}}), []mesh.Feature{mesh.FeatureSessionPersistence}},
		{"a query", called(mesh.Destination{Routes: []mesh.Route{{Match: mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "x"}}}}}}), []mesh.Feature{mesh.FeatureQueryMatches}},
		{"an endpoint of both families", backed(mesh.Backend{Endpoints: []mesh.Endpoint{{Addresses: []netip.Addr{four, six}}}}), nil},
		{"an endpoint of IPv6 alone", backed(mesh.Backend{Endpoints: []mesh.Endpoint{{Addresses: []netip.Addr{six}}}}), []mesh.Feature{mesh.FeatureIPv6}},
		{"another name", backed(mesh.Backend{ExternalName: "example.com", HealthChecks: true}), []mesh.Feature{mesh.FeatureExternalNames, mesh.FeatureHealthChecks}},
		{"times", policy(mesh.UpstreamPolicy{ConnectTimeout: 1, RequestTimeout: 1, IdleTimeout: time.Hour}), []mesh.Feature{mesh.FeatureTimeouts, mesh.FeatureConnectTimeouts, mesh.FeatureIdleTimeouts}},
		{"limits", policy(mesh.UpstreamPolicy{MaxConnections: new(uint32(1)), MaxRequests: new(uint32(1)), RequestsPerConnection: 1, Ejection: &mesh.Ejection{}}), []mesh.Feature{
			mesh.FeatureConnectionLimits, mesh.FeatureRequestLimits, mesh.FeatureRequestsPerConnection, mesh.FeatureOutlierEjection,
		}},
		{"a limit of waiting requests", policy(mesh.UpstreamPolicy{MaxPendingRequests: new(uint32(1))}), []mesh.Feature{mesh.FeatureRequestLimits}},
		{"a limit of 0", policy(mesh.UpstreamPolicy{MaxConnections: new(uint32(0)), MaxRetries: new(uint32(0))}), []mesh.Feature{mesh.FeatureConnectionLimits, mesh.FeatureRequestLimits}},
		{"a limit of retries", policy(mesh.UpstreamPolicy{MaxRetries: new(uint32(1))}), []mesh.Feature{mesh.FeatureRequestLimits}},
		{"endpoints in turn", policy(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{Policy: mesh.RoundRobin}}), nil},
		{"the least busy of the zone", policy(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{Policy: mesh.LeastRequest, PreferZone: true}}), []mesh.Feature{mesh.FeatureLeastRequest, mesh.FeatureZonePreference}},
		{"any endpoint", policy(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{Policy: mesh.Random}}), []mesh.Feature{mesh.FeatureRandomEndpoint}},
		{"a ring", policy(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{Policy: mesh.RingHash}}), []mesh.Feature{mesh.FeatureConsistentHash}},
		{"Maglev", policy(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{Policy: mesh.Maglev}}), []mesh.Feature{mesh.FeatureConsistentHash}},

		{"a port", taken(mesh.InboundPort{Protocol: mesh.HTTP2, Limits: mesh.RateLimits{Connections: &mesh.TokenBucket{}, Requests: &mesh.RequestLimit{}}}), []mesh.Feature{
			mesh.FeatureHTTP2, mesh.FeatureHTTP2Resets, mesh.FeatureConnectionRateLimits, mesh.FeatureRequestRateLimits,
		}},
		{"the PROXY protocol", taken(mesh.InboundPort{ProxyProtocol: true}), []mesh.Feature{mesh.FeatureProxyProtocol}},
		{"a limit by path", taken(mesh.InboundPort{Limits: mesh.RateLimits{Routes: []mesh.RouteLimit{{}}}}), []mesh.Feature{mesh.FeatureRequestRateLimits}},
		{"a rule", taken(mesh.InboundPort{Access: mesh.Access{Rules: []mesh.Permission{{Requests: []mesh.HTTPMatch{{}, header}}}}}), []mesh.Feature{mesh.FeatureHeaderMatches}},
		{"a way in", taken(mesh.InboundPort{Ingress: []mesh.Ingress{{Requests: []mesh.HTTPMatch{{}}}}}), []mesh.Feature{mesh.FeatureIngress}},
		{"a way in by TLS", taken(mesh.InboundPort{Ingress: []mesh.Ingress{{TLS: true, Requests: []mesh.HTTPMatch{header}, Ranges: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}}}), []mesh.Feature{
			mesh.FeatureIPv6, mesh.FeatureHeaderMatches, mesh.FeatureIngressTLS,
		}},

		{"all ways out", func(p *parts) { p.egress = mesh.Seal(&mesh.Egress{AllowAll: true}) }, []mesh.Feature{mesh.FeatureEgressTCP}},
		{"out by host", out(mesh.EgressRoutes{Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Matches: []mesh.HTTPMatch{header}, Policy: mesh.UpstreamPolicy{MaxConnections: new(uint32(1))}}}}), []mesh.Feature{
			mesh.FeatureHeaderMatches, mesh.FeatureConnectionLimits, mesh.FeatureEgressHTTP,
		}},
		{"out by host and address", out(mesh.EgressRoutes{Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Within: []mesh.EgressWithin{
			{Ranges: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}, Matches: []mesh.HTTPMatch{header}},
		}}}}), []mesh.Feature{mesh.FeatureIPv6, mesh.FeatureHeaderMatches, mesh.FeatureEgressHTTP, mesh.FeatureEgressTCP}},
		{"out by server name", out(mesh.EgressRoutes{Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{}}}), []mesh.Feature{mesh.FeatureEgressTLS}},
		{"out to no host", out(mesh.EgressRoutes{Protocol: mesh.EgressHTTP}), nil},
		{"HTTP out by address", out(mesh.EgressRoutes{Protocol: mesh.EgressHTTP, Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}), []mesh.Feature{mesh.FeatureEgressTCP}},
		{"TCP to anywhere", out(mesh.EgressRoutes{Protocol: mesh.EgressTCP, Ranges: anywhere}), []mesh.Feature{mesh.FeatureEgressTCP}},
		{"TCP to IPv6", out(mesh.EgressRoutes{Protocol: mesh.EgressTCP, Ranges: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}), []mesh.Feature{mesh.FeatureIPv6, mesh.FeatureEgressTCP}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newParts()
			quiet(func(*mesh.Settings) {})(&p)
			tt.change(&p)
			if diff := cmp.Diff(tt.want, p.view().Needs()); diff != "" {
				t.Errorf("what the View asks for (-want +got):\n%s", diff)
			}
		})
	}
}
