package envoy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// TestGateway has a real Envoy handle requests of clients outside the mesh.
func TestGateway(t *testing.T) {
	dir := t.TempDir()
	edge := mesh.Identity{TrustDomain: "cluster.local", Namespace: "edge", ServiceAccount: "web"}
	if err := program.WriteIdentity(dir, edge); err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	bundle := x509.NewCertPool()
	bundle.AddCert(certificate.Leaf)
	g := &drivertest.Gateway{
		Proxy: mesh.Proxy{
			Name: mesh.Name{Namespace: "edge", Name: "web-1"}, UID: "uid-web", Class: "envoy", Identity: edge,
			Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()},
		},
		Server: edge, TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: bundle, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13},
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		Dial: func(ctx context.Context, port uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		},
		Client: netip.MustParseAddr("127.0.0.1"),
		Dial6: func(ctx context.Context, port uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("[::1]:%d", port))
		},
		// In place of a loopback address Envoy says its own.
		Client6: netip.MustParseAddr("127.0.0.1"),
	}
	view := g.View(t)
	startEnvoy(t, view, dir, view.Outbound.Destinations.Names()[0])
	g.Check(t)
}
