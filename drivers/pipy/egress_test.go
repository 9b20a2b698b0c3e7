package pipy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// outside starts a server outside the mesh that answers with its name, in plaintext or TLS.
func (s *pipyPod) outside(t *testing.T, name string, secure bool) netip.AddrPort {
	t.Helper()
	listener, err := s.lab.Node().Listen(context.Background(), "tcp", "198.18.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }))
	server.Listener.Close()
	server.Listener = listener
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// ask sends a request for the URL over a connection to the address.
func (s *pipyPod) ask(t *testing.T, address, url string) (int, string) {
	t.Helper()
	client := s.client()
	client.Timeout = 10 * time.Second
	transport := client.Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) { return s.Dial(ctx, network, address) }
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	response, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func TestEgress(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	named, secure, wild := s.outside(t, "named", false), s.outside(t, "secure", true), s.outside(t, "wild", true)
	ranged := s.outside(t, "ranged", false)
	everything := []mesh.HTTPMatch{{}}
	w.egress.Ports = []mesh.EgressRoutes{
		{Port: named.Port(), Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{
			{Host: "*.outside.example", Matches: everything},
			{Host: "outside.example", Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/open"}}}},
		}},
		{Port: secure.Port(), Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "outside.example", Matches: everything}}},
		{Port: wild.Port(), Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "*.outside.example", Matches: everything}}},
		{Port: ranged.Port(), Protocol: mesh.EgressTCP, Ranges: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/24")}},
	}
	s.apply(t, w.view())
	elsewhere := func(port uint16) string { return fmt.Sprintf("192.0.2.1:%d", port) }
	n := named.Port()
	type question struct {
		name, address, url string
		status             int
		body               string
	}
	ask := func(t *testing.T, questions []question) {
		for _, q := range questions {
			t.Run(q.name, func(t *testing.T) {
				status, body := s.ask(t, q.address, q.url)
				if status != q.status || status == 200 && body != q.body {
					t.Errorf("GET %s from %s gives %d %q, want %d %q", q.url, q.address, status, body, q.status, q.body)
				}
			})
		}
	}
	ask(t, []question{
		{"a host", elsewhere(n), fmt.Sprintf("http://outside.example:%d/open/a", n), 200, "named"},
		{"a host without its port", elsewhere(n), "http://outside.example/open", 200, "named"},
		{"a host with a final dot", elsewhere(n), "http://Outside.Example./open", 200, "named"},
		{"a host with a final dot and a port", elsewhere(n), fmt.Sprintf("http://outside.example.:%d/open", n), 200, "named"},
		{"a host with two final dots", elsewhere(n), "http://outside.example../open", 403, ""},
		{"a path that is not allowed", elsewhere(n), "http://outside.example/closed", 403, ""},
		{"another host", elsewhere(n), "http://example.com/open", 403, ""},
		{"another host at an allowed address", named.String(), "http://example.com/open", 403, ""},
		{"a host of a wildcard", elsewhere(n), fmt.Sprintf("http://any.outside.example:%d/", n), 200, "named"},
		{"a host of a wildcard, which means port 80", elsewhere(n), "http://any.outside.example/", 403, ""},
		{"a server name", elsewhere(secure.Port()), "https://outside.example/", 200, "secure"},
		{"a server name of a wildcard", elsewhere(wild.Port()), "https://any.outside.example/", 200, "wild"},
		{"a server name that is not allowed", secure.String(), "https://example.com/", 0, ""},
		{"a server name that is not allowed there", wild.String(), "https://outside.example/", 0, ""},
		{"plaintext where TLS is allowed", ranged.String(), "http://outside.example/", 200, "ranged"},
		{"an address of a range", ranged.String(), "http://whatever/", 200, "ranged"},
		{"an address that is not of the range", elsewhere(ranged.Port()), "http://whatever/", 0, ""},
		{"a port that nothing names", elsewhere(1), "http://outside.example/", 0, ""},
	})
	w.egress.AllowAll = true
	s.apply(t, w.view())
	ask(t, []question{
		{"all: another host", named.String(), "http://example.com/open", 200, "named"},
		{"all: a path that is not allowed", named.String(), "http://outside.example/closed", 403, ""},
		{"all: a path that is not allowed, of a host with a final dot", named.String(), "http://outside.example./closed", 403, ""},
		{"all: a server name that is not named", secure.String(), "https://example.com/", 200, "secure"},
		{"all: a port that nothing names", s.outside(t, "free", false).String(), "http://whatever/", 200, "free"},
	})
	banner := s.greeter(t)
	if line, err := bufio.NewReader(s.dial(t, banner.String())).ReadString('\n'); line != "welcome\n" {
		t.Errorf("a server that speaks first says %q, %v", line, err)
	}
}

// TestEgressChanges changes the egress policy while each thread has cached backends.
func TestEgressChanges(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	named := s.outside(t, "named", false)
	for i := range 4 {
		w.egress.Ports = []mesh.EgressRoutes{{Port: named.Port(), Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{
			Host: "outside.example", Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: fmt.Sprint("/", i)}}},
			Policy: mesh.UpstreamPolicy{MaxConnections: new(uint32(5)), MaxRequests: new(uint32(5))},
		}}}}
		s.apply(t, w.view())
		for range 12 {
			if status, body := s.ask(t, named.String(), fmt.Sprint("http://outside.example/", i)); status != 200 {
				t.Fatalf("after change %d a request gets %d %s", i, status, body)
			}
		}
	}
	if strings.Contains(s.log.String(), "applying a change") {
		t.Error("a change is not applied completely")
	}
}

// greeter starts a server outside the mesh that speaks first.
func (s *pipyPod) greeter(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := s.lab.Node().Listen(context.Background(), "tcp", "198.18.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go greet(conn)
		}
	}()
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// TestEgressByOddNames checks that no name that is compared in one form and resolved in
// another gives access to hosts outside the mesh.
func TestEgressByOddNames(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	wild := s.greeter(t)
	named := s.outside(t, "named", false)
	w.egress.Ports = []mesh.EgressRoutes{
		{Port: wild.Port(), Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "*.outside.example", Matches: []mesh.HTTPMatch{{}}}}},
		{Port: named.Port(), Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "*.outside.example", Matches: []mesh.HTTPMatch{{}}}}},
	}
	s.apply(t, w.view())
	for _, name := range []string{"198.18.0.1\x00.outside.example", "198.18.0.1%.outside.example", "198.18.0.1 .outside.example", "[::1].outside.example", "198.18.0.1:1.outside.example"} {
		conn := s.dial(t, fmt.Sprintf("192.0.2.1:%d", wild.Port()))
		conn.Write(clientHello(t, name))
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("by the server name %q comes %q", name, got)
		}
		conn = s.dial(t, fmt.Sprintf("192.0.2.1:%d", named.Port()))
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n", name, named.Port())
		if got, _ := io.ReadAll(conn); strings.Contains(string(got), "HTTP/1.1 200") {
			t.Errorf("by the host %q comes %q", name, got)
		}
	}
}

// clientHello returns a ClientHello with a server name that crypto/tls would not send.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	placeholder := strings.Repeat("x", len(name)-2) + ".y"
	client, server := net.Pipe()
	defer client.Close()
	go tls.Client(client, &tls.Config{ServerName: placeholder, InsecureSkipVerify: true}).Handshake()
	buffer := make([]byte, 8192)
	n, err := server.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	return bytes.Replace(buffer[:n], []byte(placeholder), []byte(name), 1)
}
