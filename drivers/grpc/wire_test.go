package grpc

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestClientOnWire has a client call a server that is not gRPC's, to see what it sends.
// docs/wire.md has the rules.
func TestClientOnWire(t *testing.T) {
	w := newTestMesh(t)
	cart, web := pod("cart", 15), pod("web", 16)
	certificate, err := w.ctrl.Authority().IssueTo(cart, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cart.Addresses[0].String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	seen := make(chan tls.ConnectionState, 100)
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			conn := tls.Server(raw, &tls.Config{
				Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: w.ctrl.Authority().Pool(),
			})
			// The client may end at any time.
			if conn.Handshake() == nil {
				seen <- conn.ConnectionState()
			}
			conn.Close()
		}
	}()
	port := netip.MustParseAddrPort(listener.Addr().String()).Port()
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"with GRPC_EXPERIMENTAL_XDS_SNI": {sni, cart.Identity.DNSName()},
		"without":                        {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := view(web, 1, mesh.Access{}, split(share("a", 1)), backendOf("a", port, cart))
			w.ctrl.SetView(web.UID, v)
			client := w.run(v, c.env, "call", "xds:///cart:80")
			client.await(check, "Unavailable")
			// It connects again at once, and must not resume the session.
			for range 2 {
				var state tls.ConnectionState
				select {
				case state = <-seen:
				case <-time.After(20 * time.Second):
					t.Fatal("no handshake succeeds")
				}
				if state.ServerName != c.want {
					t.Errorf("SNI %q, want %q", state.ServerName, c.want)
				}
				if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" || state.DidResume {
					t.Errorf("%s, ALPN %q, resumed %v", tls.VersionName(state.Version), state.NegotiatedProtocol, state.DidResume)
				}
				if got := state.PeerCertificates[0].URIs[0].String(); got != web.Identity.String() {
					t.Errorf("the client is %s", got)
				}
				_ = client.call(check)
			}
		})
	}
}

// TestServerOnWire connects to a server of gRPC as proxies of the mesh do.
func TestServerOnWire(t *testing.T) {
	w := newTestMesh(t)
	port := freePort(t)
	cart, web := pod("cart", 17), pod("web", 18)
	v := view(cart, port, rule(check, web), nil)
	w.ctrl.SetView(cart.UID, v)
	address := netip.AddrPortFrom(cart.Addresses[0], port).String()
	server := w.run(v, sni, "serve", address, "v1")
	if got := server.line(); got != "SERVING <nil>" {
		t.Fatal(got)
	}
	certificate, err := w.ctrl.Authority().IssueTo(web, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// dial returns the server's certificate. A client learns with its first read that its own
	// was refused.
	dial := func(change func(*tls.Config)) (*x509.Certificate, error) {
		config := &tls.Config{
			ServerName: cart.Identity.DNSName(), RootCAs: w.ctrl.Authority().Pool(), NextProtos: []string{"h2", "http/1.1"},
			Certificates: []tls.Certificate{certificate},
		}
		change(config)
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", address, config)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return nil, err
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != "h2" && got != "" {
			t.Errorf("ALPN %q", got)
		}
		return conn.ConnectionState().PeerCertificates[0], nil
	}
	first, err := dial(func(*tls.Config) {})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change  func(*tls.Config)
		refused bool
	}{
		"no certificate":                   {func(c *tls.Config) { c.Certificates = nil }, true},
		"ALPN http/1.1, which gets HTTP/2": {func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }, false},
		"another name":                     {func(c *tls.Config) { c.ServerName = web.Identity.DNSName() }, true},
		"TLS 1.2, which others refuse":     {func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, false},
	} {
		if _, err := dial(c.change); (err != nil) != c.refused {
			t.Errorf("%s: %v, want refused %v", name, err, c.refused)
		}
	}
	t.Run("plaintext", func(t *testing.T) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		// A TLS alert, or nothing, but no frame of HTTP/2.
		answer := make([]byte, 9)
		if n, _ := conn.Read(answer); n > 0 && answer[0] != 21 {
			t.Errorf("answered %x", answer[:n])
		}
	})
	t.Run("a renewed certificate", func(t *testing.T) {
		w.renew(cart, server.dir)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			now, err := dial(func(*tls.Config) {})
			if err != nil {
				t.Fatal(err)
			}
			if now.SerialNumber.Cmp(first.SerialNumber) != 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatal("the server still shows its first certificate")
			}
		}
	})
}
