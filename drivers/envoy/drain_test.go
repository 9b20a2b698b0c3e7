package envoy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// drained returns the listeners and filter chains whose connections Envoy ends when it gets the
// second configuration in place of the first. It replaces a listener in place, without those of
// its filter chains that have not changed, if nothing else of it changes.
func drained(t *testing.T, before, after *Config) []string {
	t.Helper()
	listener := func(r *Resource) *listenerv3.Listener {
		m, err := r.Message()
		if err != nil {
			t.Fatal(err)
		}
		return m.(*listenerv3.Listener)
	}
	// shell returns the listener without its filter chains, and these.
	shell := func(l *listenerv3.Listener) (*listenerv3.Listener, []*listenerv3.FilterChain) {
		without, chains := proto.Clone(l).(*listenerv3.Listener), l.FilterChains
		if l.DefaultFilterChain != nil {
			chains = append(slices.Clone(chains), l.DefaultFilterChain)
		}
		without.FilterChains, without.DefaultFilterChain = nil, nil
		return without, chains
	}
	var out []string
	for name, r := range before.Listeners.All() {
		next, ok := after.Listeners.Get(name)
		if !ok {
			out = append(out, name)
			continue
		}
		was, chains := shell(listener(r))
		is, left := shell(listener(next))
		if !proto.Equal(was, is) {
			out = append(out, name)
			continue
		}
		for i, chain := range chains {
			if !slices.ContainsFunc(left, func(c *listenerv3.FilterChain) bool { return proto.Equal(c, chain) }) {
				out = append(out, fmt.Sprintf("%s: chain %q", name, chainName(chain, i)))
			}
		}
	}
	slices.Sort(out)
	return out
}

func chainName(c *listenerv3.FilterChain, i int) string {
	if c.Name == "" {
		return fmt.Sprint(i)
	}
	return c.Name
}

// changing is a View whose parts a test changes.
type changing struct {
	settings  mesh.Settings
	inbound   mesh.Inbound
	http, tcp *mesh.InboundPort
	shop, db  *mesh.Destination
	backends  []*mesh.Backend
	egress    mesh.Egress
}

func newChanging() *changing {
	c := &changing{settings: mesh.Settings{TrustDomain: "cluster.local", InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}, Roots: exampleRoot}}
	c.inbound = mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 8080, Protocol: mesh.HTTP, Access: rules(rule("shop/read", anyRequest, buyer))},
		{Port: 3306, Protocol: mesh.TCP, Access: rules(rule("shop/db", anyRequest, buyer))},
	}}
	c.http, c.tcp = &c.inbound.Ports[0], &c.inbound.Ports[1]
	shop, db := port("shop", 80), port("db", 3306)
	one, two := backend(shop, mesh.HTTP, endpoint(8080, "10.244.0.11")), backend(port("shop-v2", 80), mesh.HTTP, endpoint(8080, "10.244.0.12"))
	master, copies := backend(db, mesh.TCP, endpoint(3306, "10.244.0.13")), backend(port("db-v2", 3306), mesh.TCP, endpoint(3306, "10.244.0.14"))
	c.shop, c.db = destination(shop, mesh.HTTP, "10.96.0.1", one), destination(db, mesh.TCP, "10.96.0.2", master)
	c.backends = []*mesh.Backend{one, two, master, copies}
	c.egress = mesh.Egress{Ports: []mesh.EgressRoutes{{Port: 80, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "example.com", Matches: anyRequest}}}}}
	return c
}

func (c *changing) view() *mesh.View {
	v := fixture{
		settings: mesh.Seal(&c.settings), scope: "*", destinations: []*mesh.Destination{c.shop, c.db}, backends: c.backends, egress: c.egress,
	}.view()
	return mesh.NewView(v.Proxy, v.Settings, mesh.Seal(&c.inbound), v.Outbound, v.Egress)
}

// TestChangesThatDrain is what docs/what-a-sidecar-changes.md says about changes that end
// connections.
func TestChangesThatDrain(t *testing.T) {
	const (
		httpChain, tcpChain = `inbound: chain "inbound/8080"`, `inbound: chain "inbound/3306"`
		shop, outbound      = `bookstore/shop:80: chain "0"`, `outbound: chain "egress/80"`
	)
	path := mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/public"}}
	for _, tt := range []struct {
		name   string
		change func(*changing)
		want   []string
	}{
		{"a permission is added and one is removed", func(c *changing) {
			c.http.Access = rules(rule("shop/write", anyRequest, ops))
			c.tcp.Access = rules(rule("shop/other", anyRequest, ops))
		}, nil},
		{"permissive policy", func(c *changing) {
			c.settings.PermissivePolicy = true
			c.http.Access, c.tcp.Access = anyone, anyone
		}, nil},
		{"a limit of requests", func(c *changing) {
			c.http.Limits.Requests = &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 3, Interval: time.Second}}
		}, nil},
		{"a limit of connections", func(c *changing) {
			c.tcp.Limits.Connections = &mesh.TokenBucket{Tokens: 3, Interval: time.Second}
			c.http.Limits.Connections = &mesh.TokenBucket{Tokens: 3, Interval: time.Second}
		}, nil},
		{"another root", func(c *changing) { c.settings.Roots += exampleRoot }, nil},
		{"the first IngressBackend of an HTTP port", func(c *changing) {
			c.http.Ingress = []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/office"), Ranges: ranges("192.0.2.0/24"), Requests: anyRequest}}
		}, nil},
		{"the first IngressBackend of a TCP port with TLS", func(c *changing) {
			c.tcp.Ingress = []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/office"), TLS: true, Ranges: ranges("192.0.2.0/24"), Requests: anyRequest}}
		}, nil},
		{"the first IngressBackend of a TCP port without TLS", func(c *changing) {
			c.tcp.Ingress = []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/office"), Ranges: ranges("192.0.2.0/24"), Requests: anyRequest}}
		}, []string{"inbound"}},
		{"another port", func(c *changing) {
			c.inbound.Ports = append(c.inbound.Ports, mesh.InboundPort{Port: 9090, Protocol: mesh.GRPC})
		}, nil},
		{"the first rule that compares a path", func(c *changing) { c.http.Access = rules(rule("shop/read", []mesh.HTTPMatch{path}, buyer)) }, []string{httpChain}},
		// The log of silent connections is the listener's, which has no other chain than that of shop.
		{"access logs", func(c *changing) { c.settings.AccessLog = mesh.FullAccessLog() }, []string{"bookstore/shop:80", "inbound", `outbound: chain "blocked"`, outbound}},
		{"tracing", func(c *changing) {
			c.settings.Tracing = &mesh.Tracing{Protocol: "zipkin", Host: "jaeger", Port: 9411, Sampled: 1}
		}, []string{shop, httpChain, outbound}},
		{"permissive TLS", func(c *changing) { c.inbound.TLS = mesh.Permissive }, nil},
		{"TLS 1.2", func(c *changing) { c.settings.TLS.Min = "1.2" }, []string{tcpChain, httpChain, `inbound: chain "inbound/others"`}},
		{"audit", func(c *changing) { c.tcp.Access.Audit = true }, []string{tcpChain}},

		{"another endpoint", func(c *changing) {
			c.backends[0].Endpoints = append(c.backends[0].Endpoints, endpoint(8080, "10.244.0.99"))
		}, nil},
		{"weights", func(c *changing) {
			c.shop.Routes[0].Backends, c.db.Backends = shares(c.backends[:2]...), shares(c.backends[2:]...)
		}, nil},
		{"a retry and a timeout", func(c *changing) {
			c.shop.Routes[0].Retry, c.shop.Routes[0].Timeout = &mesh.Retry{On: []string{"5xx"}, Attempts: 1}, time.Second
		}, nil},
		{"a policy of a backend", func(c *changing) { c.backends[0].Policy.ConnectTimeout = time.Second }, nil},
		{"the first route that compares a path", func(c *changing) { c.shop.Routes[0].Match = path }, []string{shop}},
		{"the first route that compares a header", func(c *changing) {
			c.shop.Routes[0].Match.Headers = []mesh.KeyMatch{{Name: "x-tester", StringMatch: mesh.StringMatch{Exact: "yes"}}}
		}, []string{shop}},
		{"the first session", func(c *changing) {
			c.shop.Routes[0].Session = &mesh.Session{Rule: "HTTPRoute shop/basket/0", Cookie: "basket"}
		}, []string{shop}},
		{"another egress host", func(c *changing) {
			c.egress.Ports[0].Hosts = append(c.egress.Ports[0].Hosts, mesh.EgressHost{Host: "example.org", Matches: anyRequest})
		}, nil},
		{"another egress port", func(c *changing) {
			c.egress.Ports = append(c.egress.Ports, mesh.EgressRoutes{Port: 81, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "example.com", Matches: anyRequest}}})
		}, nil},
		{"the first egress port with TLS", func(c *changing) {
			c.egress.Ports = append(c.egress.Ports, mesh.EgressRoutes{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "example.com", Matches: anyRequest}}})
		}, []string{"outbound"}},
		{"egress to everywhere", func(c *changing) { c.egress.AllowAll = true }, []string{`outbound: chain "blocked"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			translator := NewTranslator()
			before := translator.Config(newChanging().view())
			changed := newChanging()
			tt.change(changed)
			if diff := cmp.Diff(tt.want, drained(t, before, translator.Config(changed.view()))); diff != "" {
				t.Errorf("(-want +drained):\n%s", diff)
			}
		})
	}
}
