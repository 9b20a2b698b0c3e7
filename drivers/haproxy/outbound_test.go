package haproxy

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// peer is a server with mesh TLS that answers with a description of each request.
type peer struct {
	address  string
	requests atomic.Int32
	// answer, if set, answers a request instead.
	answer func(http.ResponseWriter, *http.Request) bool

	mu          sync.Mutex
	connections []tls.ConnectionState
}

func serverTLS(ca *authority, id mesh.Identity, seen func(tls.ConnectionState)) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{ca.issue(id)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error {
			if seen != nil {
				seen(state)
			}
			return nil
		},
	}
}

func newPeer(t *testing.T, ca *authority, id mesh.Identity) *peer {
	t.Helper()
	p := new(peer)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if p.answer != nil && p.answer(w, r) {
			return
		}
		json.NewEncoder(w).Encode(seen{Proto: r.Proto, Path: r.RequestURI, Host: r.Host, From: p.address, Header: r.Header})
	}))
	server.TLS = serverTLS(ca, id, func(state tls.ConnectionState) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.connections = append(p.connections, state)
	})
	server.EnableHTTP2 = true
	server.Config.ErrorLog = discard
	server.StartTLS()
	t.Cleanup(server.Close)
	p.address = server.Listener.Addr().String()
	return p
}

// runOutbound runs the HAProxy of a client.
func runOutbound(t *testing.T, ca *authority, f *fixture) *running {
	t.Helper()
	dir := t.TempDir()
	ca.writeTo(dir, buyer)
	return start(t, dir, f.view()).awaitReady()
}

const storeAddress = "10.96.0.10:80"

// TestCallsByMeshTLS checks the connections and requests that a server gets.
func TestCallsByMeshTLS(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		// For several connections.
		w.Header().Set("Connection", "close")
		return false
	}
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	r := runOutbound(t, ca, f)
	for h2, proto := range map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"} {
		c := client(r.outbound, storeAddress, nil, h2)
		for range 4 {
			response, got, err := keepAsking(c, "GET", "/a?b=c", "X-A", "b")
			if err != nil || response.StatusCode != 200 || got.Proto != proto || got.Path != "/a?b=c" || got.Host != "books.example.com" || got.Header.Get("X-A") != "b" {
				t.Fatalf("by %s the answer is %v, %+v, %v", proto, response, got, err)
			}
		}
		c.CloseIdleConnections()
	}
	r.awaitLog(`"upstream_peer":"` + store.String() + `"`)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, state := range p.connections {
		if state.ServerName != store.DNSName() || state.DidResume || state.PeerCertificates[0].Subject.CommonName != buyer.CommonName() || state.Version != tls.VersionTLS13 {
			t.Errorf("the server name is %q, resumed %v, by %v", state.ServerName, state.DidResume, state.PeerCertificates[0].Subject)
		}
	}
	if len(p.connections) < 5 {
		t.Errorf("there were %d connections", len(p.connections))
	}
}

// TestWrongServer calls endpoints with the certificate of another identity or another mesh.
func TestWrongServer(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, newPeer(t, ca, ops).address))
	foreign := newPeer(t, other, store)
	f.service(servicePort("foreign", 80), mesh.HTTP, "10.96.0.11", backend(servicePort("foreign", 80), mesh.HTTP, store, foreign.address))
	r := runOutbound(t, ca, f)
	for _, to := range []string{storeAddress, "10.96.0.11:80"} {
		response, got, err := ask(client(r.outbound, to, nil, false), "/")
		if err != nil || response.StatusCode != 503 {
			t.Errorf("%s answers %v, %+v, %v", to, response, got, err)
		}
	}
	r.awaitLog("verif")
}

// TestRoutes checks matches and weights of routes.
func TestRoutes(t *testing.T) {
	ca := newAuthority(t)
	one, two := newPeer(t, ca, store), newPeer(t, ca, ops)
	f := newFixture(buyer)
	v1 := backend(servicePort("bookstore-v1", 80), mesh.HTTP, store, one.address)
	v2 := backend(servicePort("bookstore-v2", 80), mesh.HTTP, ops, two.address)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", v1, v2)
	d.Routes = []mesh.Route{
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/none"}}},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/v[12]/b.*"}, Headers: []mesh.KeyMatch{{Name: "x-to", StringMatch: mesh.StringMatch{Exact: "two"}}}}, Backends: []mesh.WeightedBackend{{Backend: v2.Name, Weight: 1}}},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/timeout"}}, Backends: []mesh.WeightedBackend{{Backend: v1.Name, Weight: 1}}, Timeout: 200 * time.Millisecond},
		{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/retry"}}, Backends: []mesh.WeightedBackend{{Backend: v1.Name, Weight: 1}}, Retry: &mesh.Retry{On: []string{"5xx"}, Attempts: 3}},
		{Backends: []mesh.WeightedBackend{{Backend: v1.Name, Weight: 90}, {Backend: v2.Name, Weight: 10}}},
	}
	var failures atomic.Int32
	one.answer = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/timeout":
			<-r.Context().Done()
			return true
		case r.URL.Path == "/retry" && failures.Add(1) <= 2:
			w.WriteHeader(503)
			return true
		}
		return false
	}
	r := runOutbound(t, ca, f)
	for target, want := range map[string]int{"/none/a": 503, "/timeout": 504, "/retry": 200} {
		if response, _, err := ask(client(r.outbound, storeAddress, nil, false), target); err != nil || response.StatusCode != want {
			t.Errorf("%s answers %v, %v, want %d", target, response, err, want)
		}
	}
	if _, got, err := ask(client(r.outbound, storeAddress, nil, true), "/v2/books", "X-To", "two"); err != nil || got.From != two.address {
		t.Errorf("the header leads to %+v, %v", got, err)
	}
	c := client(r.outbound, storeAddress, nil, false)
	defer c.CloseIdleConnections()
	before := two.requests.Load()
	for range 600 {
		if response, _, err := keepAsking(c, "GET", "/"); err != nil || response.StatusCode != 200 {
			t.Fatal(response, err)
		}
	}
	if got := two.requests.Load() - before; got < 30 || got > 90 {
		t.Errorf("v2 got %d of 600 requests, want 60 within 30", got)
	}
}

// TestEgress checks destinations outside the mesh.
func TestEgress(t *testing.T) {
	a := newApp(t)
	f := newFixture(buyer)
	f.egress.Ports = []mesh.EgressRoutes{
		{Port: a.http, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "localhost", Matches: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/allowed"}}}}}},
		{Port: a.tcp, Protocol: mesh.EgressTCP, Ranges: ranges("127.0.0.1/32")},
	}
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all=", all), func(t *testing.T) {
			f.egress.AllowAll = all
			closed := map[bool]int{false: 403, true: 200}[all]
			r := runOutbound(t, newAuthority(t), f)
			for _, tt := range []struct {
				host, target string
				want         int
			}{{"localhost", "/allowed/a", 200}, {local(a.http), "/allowed", closed}, {"localhost", "/denied", 403}, {"other.example.com", "/allowed", closed}} {
				response, _, err := ask(client(r.outbound, local(a.http), nil, false), tt.target, "Host", tt.host)
				if err != nil || response.StatusCode != tt.want {
					t.Errorf("%s of %s answers %v, %v, want %d", tt.target, tt.host, response, err, tt.want)
				}
			}
			if got, err := hello(r.outbound, local(a.tcp), nil); err != nil || got != "hello\n" {
				t.Errorf("by address the answer is %q, %v", got, err)
			}
			_, _, err := ask(client(r.outbound, local(a.other), nil, false), "/")
			if (err == nil) != all {
				t.Errorf("a call that nothing allows ends with %v", err)
			}
		})
	}
}

// TestEgressHosts uses hosts that can be read in several ways. With 200, or with 503 for an
// unknown name, HAProxy has allowed and resolved the host.
func TestEgressHosts(t *testing.T) {
	a := newApp(t)
	f := newFixture(buyer)
	f.egress.Ports = []mesh.EgressRoutes{{Port: a.http, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{
		{Host: "*.invalid", Matches: anything}, {Host: "localhost", Matches: anything}}}}
	r := runOutbound(t, newAuthority(t), f)
	for host, want := range map[string]int{
		"localhost": 200, fmt.Sprintf("LOCALHOST:%d", a.http): 200, "any.invalid": 503, fmt.Sprintf("any.invalid:%d", a.http): 503,
		"localhost:1": 403, "any.invalid:1": 403, "any.invalid:": 403, ":any.invalid": 403, "localhost:80.invalid": 403, "localhost:.invalid": 403,
		fmt.Sprintf("localhost:%d.invalid", a.http): 403, fmt.Sprintf("localhost:.invalid:%d", a.http): 403, "127.0.0.1#.invalid": 403, "a@any.invalid": 403,
	} {
		conn, err := dial(r.outbound, local(a.http))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		conn.Close()
		// Invalid hosts are refused earlier.
		if err != nil || response.StatusCode != want && (want != 403 || response.StatusCode != 400) {
			t.Errorf("%s answers %v, %v, want %d", host, response, err, want)
		}
	}
}

// TestTCPOut calls a server that speaks first, and a destination without backends.
func TestTCPOut(t *testing.T) {
	ca := newAuthority(t)
	config := serverTLS(ca, store, nil)
	config.NextProtos = nil
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { fmt.Fprintln(conn, "hello"); io.Copy(conn, conn); conn.Close() }()
		}
	}()
	f := newFixture(buyer)
	db := backend(servicePort("db", 3306), mesh.TCPServerFirst, store, listener.Addr().String())
	f.service(servicePort("db", 3306), mesh.TCPServerFirst, "10.96.0.14", db)
	f.service(servicePort("both", 3306), mesh.TCP, "10.96.0.15", db, db)
	f.service(servicePort("none", 3306), mesh.TCP, "10.96.0.16")
	r := runOutbound(t, ca, f)
	for _, address := range []string{"10.96.0.14:3306", "10.96.0.15:3306"} {
		if got, err := hello(r.outbound, address, nil); err != nil || got != "hello\n" {
			t.Errorf("%s says %q, %v", address, got, err)
		}
	}
	for _, address := range []string{"10.96.0.16:3306", "10.96.0.99:3306"} {
		if got, err := hello(r.outbound, address, nil); err == nil {
			t.Errorf("%s says %q", address, got)
		}
	}
}

// TestReload changes the rules while a client keeps its connection: no request may fail, and
// the current rules must apply to each.
func TestReload(t *testing.T) {
	a := newApp(t)
	f := strict(a)
	r, ca := runInbound(t, f)
	tcp, err := dial(r.inbound, local(a.tcp))
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	secure := tls.Client(tcp, ca.as(buyer, store))
	lines := bufio.NewReader(secure)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	clients := map[string]*http.Client{
		"HTTP/1.1": client(r.inbound, local(a.http), ca.as(buyer, store), false),
		"HTTP/2":   client(r.inbound, local(a.http), ca.as(buyer, store, "h2"), true),
	}
	for i := range 4 {
		want := 200
		if i%2 == 1 {
			want = 403
		}
		for name, c := range clients {
			if response, _, err := keepAsking(c, "GET", "/books/1"); err != nil || response.StatusCode != want {
				t.Fatalf("round %d by %s: %v, %v, want %d", i, name, response, err, want)
			}
		}
		// Also replace the certificate.
		ca.writeTo(r.dir, store)
		next := *f
		next.inbound.Ports = append([]mesh.InboundPort(nil), f.inbound.Ports...)
		if want == 200 {
			next.inbound.Ports[0].Access = access(permission("other", anything, ops))
		}
		r.configure(next.view())
		r.reload()
	}
	fmt.Fprintln(secure, "still there")
	if got, err := lines.ReadString('\n'); err != nil || got != "still there\n" {
		t.Errorf("the earlier connection says %q, %v", got, err)
	}
}

// TestNoRequestFailsWhileReloading reloads HAProxy under load.
func TestNoRequestFailsWhileReloading(t *testing.T) {
	a := newApp(t)
	f := strict(a)
	r, ca := runInbound(t, f)
	stop, failed := make(chan struct{}), make(chan error, 100)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			c := client(r.inbound, local(a.http), ca.as(buyer, store), false)
			defer c.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				if response, _, err := keepAsking(c, "POST", "/books/1"); err != nil || response.StatusCode != 200 {
					failed <- fmt.Errorf("%v, %v", response, err)
					return
				}
			}
		})
	}
	for range 5 {
		ca.writeTo(r.dir, store)
		r.reload()
	}
	close(stop)
	group.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}

// workers returns the IDs of the worker processes, each after a space.
func (r *running) workers() string {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", r.master.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	return " " + string(text)
}

// reload reloads like the agent: it sends the signal until there is another worker.
func (r *running) reload() {
	r.t.Helper()
	before, loaded := r.workers(), r.loaded()
	// A signal that comes while HAProxy loads a configuration makes it load it once more.
	const signals = 20
	for range signals {
		if err := r.master.Signal(syscall.SIGUSR2); err != nil {
			r.t.Fatal(err)
		}
		for until := time.Now().Add(r.patience / signals); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			for _, worker := range strings.Fields(r.workers()) {
				if !strings.Contains(before, " "+worker+" ") {
					// The workers of HAProxy 3.2 load the configuration themselves.
					r.await("a worker with the configuration", func() bool { return r.loaded() > loaded })
					time.Sleep(100 * time.Millisecond)
					return
				}
			}
		}
	}
	r.t.Fatal("HAProxy's master has no new worker")
}

// loaded returns how often HAProxy has loaded a configuration.
func (r *running) loaded() int { return strings.Count(r.log.String(), "Loading success") }

var discard = log.New(io.Discard, "", 0)
