package haproxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// switcher is an application that answers each connection's first request with 101, and
// records what it reads.
type switcher struct {
	port uint16
	mu   sync.Mutex
	read strings.Builder
}

func newSwitcher(t *testing.T) *switcher {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &switcher{port: portOf(listener)}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *switcher) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read.Write(p)
}

// take returns the bytes read since the last call.
func (s *switcher) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.read.Reset()
	return s.read.String()
}

func (s *switcher) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(io.TeeReader(conn, s))
	request, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if request.Method == http.MethodConnect {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	} else {
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", request.Header.Get("Upgrade"))
	}
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprint(conn, "tunnelled ", line)
	}
}

// upgrades are requests with headers, and whether their connection may become an
// uninspected tunnel.
var upgrades = map[string]struct {
	request string
	tunnel  bool
}{
	"websocket":                     {"GET /books HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", true},
	"websocket, other letters":      {"GET /books HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", true},
	"HTTP/2":                        {"GET /books HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n", false},
	"another protocol":              {"GET /books HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: foo/1\r\n", false},
	"a choice":                      {"GET /books HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n", false},
	"two lines":                     {"GET /books HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n", false},
	"not for this connection":       {"GET /books HTTP/1.1\r\nUpgrade: websocket\r\n", false},
	"none":                          {"GET /books HTTP/1.1\r\n", false},
	"none, and a header to be lost": {"GET /books HTTP/1.1\r\nConnection: close, x-forwarded-client-cert\r\n", false},
	"CONNECT":                       {"CONNECT a:80 HTTP/1.1\r\n", false},
}

// tunnels reports whether bytes are forwarded after the request.
func tunnels(t *testing.T, conn net.Conn, host, request string) bool {
	t.Helper()
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "%sHost: %s\r\n\r\n", request, host)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return false
	}
	if response.StatusCode >= 400 {
		return false
	}
	// Without a tunnel this is a request that is refused.
	fmt.Fprint(conn, "GET /admin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	line, _ := reader.ReadString('\n')
	return strings.HasPrefix(line, "tunnelled")
}

// TestUpgrades lets callers with access to one path try to turn connections into tunnels.
func TestUpgrades(t *testing.T) {
	a := newSwitcher(t)
	books := []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/books"}}}
	f := newFixture(store)
	f.inbound.Ports = []mesh.InboundPort{{Port: a.port, Protocol: mesh.HTTP,
		Access: access(permission("a/b", append(books, mesh.HTTPMatch{Methods: []string{"CONNECT"}}), buyer))}}
	meshOnly, ca := runInbound(t, f)
	f.inbound.Ports[0].Ingress = []mesh.Ingress{
		{Origin: drivertest.Origin("IngressBackend", "a/plain"), Ranges: ranges("127.0.0.0/8"), Requests: books},
		{Origin: drivertest.Origin("IngressBackend", "a/tls"), TLS: true, SkipClientCert: true, Ranges: ranges("127.0.0.0/8"), Requests: books},
	}
	open, openCA := runInbound(t, f)
	for name, from := range map[string]struct {
		r   *running
		tls *tls.Config
	}{
		"mesh":           {meshOnly, ca.as(buyer, store)},
		"mesh, by entry": {open, openCA.as(buyer, store)},
		"plaintext":      {open, nil},
		"TLS of its own": {open, &tls.Config{ServerName: "books.example.com", InsecureSkipVerify: true}},
	} {
		for kind, tt := range upgrades {
			t.Run(name+"/"+kind, func(t *testing.T) {
				conn, err := dial(from.r.inbound, local(a.port))
				if err != nil {
					t.Fatal(err)
				}
				if from.tls != nil {
					conn = tls.Client(conn, from.tls)
				}
				a.take()
				if got := tunnels(t, conn, "a", tt.request); got != tt.tunnel {
					t.Errorf("a tunnel: %v, want %v", got, tt.tunnel)
				}
				read := a.take()
				if !tt.tunnel && strings.Contains(read, "/admin") {
					t.Errorf("the application read %q", read)
				}
				head := strings.ToLower(read)
				if strings.Contains(head, "settings") || strings.Contains(head, "h2c") || strings.Contains(head, "connection: close, x-") {
					t.Errorf("the application received an uninspected request: %q", read)
				}
				if tt.tunnel && strings.Count(head, "upgrade: websocket\r\nconnection: upgrade\r\n") != 1 {
					t.Errorf("the application received no WebSocket request: %q", read)
				}
			})
		}
	}
}

// TestUpgradesOut lets the application try to turn its calls into tunnels, which is possible
// only for uninspected egress.
func TestUpgradesOut(t *testing.T) {
	a := newSwitcher(t)
	f := newFixture(buyer)
	f.egress.AllowAll = true
	f.egress.Ports = []mesh.EgressRoutes{{Port: a.port, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "localhost", Matches: []mesh.HTTPMatch{
		{Path: mesh.StringMatch{Prefix: "/books"}}, {Methods: []string{"CONNECT"}}}}}}}
	r := runOutbound(t, newAuthority(t), f)
	// HAProxy 3.2 itself forwards no upgrade to HTTP/2.
	toHTTP2 := !isAtLeast(t, 3, 2)
	for kind, tt := range upgrades {
		for host, want := range map[string]bool{"localhost": tt.tunnel, "other.example.com": tt.tunnel || kind == "HTTP/2" && toHTTP2 || kind == "another protocol"} {
			t.Run(host+"/"+kind, func(t *testing.T) {
				if host != "localhost" && !want {
					t.Skip("HAProxy decides")
				}
				conn, err := dial(r.outbound, local(a.port))
				if err != nil {
					t.Fatal(err)
				}
				if got := tunnels(t, conn, host, tt.request); got != want {
					t.Errorf("a tunnel: %v, want %v", got, want)
				}
			})
		}
	}
}
