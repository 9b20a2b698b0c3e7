package envoy

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// inboundCase is a proxy with its inbound part.
type inboundCase struct {
	settings func(*mesh.Settings)
	proxy    func(*mesh.Proxy)
	inbound  mesh.Inbound
}

var (
	buyer  = identity("bookbuyer", "bookbuyer")
	dotted = identity("shop", "web.v1")
	ops    = identity("ops", "gateway")

	anyRequest = []mesh.HTTPMatch{{}}
	anyone     = mesh.Access{Anyone: true}
)

func identity(namespace, account string) mesh.Identity {
	return mesh.Identity{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: account}
}

func ranges(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

func rule(name string, requests []mesh.HTTPMatch, sources ...mesh.Identity) mesh.Permission {
	return mesh.Permission{Origin: drivertest.Origin("TrafficTarget", name), Sources: sources, Requests: requests}
}

func rules(r ...mesh.Permission) mesh.Access { return mesh.Access{Rules: r} }

// inboundCases have golden files, and a real Envoy validates each.
var inboundCases = map[string]inboundCase{
	"empty": {},
	"strict-http": {inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 8080, Protocol: mesh.HTTP, Access: rules(
			rule("bookstore/buy", []mesh.HTTPMatch{
				{Path: mesh.StringMatch{Regex: "/books/[0-9]+"}, Methods: []string{"GET", "POST"}},
				{Path: mesh.StringMatch{Prefix: "/public/"}, Headers: []mesh.KeyMatch{{Name: "x-tenant", StringMatch: mesh.StringMatch{Exact: "a"}}}},
			}, buyer, dotted),
			rule("bookstore/status", []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/status"}, Query: []mesh.KeyMatch{{Name: "full"}}}}, dotted),
		)},
		{Port: 9090, Protocol: mesh.GRPC, Access: anyone},
	}}},
	"strict-tcp": {inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 3306, Protocol: mesh.TCPServerFirst, Access: rules(rule("db/shop", anyRequest, dotted, buyer))},
		{Port: 5432, Protocol: mesh.TCP, Access: rules(rule("db/path", []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/"}}}, buyer))},
	}, Others: rules(rule("db/others", anyRequest, ops))}},
	"permissive": {inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
		{Port: 3306, Protocol: mesh.TCPServerFirst, Access: anyone},
		{Port: 5432, Protocol: mesh.TCP, Access: anyone},
		{Port: 8080, Protocol: mesh.HTTP, Access: anyone},
	}, Others: anyone}},
	"audit": {inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
		{Port: 5432, Protocol: mesh.TCP, Access: mesh.Access{Anyone: true, Audit: true, Rules: rules(rule("db/shop", anyRequest, buyer), rule("db/path", []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/"}}}, dotted)).Rules}},
		{Port: 8080, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true, Audit: true, Rules: rules(rule("bookstore/buy", []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/buy"}}}, buyer)).Rules}},
	}, Others: mesh.Access{Anyone: true, Audit: true}}},
	"permissive-rules": {inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
		{Port: 5432, Protocol: mesh.TCP, Access: rules(rule("db/shop", anyRequest, buyer))},
		{Port: 8080, Protocol: mesh.HTTP, Access: rules(rule("bookstore/buy", anyRequest, buyer))},
	}}},
	"plaintext-class": {
		proxy: func(p *mesh.Proxy) { p.Plaintext = true },
		inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
			{Port: 3306, Protocol: mesh.TCPServerFirst, Access: anyone},
			{Port: 5432, Protocol: mesh.TCP, Access: rules(rule("db/shop", anyRequest, buyer))},
			{Port: 8080, Protocol: mesh.HTTP, Access: anyone},
			{Port: 8081, Protocol: mesh.HTTP, Access: rules(rule("bookstore/buy", anyRequest, buyer))},
		}},
	},
	"ingress-plaintext": {inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 5432, Protocol: mesh.TCP, Ingress: []mesh.Ingress{
			{Origin: drivertest.Origin("IngressBackend", "db/office"), Ranges: ranges("192.0.2.0/24"), Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "db/path"), Ranges: ranges("198.51.100.0/24"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/"}}}},
		}},
		{Port: 8080, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{
			{Origin: drivertest.Origin("IngressBackend", "bookstore/office"), Ranges: ranges("192.0.2.0/24", "2001:db8::/32"), Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "bookstore/health"), Ranges: ranges("192.0.2.7/32"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Regex: "/health"}}}},
			{Origin: drivertest.Origin("IngressBackend", "bookstore/nobody"), Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "bookstore/principal"), Ranges: ranges("192.0.2.9/32"), Principals: []mesh.Identity{ops}, Requests: anyRequest},
		}},
	}}},
	"ingress-tls": {inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 8080, Protocol: mesh.HTTP, Access: anyone, Ingress: []mesh.Ingress{
			{Origin: drivertest.Origin("IngressBackend", "bookstore/any"), TLS: true, Ranges: ranges("192.0.2.0/24"), Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "bookstore/wild"), TLS: true, SNIHosts: []string{"*.example.com"}, AnyPrincipal: true, Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "bookstore/exact"), TLS: true, SNIHosts: []string{"Books.example.com", "a.b.sa.cluster.local", "*"}, Principals: []mesh.Identity{ops}, Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "bookstore/skip"), TLS: true, SNIHosts: []string{"open.example.org"}, SkipClientCert: true, Ranges: ranges("203.0.113.0/24"), Requests: anyRequest},
		}},
		{Port: 9090, Protocol: mesh.GRPC, Ingress: []mesh.Ingress{
			{Origin: drivertest.Origin("IngressBackend", "bookstore/grpc"), TLS: true, SkipClientCert: true, Ranges: ranges("203.0.113.0/24"), Requests: anyRequest},
		}},
		{Port: 9443, Protocol: mesh.TCP, Ingress: []mesh.Ingress{
			{Origin: drivertest.Origin("IngressBackend", "db/gateway"), TLS: true, Principals: []mesh.Identity{ops}, Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "db/office"), TLS: true, Ranges: ranges("192.0.2.0/24"), Principals: []mesh.Identity{buyer}, Requests: anyRequest},
			{Origin: drivertest.Origin("IngressBackend", "db/desk"), TLS: true, SkipClientCert: true, Ranges: ranges("192.0.2.7/32"), Requests: anyRequest},
		}},
	}}},
	"rate-limits": {inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 5432, Protocol: mesh.TCP, Access: anyone, Limits: mesh.RateLimits{
			Connections: &mesh.TokenBucket{Tokens: 10, Burst: 5, Interval: time.Second}}},
		{Port: 8080, Protocol: mesh.HTTP, Access: anyone, Limits: mesh.RateLimits{
			Connections: &mesh.TokenBucket{Tokens: 100, Interval: time.Minute},
			Requests: &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 3, Interval: time.Second},
				AddHeaders: []mesh.Header{{Name: "x-limit", Value: "100%"}}},
			Routes: []mesh.RouteLimit{{Path: "/slow.*", Limit: mesh.RequestLimit{
				TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Minute}, Status: 503}}},
		}},
	}}},
	"authorization": {
		settings: func(s *mesh.Settings) {
			s.Authorization = &mesh.Authorization{Host: "authz.example.com", Port: 9191, Timeout: time.Second, StatPrefix: "authz"}
		},
		inbound: httpInbound,
	},
	"tracing-zipkin": {
		settings: func(s *mesh.Settings) {
			s.Tracing = &mesh.Tracing{Protocol: "zipkin", Host: "jaeger.tracing.svc", Port: 9411, Path: "/api/v2/spans", Sampled: 12_500}
		},
		inbound: httpInbound,
	},
	"tracing-otlp": {
		settings: func(s *mesh.Settings) {
			s.Tracing = &mesh.Tracing{Protocol: "otlp", Host: "2001:db8::7", Port: 4317, Sampled: 1_000_000}
		},
		inbound: httpInbound,
	},
	"tls-1.2": {
		settings: func(s *mesh.Settings) {
			s.TLS = mesh.TLS{Min: "1.2", Max: "1.3", Curves: []string{"X25519", "P-256"},
				Ciphers: []string{"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"}}
			s.AccessLog = mesh.FullAccessLog()
		},
		proxy: func(p *mesh.Proxy) {
			p.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")}
		},
		inbound: httpInbound,
	},
}

var httpInbound = mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{Port: 8080, Protocol: mesh.HTTP, Access: anyone}}}

func (c inboundCase) view() *mesh.View {
	s := &mesh.Settings{TrustDomain: "cluster.local", TLS: mesh.TLS{Min: "1.3", Max: "1.3"}, Roots: exampleRoot}
	if c.settings != nil {
		c.settings(s)
	}
	p := newProxy()
	if c.proxy != nil {
		c.proxy(p)
	}
	// A copy, since sealed values must not be moved.
	inbound := c.inbound
	return mesh.NewView(mesh.Seal(p), mesh.Seal(s), mesh.Seal(&inbound),
		mesh.NewOutbound("*", mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{}), mesh.Seal(&mesh.Egress{}))
}

// config returns the inbound resources of the case, with those for the Settings.
func (c inboundCase) config() *Config {
	view := c.view()
	changed := changes{}
	changed.add(settingsClusters(view.Settings))
	changed.add(NewTranslator().inbound(view.Proxy, view.Settings, view.Inbound))
	return new(Config).with(changed)
}

// TestInboundGolden compares the resources with golden files; UPDATE=1 writes them.
func TestInboundGolden(t *testing.T) {
	for name, c := range inboundCases {
		t.Run(name, func(t *testing.T) {
			view, config := c.view(), c.config()
			written := &txtar.Archive{}
			for _, part := range []any{view.Settings, view.Inbound} {
				content, err := json.MarshalIndent(part, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				written.Files = append(written.Files, txtar.File{Name: "view.json", Data: append(content, '\n')})
			}
			written.Files[0].Name, written.Files[1].Name = "settings.json", "inbound.json"
			for _, f := range []struct {
				name  string
				table mesh.Table[*Resource]
			}{
				{"listeners.yaml", config.Listeners}, {"clusters.yaml", config.Clusters}, {"routes.yaml", config.Routes}, {"secrets.yaml", config.Secrets}, {"extensions.yaml", config.Extensions},
			} {
				content, err := readable(f.table)
				if err != nil {
					t.Fatal(err)
				}
				written.Files = append(written.Files, txtar.File{Name: f.name, Data: content})
			}
			file := filepath.Join("testdata", "inbound-"+name+".txtar")
			got := txtar.Format(written)
			if os.Getenv("UPDATE") != "" {
				if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, got, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s differs; UPDATE=1 writes it (-file +made):\n%s", file, diff)
			}
		})
	}
}

// TestInboundIsValid validates every message, including those in Anys.
func TestInboundIsValid(t *testing.T) {
	for name, c := range inboundCases {
		t.Run(name, func(t *testing.T) {
			config := c.config()
			for _, typeURL := range types {
				for name, r := range config.table(typeURL).All() {
					m, err := r.Message()
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					validate(t, typeURL+" "+name, m.ProtoReflect())
				}
			}
		})
	}
}
