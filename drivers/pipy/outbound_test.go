package pipy

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const storeName = "bookstore.bookstore.sa.cluster.local"

// viewBuilder builds a View.
type viewBuilder struct {
	settings     mesh.Settings
	proxy        mesh.Proxy
	destinations []*mesh.Destination
	backends     []*mesh.Backend
	egress       mesh.Egress
}

func newViewBuilder() *viewBuilder {
	return &viewBuilder{
		settings: mesh.Settings{TrustDomain: "cluster.local", InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}},
		proxy: mesh.Proxy{
			Name: mesh.Name{Namespace: "bookbuyer", Name: "bookbuyer"}, UID: "uid-1", Class: name,
			Identity:  mesh.Identity{TrustDomain: "cluster.local", Namespace: "bookbuyer", ServiceAccount: "bookbuyer"},
			Addresses: []netip.Addr{netip.MustParseAddr("198.18.1.5"), netip.MustParseAddr("2001:db8::1:5")},
		},
	}
}

func (w *viewBuilder) view() *mesh.View {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	for _, d := range w.destinations {
		c := *d
		destinations[d.Name] = mesh.Seal(&c)
	}
	for _, b := range w.backends {
		c := *b
		backends[b.Name] = mesh.Seal(&c)
	}
	settings, proxy, egress := w.settings, w.proxy, w.egress
	return mesh.NewView(mesh.Seal(&proxy), mesh.Seal(&settings), mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}),
		mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.TableOf(backends)), mesh.Seal(&egress))
}

// service adds a service at the address, with one backend that has the endpoints.
func (w *viewBuilder) service(name string, port uint16, protocol mesh.Protocol, virtual string, endpoints ...mesh.Endpoint) (*mesh.Destination, *mesh.Backend) {
	service := mesh.ServicePort{Name: mesh.Name{Namespace: "bookstore", Name: name}, Port: port}
	b := &mesh.Backend{Name: service.String(), Service: service, Protocol: protocol, Endpoints: endpoints}
	d := &mesh.Destination{
		Name: service.String(), Service: service, Addresses: []netip.Addr{netip.MustParseAddr(virtual)}, Port: port, Protocol: protocol,
	}
	shares := []mesh.WeightedBackend{{Backend: b.Name, Weight: 1}}
	if protocol.IsHTTP() {
		d.Routes = []mesh.Route{{Backends: shares}}
	} else {
		d.Backends = shares
	}
	w.destinations, w.backends = append(w.destinations, d), append(w.backends, b)
	return d, b
}

func at(address netip.AddrPort, serverName string) mesh.Endpoint {
	return mesh.Endpoint{Addresses: []netip.Addr{address.Addr()}, Port: address.Port(), ServerName: serverName}
}

// describe answers with a description of the request and its sender.
func describe(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s at %s by %s", r.Proto, r.URL, r.TLS.ServerName, r.TLS.PeerCertificates[0].DNSNames[0])
}

func TestOutboundHTTP(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	store := s.peer(t, storeName, http.HandlerFunc(describe))
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(store, storeName))
	w.service("wrong", 80, mesh.HTTP, "10.96.0.2", at(store, "other.bookstore.sa.cluster.local"))
	s.apply(t, w.view())
	for range 3 {
		status, body := s.get(t, "http://10.96.0.1/books?a=b")
		if want := "HTTP/1.1 /books?a=b at " + storeName + " by bookbuyer.bookbuyer.sa.cluster.local"; status != 200 || body != want {
			t.Errorf("the store answers %d %q, want %q", status, body, want)
		}
	}
	if status, body := s.get(t, "http://10.96.0.2/"); status != 503 {
		t.Errorf("a peer with another identity: %d %q", status, body)
	}
	if status, _ := s.get(t, "http://10.96.0.9/"); status != 0 {
		t.Errorf("a call that nothing allows gets %d", status)
	}
}
