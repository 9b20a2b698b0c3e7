package pipy

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestGateway has a real Pipy handle requests of clients outside the mesh.
func TestGateway(t *testing.T) {
	w := newViewBuilder()
	w.proxy.Gateway = true
	empty := w.view()
	s := startPod(t, empty)
	store := mesh.Identity{TrustDomain: "cluster.local", Namespace: "bookstore", ServiceAccount: "bookstore"}
	g := &drivertest.Gateway{
		Proxy: w.proxy, Server: store,
		TLS: &tls.Config{
			Certificates: []tls.Certificate{s.root.issue(t, store.DNSName())}, ClientCAs: s.root.Pool(),
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
		},
		Listen: func() (net.Listener, error) { return s.lab.Node().Listen(context.Background(), "tcp", "198.18.0.1:0") },
		Dial: func(ctx context.Context, port uint16) (net.Conn, error) {
			return s.lab.Node().Dial(ctx, "tcp", fmt.Sprintf("%s:%d", w.proxy.Addresses[0], port))
		},
		Client: netip.MustParseAddr("198.18.0.1"),
		Dial6: func(ctx context.Context, port uint16) (net.Conn, error) {
			return s.lab.Node().Dial(ctx, "tcp", fmt.Sprintf("[%s]:%d", w.proxy.Addresses[1], port))
		},
		Client6: netip.MustParseAddr("2001:db8::1"),
	}
	view := g.View(t)
	s.apply(t, view)
	g.Check(t)

	// A port that the gateway no longer has is closed, and opened again. Those who are connected stay,
	// and there is nothing for them.
	client := g.HTTPClient(0, false)
	defer client.CloseIdleConnections()
	for i, there := range []bool{true, false, true} {
		if i > 0 {
			s.apply(t, map[bool]*mesh.View{false: empty, true: view}[there])
		}
		if response, _, err := g.Ask(client, "cart.example.com", "/cart"); err != nil || response.StatusCode != map[bool]int{false: 404, true: 200}[there] {
			t.Errorf("a client that is connected gets %v, %v, with the port: %v", response, err, there)
		}
		answers := func() bool {
			other := g.HTTPClient(0, false)
			defer other.CloseIdleConnections()
			_, _, err := g.Ask(other, "cart.example.com", "/cart")
			return err == nil
		}
		for deadline := time.Now().Add(5 * time.Second); answers() != there; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("with the port: %v, but another client's answer is not", there)
			}
		}
	}
}

// TestGatewayStart starts a gateway's Pipy with a port.
func TestGatewayStart(t *testing.T) {
	w := newViewBuilder()
	w.proxy.Gateway = true
	service := mesh.ServicePort{Name: mesh.Name{Namespace: "edge", Name: "web"}, Port: 8080}
	w.destinations = append(w.destinations, &mesh.Destination{
		Name: "gateway/" + service.String(), Service: service, Addresses: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()},
		Port: 8080, Protocol: mesh.HTTP, Listens: true, Hosts: []string{mesh.AnyHost},
	})
	s := startPod(t, w.view())
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: s.lab.Node().Dial}}
	defer client.CloseIdleConnections()
	for _, address := range w.proxy.Addresses {
		response, err := client.Get("http://" + netip.AddrPortFrom(address, 8080).String())
		if err != nil {
			t.Error(err)
			continue
		}
		response.Body.Close()
		if response.StatusCode != 404 {
			t.Errorf("%s answers %d", address, response.StatusCode)
		}
	}
}
