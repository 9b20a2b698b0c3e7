package haproxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// strict is a workload with rules and callers outside the mesh.
func strict(a *app) *fixture {
	f := newFixture(store)
	f.inbound.Ports = []mesh.InboundPort{
		{Port: a.http, Protocol: mesh.HTTP, Access: access(
			permission("bookstore/buy", []mesh.HTTPMatch{
				{Path: mesh.StringMatch{Regex: "/books/.*"}},
				{Path: mesh.StringMatch{Exact: "/put"}, Methods: []string{"PUT", "PATCH"}},
				{Path: mesh.StringMatch{Prefix: "/public"}, Headers: []mesh.KeyMatch{{Name: "x-tenant", StringMatch: mesh.StringMatch{Exact: "a"}}}},
				{Query: []mesh.KeyMatch{{Name: "token", StringMatch: mesh.StringMatch{Exact: "1 2"}}}},
			}, buyer),
			permission("bookstore/nobody", anything),
			permission("bookstore/nothing", nil, ops),
		)},
		{Port: a.other, Protocol: mesh.HTTP, Access: anyone, Limits: mesh.RateLimits{
			Requests: &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 2, Interval: time.Hour},
				Status: 503, AddHeaders: []mesh.Header{{Name: "x-limit", Value: "100%"}}},
			Routes: []mesh.RouteLimit{{Path: "/slow", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Hour}}}},
		}},
		{Port: a.tcp, Protocol: mesh.TCPServerFirst, Access: access(permission("db/shop", anything, buyer))},
	}
	f.inbound.Others = access(permission("db/others", anything, ops))
	return f
}

// withIngress opens a port to callers outside the mesh.
func withIngress(a *app) *fixture {
	f := strict(a)
	f.inbound.Ports[1].Limits = mesh.RateLimits{}
	f.inbound.Ports[0].Ingress = []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "bookstore/gateway"), TLS: true, SNIHosts: []string{"books.example.com"}, AnyPrincipal: true, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/gateway"}}}}}
	f.inbound.Ports[1].Ingress = []mesh.Ingress{
		{Origin: drivertest.Origin("IngressBackend", "bookstore/local"), Ranges: ranges("127.0.0.0/8"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/health"}}}},
		{Origin: drivertest.Origin("IngressBackend", "bookstore/far"), Ranges: ranges("192.0.2.0/24"), Requests: anything},
		{Origin: drivertest.Origin("IngressBackend", "bookstore/gateway"), TLS: true, SNIHosts: []string{"books.example.com"}, Principals: []mesh.Identity{ops}, Requests: anything},
		{Origin: drivertest.Origin("IngressBackend", "bookstore/open"), TLS: true, SkipClientCert: true, Ranges: ranges("127.0.0.1/32"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/open"}}}},
	}
	return f
}

func runInbound(t *testing.T, f *fixture) (*running, *authority) {
	t.Helper()
	ca, dir := newAuthority(t), t.TempDir()
	ca.writeTo(dir, f.proxy.Identity)
	return start(t, dir, f.view()).awaitReady(), ca
}

// TestRequests checks the authorization of requests by a real HAProxy.
func TestRequests(t *testing.T) {
	for name, make := range map[string]func(*app) *fixture{"strict": strict, "with ingress": withIngress} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t)
			r, ca := runInbound(t, make(a))
			foreign := newAuthority(t)
			other := ca.as(buyer, store)
			other.ServerName = "books.example.com"
			const refused = 0
			for name, tt := range map[string]struct {
				tls    *tls.Config
				target string
				header []string
				want   int
			}{
				"allowed":                    {ca.as(buyer, store), "/books/1", nil, 200},
				"allowed by header":          {ca.as(buyer, store), "/public/a", []string{"X-Tenant", "a"}, 200},
				"another header":             {ca.as(buyer, store), "/public/a", []string{"X-Tenant", "b"}, 403},
				"header twice":               {ca.as(buyer, store), "/public/a", []string{"X-Tenant", "b", "X-Tenant", "a"}, 403},
				"another path":               {ca.as(buyer, store), "/admin", nil, 403},
				"another method":             {ca.as(buyer, store), "/put", nil, 403},
				"beginning of a segment":     {ca.as(buyer, store), "/publicity", []string{"X-Tenant", "a"}, 403},
				"dot segments":               {ca.as(buyer, store), "/books/../admin", nil, 403},
				"escaped dot segments":       {ca.as(buyer, store), "/books/%2e%2e/admin", nil, 403},
				"escaped slash":              {ca.as(buyer, store), "/books/..%2Fadmin", nil, 403},
				"escaped backslash":          {ca.as(buyer, store), "/books/..%5cadmin", nil, 403},
				"dot segment with parameter": {ca.as(buyer, store), "/books/..;/admin", nil, 403},
				"query":                      {ca.as(buyer, store), "/admin?a=b&token=1%202", nil, 200},
				"query with plus":            {ca.as(buyer, store), "/admin?token=1+2&c", nil, 200},
				"another value":              {ca.as(buyer, store), "/admin?token=1%2023", nil, 403},
				"another parameter":          {ca.as(buyer, store), "/admin?atoken=1%202", nil, 403},
				"parameter twice":            {ca.as(buyer, store), "/admin?token=1%202&token=2", nil, 403},
				"parameter twice, escaped":   {ca.as(buyer, store), "/admin?tok%65n=2&token=1%202", nil, 403},
				"another identity":           {ca.as(ops, store), "/books/1", nil, 403},
				"spoofed header":             {ca.as(ops, store), "/books/1", []string{"X-Forwarded-Client-Cert", "URI=" + buyer.String()}, 403},
				"of another trust domain":    {ca.as(mesh.Identity{TrustDomain: "example.com", Namespace: buyer.Namespace, ServiceAccount: buyer.ServiceAccount}, store), "/books/1", nil, 403},
				"no certificate":             {&tls.Config{RootCAs: ca.Pool(), ServerName: store.DNSName()}, "/books/1", nil, refused},
				"foreign certificate":        {&tls.Config{RootCAs: ca.Pool(), ServerName: store.DNSName(), Certificates: []tls.Certificate{foreign.issue(buyer)}}, "/books/1", nil, refused},
				"another server name":        {other, "/books/1", nil, refused},
				"plaintext":                  {nil, "/books/1", nil, refused},
			} {
				t.Run(name, func(t *testing.T) {
					response, _, err := ask(client(r.inbound, local(a.http), tt.tls, false), tt.target, tt.header...)
					got := refused
					if err == nil {
						got = response.StatusCode
					}
					if name == "plaintext" && got == 403 {
						// With a rule for plaintext, refused requests get an answer.
						got = refused
					}
					if got != tt.want {
						t.Errorf("%s gives %d (%v), want %d", tt.target, got, err, tt.want)
					}
				})
			}
			if _, s, err := ask(client(r.inbound, local(a.other), ca.as(ops, store), false), "/"); err != nil || s.Port == "" || !strings.HasSuffix(local(a.other), s.Port) {
				t.Errorf("the application on port %d answers %+v, %v", a.other, s, err)
			}
		})
	}
}

// TestIngress checks callers outside the mesh.
func TestIngress(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, withIngress(a))
	gateway, wrong := ca.as(ops, store), ca.as(buyer, store)
	gateway.ServerName, gateway.InsecureSkipVerify = "books.example.com", true
	wrong.ServerName, wrong.InsecureSkipVerify = "books.example.com", true
	for _, tt := range []struct {
		tls  *tls.Config
		want int
	}{{gateway, 200}, {&tls.Config{ServerName: "books.example.com", InsecureSkipVerify: true}, 0}} {
		response, _, err := ask(client(r.inbound, local(a.http), tt.tls, false), "/gateway")
		if (err == nil) != (tt.want != 0) || err == nil && response.StatusCode != tt.want {
			t.Errorf("without an optional certificate the answer is %v, %v, want %d", response, err, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		tls    *tls.Config
		target string
		want   int
	}{
		"by address":                {nil, "/health", 200},
		"another path":              {nil, "/other", 403},
		"by principal":              {gateway, "/health", 200},
		"by another principal":      {wrong, "/health", 403},
		"without certificate":       {&tls.Config{ServerName: "books.example.org", InsecureSkipVerify: true}, "/open", 200},
		"without, another path":     {&tls.Config{ServerName: "books.example.org", InsecureSkipVerify: true}, "/health", 403},
		"without where it is due":   {&tls.Config{ServerName: "books.example.com", InsecureSkipVerify: true}, "/health", 403},
		"mesh TLS is as it was":     {ca.as(ops, store), "/health", 200},
		"mesh TLS, not of the mesh": {&tls.Config{ServerName: store.DNSName(), InsecureSkipVerify: true}, "/open", 0},
	} {
		t.Run(name, func(t *testing.T) {
			response, _, err := ask(client(r.inbound, local(a.other), tt.tls, false), tt.target)
			got := 0
			if err == nil {
				got = response.StatusCode
			}
			if got != tt.want {
				t.Errorf("%s gives %d (%v), want %d", tt.target, got, err, tt.want)
			}
		})
	}
}

// TestLimits counts the requests that pass the limits.
func TestLimits(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	for _, tt := range []struct {
		target string
		want   int
	}{{"/slow", 200}, {"/slow", 429}, {"/a", 200}, {"/b", 200}, {"/c", 503}, {"/slow", 429}} {
		response, _, err := ask(client(r.inbound, local(a.other), ca.as(ops, store), false), tt.target)
		if err != nil || response.StatusCode != tt.want {
			t.Fatalf("%s gives %v, %v, want %d", tt.target, response, err, tt.want)
		}
		if tt.want == 503 && response.Header.Get("X-Limit") != "100%" {
			t.Errorf("the answer's headers are %v", response.Header)
		}
	}
}

// TestLimitsThatCannotBeExpressed has the limit of a path that is too long for PCRE2.
func TestLimitsThatCannotBeExpressed(t *testing.T) {
	a := newApp(t)
	f := strict(a)
	f.inbound.Ports[1].Limits = mesh.RateLimits{Routes: []mesh.RouteLimit{{
		Path: "/slow(" + strings.Repeat("a?", 2000) + ")", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Hour}}}}}
	r, ca := runInbound(t, f)
	for _, want := range []int{200, 429} {
		response, _, err := ask(client(r.inbound, local(a.other), ca.as(ops, store), false), "/slowa")
		if err != nil || response.StatusCode != want {
			t.Fatalf("the answer is %v, %v, want %d", response, err, want)
		}
	}
}

// TestTransparency compares the request that the application receives with the one that
// was sent.
func TestTransparency(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	for alpn, proto := range map[string]string{"http/1.1": "HTTP/1.1", "h2": "HTTP/2.0"} {
		t.Run(alpn, func(t *testing.T) {
			c := client(r.inbound, local(a.http), ca.as(buyer, store, alpn), alpn == "h2")
			defer c.CloseIdleConnections()
			for range 3 {
				response, got, err := keepAsking(c, "GET", "/books/1?a=%2F",
					"X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/ops/sa/gateway", "X_forwarded_Client_Cert", "a", "X-Forwarded-Client.Cert", "a",
					"X-Forwarded-For", "192.0.2.1", "X-Envoy-Internal", "true", "X_envoy_Internal", "true")
				if err != nil || response.StatusCode != 200 {
					t.Fatal(response, err)
				}
				if response.Proto != proto || got.Proto != proto || got.Path != "/books/1?a=%2F" || got.Host != "books.example.com" || got.From != "127.0.0.6" {
					t.Errorf("the answer is %s and the application received %+v", response.Proto, got)
				}
				if cert := got.Header["X-Forwarded-Client-Cert"]; len(cert) != 1 || cert[0] != "URI="+buyer.String() {
					t.Errorf("the application receives the certificate %q", cert)
				}
				for name := range got.Header {
					if strings.HasPrefix(strings.ReplaceAll(name, "_", "-"), "X-Envoy-") || strings.Contains(strings.ToLower(name), "cert") && name != "X-Forwarded-Client-Cert" {
						t.Errorf("the application receives %q", name)
					}
				}
				if got.Header.Get("X-Forwarded-For") != "192.0.2.1" || got.Header.Get("X-Envoy-Internal") != "" {
					t.Errorf("headers changed: %v", got.Header)
				}
			}
		})
	}
	r.awaitLog(`"downstream_peer":"` + buyer.String() + `"`)
	r.awaitLog(`"path":"/books/1?a=%2F"`)
}

// TestAuditWithoutAnyone checks that an audit alone admits nobody, with and without mesh TLS.
func TestAuditWithoutAnyone(t *testing.T) {
	a := newApp(t)
	f := strict(a)
	audit := mesh.Access{Audit: true}
	f.inbound.TLS, f.inbound.Others = mesh.Permissive, audit
	f.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: audit}, {Port: a.tcp, Protocol: mesh.TCPServerFirst, Access: audit}}
	r, ca := runInbound(t, f)
	for name, as := range map[string]*tls.Config{"mesh TLS": ca.as(buyer, store), "plaintext": nil} {
		if response, _, err := ask(client(r.inbound, local(a.http), as, false), "/"); err != nil || response.StatusCode != 403 {
			t.Errorf("a request by %s gets %v, %v, want 403", name, response, err)
		}
		for _, port := range []uint16{a.tcp, a.greeter} {
			if got, err := hello(r.inbound, local(port), as); err == nil {
				t.Errorf("a connection by %s to port %d gets %q", name, port, got)
			}
		}
	}
}

// TestTCP checks a server that speaks first.
func TestTCP(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	if got, err := hello(r.inbound, local(a.tcp), ca.as(buyer, store)); err != nil || got != "hello\n" {
		t.Errorf("the buyer gets %q, %v", got, err)
	}
	before := a.connections.Load()
	if got, err := hello(r.inbound, local(a.tcp), ca.as(ops, store)); err == nil {
		t.Errorf("another caller gets %q", got)
	}
	if now := a.connections.Load(); now != before {
		t.Error("the application got connections that were refused")
	}
}

// TestPermissive checks that plaintext is accepted only on ports with access for everyone.
func TestPermissive(t *testing.T) {
	for name, plain := range map[string]bool{"permissive": false, "plaintext class": true} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t)
			f := strict(a)
			f.inbound.TLS, f.inbound.Ports[1].Limits, f.proxy.Plaintext = mesh.Permissive, mesh.RateLimits{}, plain
			f.inbound.Ports = append(f.inbound.Ports, mesh.InboundPort{Port: a.greeter, Protocol: mesh.TCPServerFirst, Access: anyone})
			r, ca := runInbound(t, f)
			for port, want := range map[uint16]int{a.other: 200, a.http: 403} {
				if response, _, err := ask(client(r.inbound, local(port), nil, false), "/books/1"); err != nil || response.StatusCode != want {
					t.Errorf("plaintext to port %d gives %v, %v, want %d", port, response, err, want)
				}
			}
			if got, err := hello(r.inbound, local(a.greeter), nil); err != nil || got != "hello\n" {
				t.Errorf("the open server that speaks first says %q, %v", got, err)
			}
			if got, err := hello(r.inbound, local(a.tcp), nil); err == nil {
				t.Errorf("the closed server that speaks first says %q", got)
			}
			response, _, err := ask(client(r.inbound, local(a.http), ca.as(buyer, store), false), "/books/1")
			if plain != (err != nil) || !plain && response.StatusCode != 200 {
				t.Errorf("mesh TLS gives %v, %v", response, err)
			}
		})
	}
}

// TestExpressionsEnd uses an expression on which PCRE2 alone would never end.
func TestExpressionsEnd(t *testing.T) {
	a := newApp(t)
	f := strict(a)
	f.inbound.Ports[0].Access = access(permission("a/b", []mesh.HTTPMatch{{Path: mesh.StringMatch{Regex: "/(a+)+b"}}}, buyer))
	r, ca := runInbound(t, f)
	for path, want := range map[string]int{"/aaab": 200, "/" + strings.Repeat("a", 4000): 403} {
		began := time.Now()
		response, _, err := ask(client(r.inbound, local(a.http), ca.as(buyer, store), false), path)
		if err != nil || response.StatusCode != want {
			t.Errorf("%.20s gives %v, %v, want %d", path, response, err, want)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%.20s took %v", path, took)
		}
	}
}

// TestWebSocket sends bytes in both directions after an upgrade.
func TestWebSocket(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	conn, err := dial(r.inbound, local(a.http))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	secure := tls.Client(conn, ca.as(buyer, store))
	fmt.Fprint(secure, "GET /books/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nping\n")
	lines := bufio.NewReader(secure)
	status, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(status, "101") {
		t.Fatal(status, err)
	}
	for line := ""; line != "ping\n"; {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIdleConnectionsOfTheApplication has an application close its idle connections just when
// the next request arrives. Requests that may be repeated succeed.
func TestIdleConnectionsOfTheApplication(t *testing.T) {
	var posts atomic.Int32
	l := listen(t, func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		r, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = reader.ReadByte()
	})
	f := newFixture(store)
	f.inbound.Ports = []mesh.InboundPort{{Port: portOf(l), Protocol: mesh.HTTP, Access: anyone}}
	r, ca := runInbound(t, f)
	// A client that repeats nothing itself.
	conn, err := dial(r.inbound, local(portOf(l)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	secured := tls.Client(conn, ca.as(buyer, store, "http/1.1"))
	answers := bufio.NewReader(secured)
	for i := range 20 {
		fmt.Fprint(secured, "GET / HTTP/1.1\r\nHost: books.example.com\r\n\r\n")
		response, err := http.ReadResponse(answers, nil)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("GET request %d gets %v, %v", i, response, err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
	}
	c := client(r.inbound, local(portOf(l)), ca.as(buyer, store, "http/1.1"), false)
	defer c.CloseIdleConnections()
	const sent = 10
	for range sent {
		_, _, _ = keepAsking(c, http.MethodPost, "/")
	}
	if n := posts.Load(); n > sent {
		t.Errorf("%d POST requests have become %d", sent, n)
	}
}
