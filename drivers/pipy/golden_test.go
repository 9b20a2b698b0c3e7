package pipy

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// goldenViews are Views that use every part of the documents.
func goldenViews() map[string]*mesh.View {
	cart, next := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "cart"}, Port: 80}, mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "cart-v2"}, Port: 80}
	db, far := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "db"}, Port: 5432}, mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "far"}, Port: 443}
	endpoint := func(address string) mesh.Endpoint {
		return mesh.Endpoint{Addresses: []netip.Addr{netip.MustParseAddr(address)}, Port: 8080, ServerName: store.DNSName(), Workload: "shop/cart-1", Zone: "a"}
	}
	draining := endpoint("2001:db8::5")
	draining.Draining = true
	outbound := mesh.NewOutbound("*",
		mesh.TableOf(map[string]*mesh.Destination{
			cart.String(): mesh.Seal(&mesh.Destination{Name: cart.String(), Service: cart, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Port: 80, Protocol: mesh.GRPC,
				Routes: []mesh.Route{
					{Origin: drivertest.Origin("HTTPRoute", "shop/canary"), Match: mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/v[12](/.*)?"}, Methods: []string{"GET"}, Headers: []mesh.KeyMatch{{Name: "x-canary", StringMatch: mesh.StringMatch{Present: true}}},
						Query: []mesh.KeyMatch{{Name: "q", StringMatch: mesh.StringMatch{Prefix: "a"}}}},
						Backends: []mesh.WeightedBackend{{Backend: cart.String(), Weight: 90}, {Backend: next.String(), Weight: 10}}, Timeout: 1500 * time.Millisecond,
						Retry: &mesh.Retry{On: []string{"5xx"}, Attempts: 3, PerTry: time.Second, Backoff: 25 * time.Millisecond}},
					{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/admin/"}}},
					{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/"}}, Backends: []mesh.WeightedBackend{{Backend: cart.String(), Weight: 1}}},
				}, HashOn: []mesh.HashOn{{Header: "x-user"}, {Cookie: "c", CookieTTL: time.Hour}, {SourceIP: true}}}),
			db.String(): mesh.Seal(&mesh.Destination{Name: db.String(), Service: db, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("fd00::2")}, Port: 5432, Protocol: mesh.TCPServerFirst,
				Backends: []mesh.WeightedBackend{{Backend: db.String(), Weight: 1}}}),
		}),
		mesh.TableOf(map[string]*mesh.Backend{
			cart.String(): mesh.Seal(&mesh.Backend{Name: cart.String(), Service: cart, Protocol: mesh.GRPC, Endpoints: []mesh.Endpoint{endpoint("10.0.0.1"), draining, {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Port: 1}},
				Policy: mesh.UpstreamPolicy{MaxConnections: new(uint32(1)), MaxRequests: new(uint32(2)), MaxPendingRequests: new(uint32(3)), MaxRetries: new(uint32(4)), RequestsPerConnection: 5, ConnectTimeout: time.Second, RequestTimeout: time.Minute, IdleTimeout: time.Hour,
					Ejection: &mesh.Ejection{ConsecutiveErrors: 5, Interval: time.Second, BaseTime: time.Minute, MaxPercent: 50}, LoadBalancing: mesh.LoadBalancing{Policy: mesh.RingHash, PreferZone: true}}}),
			db.String():  mesh.Seal(&mesh.Backend{Name: db.String(), Service: db, Protocol: mesh.TCPServerFirst, HealthChecks: true}),
			far.String(): mesh.Seal(&mesh.Backend{Name: far.String(), Service: far, Protocol: mesh.HTTP, ExternalName: "far.example.com"}),
		}))
	client := viewOf("client", outbound)
	egress := mesh.Seal(&mesh.Egress{AllowAll: true, Ports: []mesh.EgressRoutes{
		{Port: 80, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "a.example.com", Matches: []mesh.HTTPMatch{{Methods: []string{"GET"}}}}, {Host: "in.example.com", Within: []mesh.EgressWithin{{Ranges: prefixes("198.51.100.0/24"), Matches: anyRequest}}}, {Host: "*.example.com", Policy: mesh.UpstreamPolicy{MaxConnections: new(uint32(7))}}}},
		{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "b.example.com", Matches: anyRequest}}, Ranges: prefixes("192.0.2.7/24")},
	}})
	return map[string]*mesh.View{
		"empty":    viewOf("empty", mesh.NewOutbound("*", mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{})),
		"inbound":  inboundView(strictInbound()),
		"outbound": mesh.NewView(client.Proxy, client.Settings, client.Inbound, outbound, egress),
	}
}

// TestGoldenDocuments compares the documents with golden files. The scripts of this version
// and of the former one must both understand them; otherwise the schema needs a new number.
func TestGoldenDocuments(t *testing.T) {
	for name, view := range goldenViews() {
		t.Run(name, func(t *testing.T) {
			files, err := Driver{}.Translate(view)
			if err != nil {
				t.Fatal(err)
			}
			var archive txtar.Archive
			for _, file := range files {
				if !strings.HasPrefix(file.Name, liveDir) {
					continue
				}
				var indented bytes.Buffer
				if err := json.Indent(&indented, bytes.TrimSpace(file.Content), "", "  "); err != nil {
					t.Fatal(err)
				}
				archive.Files = append(archive.Files, txtar.File{Name: file.Name, Data: append(indented.Bytes(), '\n')})
			}
			got := txtar.Format(&archive)
			path := filepath.Join("testdata", name+".txtar")
			if os.Getenv("UPDATE") != "" {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got); UPDATE=1 rewrites it:\n%s", path, diff)
			}
		})
	}
}
