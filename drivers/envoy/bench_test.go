package envoy

import (
	"fmt"
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// benchmarkMesh is a mesh of HTTP services with some endpoints each.
type benchmarkMesh struct {
	view      *mesh.View
	endpoints int
}

func newBenchmarkMesh(services, endpoints int) benchmarkMesh {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	m := benchmarkMesh{endpoints: endpoints}
	for i := range services {
		b := m.backend(i, 0)
		address := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		destinations[b.Name] = mesh.Seal(&mesh.Destination{
			Name: b.Name, Service: b.Service, Addresses: []netip.Addr{address}, Port: 80, Protocol: mesh.HTTP,
			Routes: []mesh.Route{{Backends: []mesh.WeightedBackend{{Backend: b.Name, Weight: 1}}}},
		})
		backends[b.Name] = b
	}
	m.view = mesh.NewView(proxy(), settings(), mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}),
		mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.TableOf(backends)), mesh.Seal(&mesh.Egress{}))
	return m
}

// backend returns a service's Backend. One endpoint's address depends on the version.
func (m benchmarkMesh) backend(service, version int) *mesh.Backend {
	port := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: fmt.Sprintf("service-%d", service)}, Port: 80}
	b := &mesh.Backend{Name: port.String(), Service: port, Protocol: mesh.HTTP}
	for i := range m.endpoints {
		b.Endpoints = append(b.Endpoints, mesh.Endpoint{
			Addresses:  []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i), byte(service >> 8), byte(service)})},
			Port:       8080,
			ServerName: port.Name.Name + ".shop.sa.cluster.local",
		})
	}
	b.Endpoints[m.endpoints-1].Port += uint16(version)
	return mesh.Seal(b)
}

// changed returns the View with one changed endpoint.
func (m benchmarkMesh) changed(version int) *mesh.View {
	b := m.backend(7, version)
	v := m.view
	return mesh.NewView(v.Proxy, v.Settings, v.Inbound,
		mesh.NewOutbound(v.Outbound.Scope, v.Outbound.Destinations, v.Outbound.Backends.With(mesh.Change[*mesh.Backend]{Name: b.Name, Value: b})), v.Egress)
}

// TestTranslationAllocations bounds what translations allocate. A bound may grow with what
// resources say, but not because something is no longer shared or measured before it is written.
func TestTranslationAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	m := newBenchmarkMesh(100, 10)
	if cold := testing.AllocsPerRun(20, func() { NewTranslator().Config(m.view) }); cold > 2600 {
		t.Errorf("a cold translation of 100 services costs %.0f allocations", cold)
	}
	translator, i := NewTranslator(), 0
	views := []*mesh.View{m.changed(1), m.changed(2)}
	if warm := testing.AllocsPerRun(20, func() { translator.Config(views[i%2]); i++ }); warm > 24 {
		t.Errorf("a changed endpoint costs %.0f allocations", warm)
	}
}

// BenchmarkTranslate measures the translation of one proxy's View: cold, with empty
// caches, and after a change of one endpoint.
func BenchmarkTranslate(b *testing.B) {
	for _, endpoints := range []int{3, 10} {
		b.Run(fmt.Sprintf("cold-100/endpoints-%d", endpoints), func(b *testing.B) {
			m := newBenchmarkMesh(100, endpoints)
			b.ReportAllocs()
			for b.Loop() {
				NewTranslator().Config(m.view)
			}
		})
	}
	for _, services := range []int{100, 3000} {
		b.Run(fmt.Sprintf("endpoint-changed-%d", services), func(b *testing.B) {
			m := newBenchmarkMesh(services, 10)
			views := []*mesh.View{m.changed(1), m.changed(2)}
			t := NewTranslator()
			t.Config(m.view)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				t.Config(views[i%2])
			}
		})
	}
}

// BenchmarkEndpoints encodes the endpoints of a service by hand, as the driver does, and by the
// generated types (docs/decisions/0058-wire-encoding-by-hand.md).
func BenchmarkEndpoints(b *testing.B) {
	m := newBenchmarkMesh(1, 10)
	backend := m.backend(0, 0)
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			new(outboundBuilder).endpoints(backend.Name, backend, "")
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			group := &endpointv3.LocalityLbEndpoints{}
			for _, e := range backend.Endpoints {
				group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Hostname: e.ServerName,
					Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
						Address: e.Addresses[0].String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(e.Port)},
					}}},
				}}})
			}
			message := &endpointv3.ClusterLoadAssignment{ClusterName: backend.Name, Endpoints: []*endpointv3.LocalityLbEndpoints{group}}
			text, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
			if err != nil {
				b.Fatal(err)
			}
			mesh.DigestBytes(text)
		}
	})
}
