package repo

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestOwnFilesOnly requests another proxy's files by all possible paths.
func TestOwnFilesOnly(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "mine", "secret-of-a.js", "")
	c.set("b", testMain, "other's", "secret-of-b.js", "")
	h := c.serve(t)
	client := h.http(t, c.ca.SignFor(proxyOf("a"), time.Hour))
	if got := ask(t, client, "GET", h.url("a"), ""); got.code != 200 || !strings.Contains(got.body, "mine") {
		t.Fatalf("a request for its own files gets %d %s", got.code, got.body)
	}
	absent := ask(t, client, "GET", h.url("nobody"), "")
	if absent.code != http.StatusNotFound {
		t.Errorf("a request for nothing gets %d", absent.code)
	}
	for _, path := range []string{
		Prefix + "b/", Prefix + "b/" + testMain, Prefix + "b/secret-of-b.js", Prefix + "b", Prefix, "/", "", "/debug/repo",
		Prefix + "a/../b/" + testMain, Prefix + "a/%2e%2e/b/" + testMain, Prefix + "a%2f..%2fb/" + testMain, Prefix + "a/..%2fb/" + testMain,
		Prefix + "a//../b/" + testMain, "//repo/b/" + testMain, Prefix + "A/", Prefix + "a", Prefix + "a/%00", Prefix + "a/nothing",
		Prefix + "a/" + testMain, Prefix + "a/etc/passwd", Prefix + "a//etc/passwd", Prefix + "a/" + testMain + "/",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
			for _, accept := range []string{"*/*", mirror.ChangeType} {
				got := ask(t, client, method, "https://"+h.address+path, "", "Accept", accept)
				if got.code < 400 || strings.Contains(got.body, "other's") || strings.Contains(got.body, "secret-of-b") {
					t.Errorf("%s %s gets %d %s", method, path, got.code, got.body)
				}
				if strings.HasPrefix(path, Prefix+"b") && (got.code != absent.code || method == "GET" && got.body != absent.body) {
					t.Errorf("%s %s gets %d %q, and a request for nothing %d %q", method, path, got.code, got.body, absent.code, absent.body)
				}
			}
		}
	}
}

// TestRefusedPeers sends requests of proxies with a wrong identity.
func TestRefusedPeers(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	other := *proxyOf("other-class")
	other.Class = "another"
	c.put(&other, setOf(t, testMain, "1"))
	view, _ := c.View("a")
	c.SetView("mistaken", view)
	h := c.serve(t)

	thief := *proxyOf("a")
	thief.Identity.ServiceAccount = "thief"
	uri, _ := url.Parse(proxyOf("a").Identity.String())
	for name, test := range map[string]struct {
		uid         string
		certificate tls.Certificate
		want        string
	}{
		"another's View":   {"mistaken", c.ca.SignFor(proxyOf("mistaken"), time.Hour), `pod UID "a", but the certificate for "mistaken"`},
		"unknown pod":      {"unknown", c.ca.SignFor(proxyOf("unknown"), time.Hour), "no such proxy in the mesh"},
		"another class":    {"other-class", c.ca.SignFor(&other, time.Hour), `class "another", and this port serves class "test"`},
		"another identity": {"a", c.ca.SignFor(&thief, time.Hour), "/sa/cart, and the proxy's certificate says"},
		"no workload":      {"a", c.ca.Sign(&x509.Certificate{DNSNames: []string{"cart"}}, time.Hour), "not a workload's"},
		"no unit":          {"a", c.ca.Sign(&x509.Certificate{URIs: []*url.URL{uri}}, time.Hour), "not a workload's"},
		"two units": {"a", c.ca.Sign(&x509.Certificate{
			Subject: pkix.Name{OrganizationalUnit: []string{"a", "b"}}, URIs: []*url.URL{uri},
		}, time.Hour), "not a workload's"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, accept := range []string{"*/*", mirror.ChangeType} {
				got := ask(t, h.http(t, test.certificate), "GET", h.url(test.uid), "", "Accept", accept)
				if got.code != http.StatusForbidden || !strings.Contains(got.body, test.want) {
					t.Errorf("the answer is %d %s", got.code, got.body)
				}
			}
		})
	}
	if len(c.events) != 0 {
		t.Errorf("the registry gets %q", c.events)
	}

	// Clients without a certificate of the mesh fail in the handshake.
	for name, certificates := range map[string][]tls.Certificate{
		"none": nil, "of another authority": {drivertest.NewTestAuthority(t).SignFor(proxyOf("a"), time.Hour)}, "ended": {c.ca.SignFor(proxyOf("a"), -time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			client := h.http(t, tls.Certificate{})
			client.Transport.(*http.Transport).TLSClientConfig.Certificates = certificates
			if response, err := client.Get(h.url("a")); err == nil {
				response.Body.Close()
				t.Errorf("the answer is %d", response.StatusCode)
			}
		})
	}
	if got := ask(t, h.http(t, c.ca.SignFor(proxyOf("a"), time.Hour)), "GET", h.url("a"), ""); got.code != 200 {
		t.Errorf("afterwards the proxy itself gets %d %s", got.code, got.body)
	}
}

// TestRegistryRefuses lets the registry refuse further proxies.
func TestRegistryRefuses(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	client := h.client(t, "a")
	client.Wait = -1
	c.Refuse(fmt.Errorf("%w: there are 7", driver.ErrTooManyProxies))
	_, err := client.Poll(t.Context(), "")
	if refused, ok := errors.AsType[*mirror.Error](err); !ok || refused.Code != 503 || refused.RetryAfter == 0 || !strings.Contains(refused.Message, "there are 7") {
		t.Errorf("the answer is %v", err)
	}
	c.Refuse(nil)
	poll(t, client, mirror.Set{})
}

// TestEndOfCertificate checks that a poll ends before its certificate does, and that the
// agent can return with the next one.
func TestEndOfCertificate(t *testing.T) {
	t.Parallel()
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t)
	certificate := c.ca.SignFor(proxyOf("a"), 4*time.Second)
	ends := certificate.Leaf.NotAfter
	client := &mirror.Client{URL: h.url("a"), HTTP: h.http(t, certificate)}
	// If a poll outlives its certificate, the test fails instead of blocking.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	change, err := client.Poll(ctx, mirror.Version(has))
	if change != nil || err != nil {
		t.Errorf("the poll ends with %v, %v", change, err)
	}
	if now := time.Now(); now.After(ends) || now.Before(ends.Add(-time.Second)) {
		t.Errorf("the poll ends %s before its certificate", ends.Sub(now))
	}
	if change, err = h.client(t, "a").Poll(t.Context(), ""); err != nil || change == nil {
		t.Errorf("with the next certificate: %v, %v", change, err)
	}
	if n := c.reported("connect shop/pod-a a"); n != 1 {
		t.Errorf("the proxy has connected %d times", n)
	}
}

// TestIdleConnectionEndsWithItsCertificate leaves a connection unused.
func TestIdleConnectionEndsWithItsCertificate(t *testing.T) {
	t.Parallel()
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	ends := time.Now().Add(2 * time.Second)
	conn := h.dial(t, c.ca.SignFor(proxyOf("a"), time.Until(ends)))
	if got := conn.ask(t, "GET /repo/a/ HTTP/1.1\r\nHost: x\r\n\r\n"); got.StatusCode != 200 {
		t.Fatalf("the answer is %d", got.StatusCode)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.reader.ReadByte(); err == nil {
		t.Error("something is sent")
	}
	if late := time.Since(ends); late > 10*time.Second {
		t.Errorf("the connection ends %s late", late)
	}
}

// rawConn is a connection of a proxy for requests that a client would not send.
type rawConn struct {
	net.Conn
	reader *bufio.Reader
}

func (h *harness) dial(t testing.TB, certificate tls.Certificate) *rawConn {
	t.Helper()
	conn, err := tls.Dial("tcp", h.address, &tls.Config{RootCAs: h.ca.Pool(), Certificates: []tls.Certificate{certificate}, ServerName: "controller"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawConn{conn, bufio.NewReader(conn)}
}

// ask sends a raw request.
func (c *rawConn) ask(t testing.TB, request string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response
}

// TestConnectionsOfOneProxy opens too many connections: those in use must stay.
func TestConnectionsOfOneProxy(t *testing.T) {
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t)
	certificate := c.ca.SignFor(proxyOf("a"), time.Hour)
	answered := make(chan *mirror.Change, 1)
	go func() {
		client := &mirror.Client{URL: h.url("a"), HTTP: h.http(t, certificate)}
		change, err := client.Poll(t.Context(), mirror.Version(has))
		if err != nil {
			t.Error(err)
		}
		answered <- change
	}()
	eventually(t, "the agent waits", func() bool { return c.reported("acked "+mirror.Version(has)) == 1 })
	var conns []*rawConn
	for range 3 * connectionsPerProxy {
		conn := h.dial(t, certificate)
		if got := conn.ask(t, "GET /repo/a/ HTTP/1.1\r\nHost: x\r\n\r\n"); got.StatusCode != 200 {
			t.Fatalf("the answer is %d", got.StatusCode)
		}
		conns = append(conns, conn)
	}
	eventually(t, "the number of connections is bounded", func() bool {
		h.server.mu.Lock()
		defer h.server.mu.Unlock()
		return len(h.server.sessions["a"].conns) == connectionsPerProxy
	})
	_ = conns[0].SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conns[0].reader.ReadByte(); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("reading from the oldest unused connection gives %v", err)
	}
	next := c.set("a", testMain, "2")
	if change := <-answered; change == nil || change.Version != mirror.Version(next) {
		t.Errorf("the waiting agent gets %v", change)
	}
}

// TestUnauthenticatedClients opens connections that never authenticate.
func TestUnauthenticatedClients(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t, func(s *Server) { s.unauthenticated = limit.NewShare[netip.Addr](100, 5) })
	var clients []net.Conn
	for range 20 {
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients = append(clients, conn)
	}
	// The sixth is closed at once, the first only by its timeout.
	_ = clients[19].SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := clients[19].Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("reading from one too many gives %v", err)
	}
	for _, conn := range clients {
		conn.Close()
	}
	// Authenticated connections do not count.
	certificate := c.ca.SignFor(proxyOf("a"), time.Hour)
	eventually(t, "unauthenticated connections are released", func() bool {
		response, err := h.http(t, certificate).Get(h.url("a"))
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
	for range 7 {
		if got := h.dial(t, certificate).ask(t, "GET /repo/a/ HTTP/1.1\r\nHost: x\r\n\r\n"); got.StatusCode != 200 {
			t.Errorf("the answer is %d", got.StatusCode)
		}
	}
}

// TestSlowClients opens connections that begin a handshake or a request and stop.
func TestSlowClients(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	certificate := c.ca.SignFor(proxyOf("a"), time.Hour)
	for name, begin := range map[string]string{
		"no request":      "",
		"half a header":   "GET /repo/a/ HTTP/1.1\r\nHost: x\r\nX: ",
		"half a status":   "POST /repo/a/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
		"half a rejected": "POST /repo/a/ HTTP/1.1\r\nHost: x\r\nContent-Type: " + mirror.StatusType + "\r\nContent-Length: 1000\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := h.dial(t, certificate)
			if _, err := io.WriteString(conn, begin); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(5 * headWithin))
			if _, err := io.Copy(io.Discard, conn.reader); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("the connection is still there: %v", err)
			}
		})
	}
	t.Run("no handshake", func(t *testing.T) {
		t.Parallel()
		conn, err := net.Dial("tcp", h.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(5 * headWithin))
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("the connection is still there: %v", err)
		}
	})
}

// TestRateOfRequests sends more requests than a proxy may: they are answered at its rate.
func TestRateOfRequests(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	client := h.http(t, c.ca.SignFor(proxyOf("a"), time.Hour))
	get := func() {
		t.Helper()
		if got := ask(t, client, "GET", h.url("a"), ""); got.code != http.StatusOK {
			t.Errorf("a request gets %d %s", got.code, got.body)
		}
	}
	get()
	h.server.mu.Lock()
	session := h.server.sessions["a"]
	h.server.mu.Unlock()
	// As after so many requests.
	if !session.requests.AllowN(time.Now(), requestBurst-1) {
		t.Fatal("the session allows no burst")
	}
	const requests = 60
	began := time.Now()
	for range requests {
		get()
	}
	if lasted, least := time.Since(began), (requests-10)*time.Second/requestsPerSecond; lasted < least {
		t.Errorf("%d requests after a burst took %s, want at least %s", requests, lasted, least)
	}
}

// TestLongRequests sends requests that are too long.
func TestLongRequests(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	client := h.http(t, c.ca.SignFor(proxyOf("a"), time.Hour))
	// The library allows some KiB more than the limit.
	for size, want := range map[int]int{6 << 10: http.StatusOK, 18 << 10: http.StatusRequestHeaderFieldsTooLarge, 64 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		if got := ask(t, client, "GET", h.url("a"), "", "X", strings.Repeat("x", size)); got.code != want {
			t.Errorf("a header of %d bytes gets %d %s, want %d", size, got.code, got.body, want)
		}
	}
	for kind, want := range map[string]int{"application/json": http.StatusUnsupportedMediaType, mirror.StatusType: http.StatusRequestEntityTooLarge} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url("a"), io.LimitReader(endless{}, 64<<20))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", kind)
		response, err := client.Do(request)
		if err != nil {
			continue // It is cut off, which is as good.
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("a long body of %s gets %d", kind, response.StatusCode)
		}
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestShutdown stops the controller: waiting requests are answered, and nothing delays the
// end.
func TestShutdown(t *testing.T) {
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t)
	probes := h.server.Probes("test")
	eventually(t, "it is ready", probes.Readiness)
	client := h.client(t, "a")
	answered := make(chan error, 1)
	go func() {
		change, err := client.Poll(context.Background(), mirror.Version(has))
		if change != nil {
			err = errors.New("there is a change")
		}
		answered <- err
	}()
	eventually(t, "the agent waits", func() bool { return c.reported("acked "+mirror.Version(has)) == 1 })
	began := time.Now()
	h.end()
	if err := <-answered; err != nil {
		t.Errorf("the poll ends with %v", err)
	}
	if took := time.Since(began); took > shutdownWithin {
		t.Errorf("the shutdown takes %s", took)
	}
	if probes.Readiness() || c.reported("close") != 1 {
		t.Errorf("ready: %t; the registry gets %q", probes.Readiness(), c.events)
	}
}

// TestPanic lets the driver panic for one proxy.
func TestPanic(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	c.set("b", testMain, "1")
	h := c.serve(t, func(s *Server) {
		translate := s.options.Translate
		s.options.Translate = func(view *mesh.View) mirror.Set {
			set := translate(view)
			if _, ok := set.Get("panic"); ok {
				panic("it fails")
			}
			return set
		}
	})
	client := h.client(t, "a")
	client.Wait = -1
	has := poll(t, client, mirror.Set{})
	c.set("a", testMain, "1", "panic", "")
	c.set("b", "panic", "")
	if _, err := h.client(t, "b").Poll(t.Context(), ""); err == nil {
		t.Error("files are served although the driver panicked")
	}
	if change, err := client.Poll(t.Context(), mirror.Version(has)); change != nil || err != nil {
		t.Errorf("the proxy gets %v, %v", change, err)
	}
	next := c.set("a", testMain, "2")
	eventually(t, "the next View is served", func() bool {
		change, err := client.Poll(t.Context(), mirror.Version(has))
		return err == nil && change != nil && change.Version == mirror.Version(next)
	})
	c.set("b", testMain, "1")
	eventually(t, "the next View of the other proxy is served", func() bool {
		_, err := h.client(t, "b").Poll(t.Context(), "")
		return err == nil
	})
}
