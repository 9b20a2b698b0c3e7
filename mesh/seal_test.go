package mesh_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// sample returns new, unsealed parts with the same content each time.
func sample() map[string]mesh.Digester {
	name := mesh.Name{Namespace: "shop", Name: "cart"}
	id := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	addr := netip.MustParseAddr("10.0.0.1")
	service := mesh.ServicePort{Name: name, Port: 80}
	match := mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/a.*"}, Methods: []string{"GET"}}
	return map[string]mesh.Digester{
		"settings":  mesh.Seal(&mesh.Settings{TrustDomain: "cluster.local", InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}}),
		"namespace": mesh.Seal(&fact.Namespace{Name: "shop", Member: true}),
		"workload":  mesh.Seal(&fact.Workload{Name: name, UID: "1", ServiceAccount: "cart", Addresses: []netip.Addr{addr}, Class: "envoy"}),
		"service":   mesh.Seal(&fact.Service{Name: name, Addresses: []netip.Addr{addr}, Ports: []fact.PortSpec{{Port: 80, Target: 8080, Protocol: mesh.HTTP}}}),
		"slice":     mesh.Seal(&fact.EndpointSlice{Name: name, Service: "cart", Endpoints: []fact.SliceEndpoint{{Addresses: []netip.Addr{addr}, Ready: true}}}),
		"access":    mesh.Seal(&fact.AccessRule{Name: name, Age: fact.Age{Created: 1}, Destination: name, Sources: []mesh.Name{name}}),
		"routes":    mesh.Seal(&fact.RouteGroup{Name: name, HTTP: []fact.NamedMatch{{Name: "a", HTTPMatch: match}}}),
		"split":     mesh.Seal(&fact.Split{Name: name, Root: "cart", Backends: []fact.SplitBackend{{Service: "cart-v1", Weight: 1}}}),
		"egress":    mesh.Seal(&fact.EgressRule{Name: name, Hosts: []string{"a.example"}, Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}),
		"ingress":   mesh.Seal(&fact.IngressRule{Name: name, Backends: []fact.IngressBackend{{Service: "cart", Port: 8080}}}),
		"retry":     mesh.Seal(&fact.RetryRule{Name: name, Retry: mesh.Retry{On: []string{"5xx"}, Attempts: 3, PerTry: time.Second}}),
		"upstream":  mesh.Seal(&fact.UpstreamSetting{Name: name, Host: "cart.shop", Policy: mesh.UpstreamPolicy{MaxConnections: new(uint32(5))}}),
		"destination": mesh.Seal(&mesh.Destination{
			Name: service.String(), Service: service, Addresses: []netip.Addr{addr}, Port: 80, Protocol: mesh.HTTP,
			Routes: []mesh.Route{{Match: match, Backends: []mesh.WeightedBackend{{Backend: "shop/cart:80", Weight: 1}}}},
		}),
		"backend": mesh.Seal(&mesh.Backend{
			Name: service.String(), Service: service, Protocol: mesh.HTTP,
			Endpoints: []mesh.Endpoint{{Addresses: []netip.Addr{addr}, Port: 8080, ServerName: id.DNSName()}},
		}),
		"proxy": mesh.Seal(&mesh.Proxy{Name: name, UID: "1", Class: "envoy", Identity: id}),
		"inbound": mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{
			Port: 8080, Protocol: mesh.HTTP,
			Access: mesh.Access{Rules: []mesh.Permission{{Origin: drivertest.Origin("TrafficTarget", "shop/rule"), Sources: []mesh.Identity{id}, Requests: []mesh.HTTPMatch{match}}}},
		}}}),
		"out":      mesh.Seal(&mesh.Egress{AllowAll: true}),
		"problems": mesh.Seal(&fact.Problems{List: []mesh.Problem{{Reason: "UnknownClass", Message: "there is none"}}}),
	}
}

// TestDigests compares digests with testdata/digests.txt, so that processes and releases
// agree. UPDATE=1 writes them; a change means that every proxy gets its configuration
// again when the controller is upgraded.
func TestDigests(t *testing.T) {
	parts := sample()
	var got strings.Builder
	seen := make(map[mesh.Digest]string)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		digest := parts[name].Digest()
		fmt.Fprintln(&got, name, digest)
		if other, taken := seen[digest]; taken {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[digest] = name
		if again := sample()[name].Digest(); again != digest {
			t.Errorf("%s: equal content has the digests %s and %s", name, digest, again)
		}
	}
	fmt.Fprintln(&got, "table", mesh.TableOf(parts).Digest())

	const golden = "testdata/digests.txt"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
}

func TestUnsealed(t *testing.T) {
	for what, use := range map[string]func(){
		"digest": func() { (&fact.Service{}).Digest() },
		"table":  func() { mesh.TableOf(map[string]*fact.Service{"a": {}}) },
		"view":   func() { mesh.NewView(&mesh.Proxy{}, nil, nil, nil, nil) },
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if v := recover(); v != "mesh: part is not sealed; call mesh.Seal once it is filled" {
					t.Errorf("it panicked with %v", v)
				}
			}()
			use()
		})
	}
}

func TestDigestText(t *testing.T) {
	var none mesh.Digest
	digest := mesh.DigestBytes([]byte("a"))
	if !none.IsZero() || digest.IsZero() || mesh.DigestBytes(nil).IsZero() {
		t.Error("IsZero is not true of the zero Digest only")
	}
	text, err := digest.MarshalText()
	const want = "ca978112ca1bbdcafac231b39a23dc4d"
	if err != nil || string(text) != want || digest.String() != want {
		t.Errorf("the text is %s and %s, want %s (%v)", text, digest, want, err)
	}
}

func TestDigestOfNoJSON(t *testing.T) {
	defer func() {
		if v := recover(); fmt.Sprint(v) != "mesh: func() has no digest: json: unsupported type: func()" {
			t.Errorf("it panicked with %v", v)
		}
	}()
	mesh.DigestOf(func() {})
}
