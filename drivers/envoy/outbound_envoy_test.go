package envoy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// TestOutboundBehaviour has a real Envoy handle connections of an application.
func TestOutboundBehaviour(t *testing.T) {
	mine := httptest.NewServer(say("mesh"))
	named := httptest.NewServer(say("outside"))
	secure := httptest.NewTLSServer(say("secure"))
	wild := httptest.NewTLSServer(say("wild"))
	dir := t.TempDir()
	if err := program.WriteIdentity(dir, proxy().Identity); err != nil {
		t.Fatal(err)
	}
	peer := newPeer(t, dir)
	banner := newBanner(t)
	for _, s := range []*httptest.Server{mine, named, secure, wild} {
		t.Cleanup(s.Close)
	}

	f := fixture{scope: "*"}
	plaintext := func(service mesh.ServicePort, protocol mesh.Protocol, at netip.AddrPort, virtual ...string) {
		b := backend(service, protocol, mesh.Endpoint{Addresses: []netip.Addr{at.Addr()}, Port: at.Port()})
		d := destination(service, protocol, virtual[0], b)
		d.Addresses = addresses(virtual...)
		f.destinations, f.backends = append(f.destinations, d), append(f.backends, b)
	}
	plaintext(port("web", 80), mesh.HTTP, addressOf(mine.Listener), "10.96.0.1", "fd00:96::1")
	plaintext(port("db", 3306), mesh.TCPServerFirst, addressOf(banner), "10.96.0.2")
	everything := []mesh.HTTPMatch{{}}
	namedPort, securePort, wildPort := addressOf(named.Listener).Port(), addressOf(secure.Listener).Port(), addressOf(wild.Listener).Port()
	f.egress.Ports = []mesh.EgressRoutes{
		{Port: namedPort, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{
			{Host: "*.localhost", Matches: everything},
			{Host: "localhost", Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/open"}}}},
		}},
		{Port: securePort, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "localhost", Matches: everything}}},
		{Port: wildPort, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "*.localhost", Matches: everything}}},
		{Port: addressOf(banner).Port(), Protocol: mesh.EgressTCP, Ranges: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}
	f.destinations[0].Routes = append([]mesh.Route{
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/shop/"}}},
		{Match: mesh.HTTPMatch{Methods: []string{"DELETE", "GET"}, Headers: []mesh.KeyMatch{{Name: "host", StringMatch: mesh.StringMatch{Exact: "closed"}}}}},
		{Match: mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "closed"}}}},
	}, f.destinations[0].Routes...)
	peerEndpoint := func(serverName string) mesh.Endpoint {
		at := addressOf(peer.Listener)
		return mesh.Endpoint{Addresses: []netip.Addr{at.Addr()}, Port: at.Port(), ServerName: serverName}
	}
	for address, p := range map[string]struct {
		protocol   mesh.Protocol
		serverName string
	}{
		"10.96.0.3": {mesh.HTTP, proxy().Identity.DNSName()},
		"10.96.0.4": {mesh.GRPC, proxy().Identity.DNSName()},
		"10.96.0.5": {mesh.HTTP, "somebody.else.sa.cluster.local"},
	} {
		b := backend(port("peer-"+address, 80), p.protocol, peerEndpoint(p.serverName))
		f.destinations, f.backends = append(f.destinations, destination(b.Service, p.protocol, address, b)), append(f.backends, b)
	}
	e := startEnvoy(t, f.view(), dir, "outbound")
	elsewhere := func(port uint16) string { return fmt.Sprintf("192.0.2.1:%d", port) }

	for _, tt := range []struct {
		name, destination, url string
		status                 int
		body                   string
	}{
		{"a service", "10.96.0.1:80", "http://web/", 200, "mesh"},
		{"a service at its other address", "[fd00:96::1]:80", "http://web/", 200, "mesh"},
		{"a path below a prefix", "10.96.0.1:80", "http://web/shop/cart", 503, ""},
		{"the path of a prefix", "10.96.0.1:80", "http://web/shop?a=b", 503, ""},
		{"a path that only begins like a prefix", "10.96.0.1:80", "http://web/shopping", 200, "mesh"},
		{"a method and a header", "10.96.0.1:80", "http://closed/", 503, ""},
		{"a query parameter", "10.96.0.1:80", "http://web/?closed=1", 503, ""},
		{"another query parameter", "10.96.0.1:80", "http://web/?open=closed", 200, "mesh"},
		{"a peer", "10.96.0.3:80", "http://peer/", 200, "HTTP/1.1 to bookbuyer.bookbuyer.sa.cluster.local"},
		{"a peer that speaks HTTP/2", "10.96.0.4:80", "http://peer/", 200, "HTTP/2.0 to bookbuyer.bookbuyer.sa.cluster.local"},
		{"a peer that is not who it should be", "10.96.0.5:80", "http://peer/", 503, ""},
		{"a host", elsewhere(namedPort), fmt.Sprintf("http://localhost:%d/open/a", namedPort), 200, "outside"},
		{"a host without its port", elsewhere(namedPort), "http://localhost/open", 200, "outside"},
		{"a host, and a path that is not allowed", elsewhere(namedPort), "http://localhost/closed", 403, ""},
		{"another host", elsewhere(namedPort), "http://example.com/open", 403, ""},
		{"another host at the address of one that is allowed", addressOf(named.Listener).String(), "http://example.com/open", 403, ""},
		{"a host of a wildcard", elsewhere(namedPort), fmt.Sprintf("http://any.localhost:%d/", namedPort), 200, "outside"},
		{"a host of a wildcard at another port", elsewhere(namedPort), fmt.Sprintf("http://any.localhost:%d/", addressOf(mine.Listener).Port()), 403, ""},
		{"a host of a wildcard, which means port 80", elsewhere(namedPort), "http://any.localhost/", 403, ""},
		{"a server name", elsewhere(securePort), "https://localhost/", 200, "secure"},
		{"a server name of a wildcard", elsewhere(wildPort), "https://any.localhost/", 200, "wild"},
		{"a server name that is not allowed", elsewhere(securePort), "https://example.com/", 0, ""},
		{"a server name that is not allowed there", elsewhere(wildPort), "https://localhost/", 0, ""},
		{"an address that is not allowed", elsewhere(1), "http://localhost/", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, body := e.get(t, tt.destination, tt.url)
			if status != tt.status || body != tt.body {
				t.Errorf("GET %s from %s gives %d %q, want %d %q", tt.url, tt.destination, status, body, tt.status, tt.body)
			}
		})
	}
	for _, destination := range []string{"10.96.0.2:3306", addressOf(banner).String()} {
		if got := e.read(t, destination); got != "welcome\n" {
			t.Errorf("a silent client of %s reads %q", destination, got)
		}
	}
	if got := e.read(t, elsewhere(7)); got != "" {
		t.Errorf("a silent client of a denied destination reads %q", got)
	}
}

func say(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
}

// newPeer returns a server in the mesh with the identity in the directory. It reports
// the client's protocol and server name.
func newPeer(t *testing.T, dir string) *httptest.Server {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	bundle := x509.NewCertPool()
	bundle.AddCert(certificate.Leaf)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s to %s", r.Proto, r.TLS.ServerName)
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: bundle, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// newBanner returns a listener whose server sends first.
func newBanner(t *testing.T) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "welcome\n")
			c.Close()
		}
	}()
	return listener
}

func addressOf(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }
