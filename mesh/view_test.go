package mesh_test

import (
	"net/netip"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// parts are what a View is made of, for changing one at a time.
type parts struct {
	proxy        *mesh.Proxy
	settings     *mesh.Settings
	inbound      *mesh.Inbound
	scope        string
	destinations mesh.Table[*mesh.Destination]
	backends     mesh.Table[*mesh.Backend]
	egress       *mesh.Egress
}

func (p parts) outbound() *mesh.Outbound {
	return mesh.NewOutbound(p.scope, p.destinations, p.backends)
}

func (p parts) view() *mesh.View {
	return mesh.NewView(p.proxy, p.settings, p.inbound, p.outbound(), p.egress)
}

func newParts() parts {
	return parts{
		proxy: mesh.Seal(&mesh.Proxy{UID: "1"}), settings: mesh.Seal(&mesh.Settings{TrustDomain: "td"}),
		inbound: mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}), scope: "*",
		destinations: mesh.TableOf(map[string]*mesh.Destination{"a": mesh.Seal(&mesh.Destination{Name: "a"})}),
		backends:     mesh.TableOf(map[string]*mesh.Backend{"a": mesh.Seal(&mesh.Backend{Name: "a"})}),
		egress:       mesh.Seal(&mesh.Egress{}),
	}
}

func TestViewDigest(t *testing.T) {
	want := newParts()
	if want.view().Digest() != newParts().view().Digest() {
		t.Error("equal Views have two digests")
	}
	seen := map[mesh.Digest]string{want.view().Digest(): "none"}
	for what, change := range map[string]func(*parts){
		"proxy":        func(p *parts) { p.proxy = mesh.Seal(&mesh.Proxy{UID: "2"}) },
		"settings":     func(p *parts) { p.settings = mesh.Seal(&mesh.Settings{TrustDomain: "other"}) },
		"inbound":      func(p *parts) { p.inbound = mesh.Seal(&mesh.Inbound{TLS: mesh.Permissive}) },
		"scope":        func(p *parts) { p.scope = "shop/cart" },
		"destinations": func(p *parts) { p.destinations = mesh.Table[*mesh.Destination]{} },
		"backends":     func(p *parts) { p.backends = mesh.Table[*mesh.Backend]{} },
		"egress":       func(p *parts) { p.egress = mesh.Seal(&mesh.Egress{AllowAll: true}) },
	} {
		p := newParts()
		change(&p)
		if other, taken := seen[p.view().Digest()]; taken {
			t.Errorf("a View has one digest with the changes %q and %q", what, other)
		}
		seen[p.view().Digest()] = what
		ofOutbound := what == "scope" || what == "destinations" || what == "backends"
		if changed := p.outbound().Digest() != want.outbound().Digest(); changed != ofOutbound {
			t.Errorf("with another %s the digest of the Outbound changed: %t, want %t", what, changed, ofOutbound)
		}
	}
}

func TestSnapshotDigest(t *testing.T) {
	snapshot := func() *fact.Snapshot { return &fact.Snapshot{Settings: mesh.Seal(&mesh.Settings{TrustDomain: "td"})} }
	seen := map[mesh.Digest]string{snapshot().Digest(): "none"}
	for what, change := range map[string]func(*fact.Snapshot){
		"settings": func(s *fact.Snapshot) { s.Settings = mesh.Seal(&mesh.Settings{TrustDomain: "other"}) },
		"views":    func(s *fact.Snapshot) { s.Views = fact.ViewsOf(map[string]*mesh.View{"1": newParts().view()}) },
		"services": func(s *fact.Snapshot) {
			s.Services = mesh.TableOf(map[string]*fact.Service{"a": mesh.Seal(&fact.Service{})})
		},
		"workloads": func(s *fact.Snapshot) {
			s.Workloads = mesh.TableOf(map[string]*fact.Workload{"a": mesh.Seal(&fact.Workload{})})
		},
		"problems": func(s *fact.Snapshot) {
			s.Problems = mesh.TableOf(map[string]*fact.Problems{"a": mesh.Seal(&fact.Problems{})})
		},
	} {
		s := snapshot()
		change(s)
		if other, taken := seen[s.Digest()]; taken {
			t.Errorf("a Snapshot has one digest with the changes %q and %q", what, other)
		}
		seen[s.Digest()] = what
	}
}

func TestNames(t *testing.T) {
	port := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "cart"}, Port: 80}
	if got := port.String(); got != "shop/cart:80" {
		t.Errorf("String() = %q", got)
	}
	for _, later := range []mesh.ServicePort{
		{Name: port.Name, Port: 443},
		{Name: mesh.Name{Namespace: "shop", Name: "desk"}, Port: 1},
		{Name: mesh.Name{Namespace: "tools", Name: "a"}, Port: 1},
	} {
		if port.Compare(later) >= 0 || later.Compare(port) <= 0 || port.Compare(port) != 0 {
			t.Errorf("%s does not come before %s", port, later)
		}
	}
	for protocol, want := range map[mesh.Protocol]bool{
		mesh.HTTP: true, mesh.HTTP2: true, mesh.GRPC: true, mesh.TCP: false, mesh.TCPServerFirst: false, "": false,
	} {
		if got := protocol.IsHTTP(); got != want {
			t.Errorf("IsHTTP() of %q = %t", protocol, got)
		}
	}
}

func TestDestinationAt(t *testing.T) {
	four, six := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")
	destination := mesh.Seal(&mesh.Destination{Name: "a", Addresses: []netip.Addr{four, six}, Port: 80})
	outbound := mesh.NewOutbound("*", mesh.TableOf(map[string]*mesh.Destination{"a": destination}), mesh.Table[*mesh.Backend]{})
	for to, want := range map[string]bool{
		"10.1.0.1:80": true, "[fd00::1]:80": true, "[::ffff:10.1.0.1]:80": true, "10.1.0.1:81": false, "10.1.0.2:80": false,
	} {
		if got, ok := outbound.DestinationAt(netip.MustParseAddrPort(to)); ok != want || want && got != destination {
			t.Errorf("DestinationAt(%s) = %v, %t", to, got, ok)
		}
	}
}
