package envoy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// strictInbound is a workload with rules.
func strictInbound(p *app) inboundCase {
	return inboundCase{inbound: mesh.Inbound{
		TLS: mesh.Strict,
		Ports: []mesh.InboundPort{
			{Port: p.http, Protocol: mesh.HTTP, Access: rules(
				rule("bookstore/buy", []mesh.HTTPMatch{
					{Path: mesh.StringMatch{Regex: "/books/.*"}},
					{Path: mesh.StringMatch{Prefix: "/public"}, Headers: []mesh.KeyMatch{{Name: "x-tenant", StringMatch: mesh.StringMatch{Exact: "a"}}}},
					{Query: []mesh.KeyMatch{{Name: "token", StringMatch: mesh.StringMatch{Exact: "1"}}}},
				}, buyer),
				rule("bookstore/nobody", anyRequest),
				rule("bookstore/nothing", nil, ops),
			)},
			{Port: p.limited, Protocol: mesh.HTTP, Access: anyone, Limits: mesh.RateLimits{
				Requests: &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 2, Interval: time.Hour},
					Status: 503, AddHeaders: []mesh.Header{{Name: "x-limit", Value: "100%"}}},
				Routes: []mesh.RouteLimit{{Path: "/slow", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Hour}}}},
			}, Ingress: []mesh.Ingress{
				{Origin: drivertest.Origin("IngressBackend", "bookstore/local"), Ranges: ranges("127.0.0.0/8"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/health"}}}},
				{Origin: drivertest.Origin("IngressBackend", "bookstore/far"), Ranges: ranges("192.0.2.0/24"), Requests: anyRequest},
				{Origin: drivertest.Origin("IngressBackend", "bookstore/gateway"), TLS: true, SNIHosts: []string{"books.example.com"}, Principals: []mesh.Identity{ops}, Requests: anyRequest},
				{Origin: drivertest.Origin("IngressBackend", "bookstore/open"), TLS: true, SkipClientCert: true, Ranges: ranges("127.0.0.1/32"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/open"}}}},
			}},
			{Port: p.tcp, Protocol: mesh.TCPServerFirst, Access: rules(rule("db/shop", anyRequest, buyer))},
		},
		Others: rules(rule("db/others", anyRequest, ops)),
	}}
}

// TestRealRequests has a real Envoy authorize requests.
func TestRealRequests(t *testing.T) {
	e := runInbound(t, strictInbound)
	foreign := newAuthority(t)
	other := e.as(buyer)
	other.ServerName = "books.example.com"
	gateway := e.as(ops)
	gateway.ServerName, gateway.InsecureSkipVerify = "books.example.com", true
	outsider := &tls.Config{ServerName: "books.example.org", InsecureSkipVerify: true}
	const refused = 0
	for name, tt := range map[string]struct {
		port   uint16
		tls    *tls.Config
		target string
		header []string
		want   int
	}{
		"allowed":                         {e.http, e.as(buyer), "/books/1", nil, 200},
		"allowed by header":               {e.http, e.as(buyer), "/public/a", []string{"X-Tenant", "a"}, 200},
		"another header":                  {e.http, e.as(buyer), "/public/a", []string{"X-Tenant", "b"}, 403},
		"another path":                    {e.http, e.as(buyer), "/admin", nil, 403},
		"beginning of a segment":          {e.http, e.as(buyer), "/publicity", []string{"X-Tenant", "a"}, 403},
		"dot segments":                    {e.http, e.as(buyer), "/books/../admin", nil, 403},
		"escaped dot segments":            {e.http, e.as(buyer), "/books/%2e%2e/admin", nil, 403},
		"escaped slash":                   {e.http, e.as(buyer), "/books/..%2Fadmin", nil, 403},
		"escaped backslash":               {e.http, e.as(buyer), "/books/..%5cadmin", nil, 403},
		"dot segment with parameter":      {e.http, e.as(buyer), "/books/..;/admin", nil, 403},
		"query":                           {e.http, e.as(buyer), "/admin?a=b&token=1", nil, 200},
		"another value":                   {e.http, e.as(buyer), "/admin?token=10", nil, 403},
		"another parameter":               {e.http, e.as(buyer), "/admin?atoken=1", nil, 403},
		"parameter twice":                 {e.http, e.as(buyer), "/admin?token=1&token=2", nil, 403},
		"another identity":                {e.http, e.as(ops), "/books/1", nil, 403},
		"no certificate":                  {e.http, &tls.Config{RootCAs: e.ca.Pool(), ServerName: e.id.DNSName()}, "/books/1", nil, refused},
		"foreign certificate":             {e.http, &tls.Config{RootCAs: e.ca.Pool(), ServerName: e.id.DNSName(), Certificates: []tls.Certificate{foreign.issue(buyer)}}, "/books/1", nil, refused},
		"another server name":             {e.http, other, "/books/1", nil, refused},
		"plaintext":                       {e.http, nil, "/books/1", nil, refused},
		"anyone":                          {e.limited, e.as(ops), "/other", nil, 200},
		"ingress by address":              {e.limited, nil, "/health", nil, 200},
		"ingress, another path":           {e.limited, nil, "/other", nil, 403},
		"ingress by principal":            {e.limited, gateway, "/health", nil, 200},
		"ingress without certificate":     {e.limited, outsider, "/open", nil, 200},
		"ingress without, another path":   {e.limited, outsider, "/health", nil, 403},
		"ingress without where it is due": {e.limited, &tls.Config{ServerName: "books.example.com", InsecureSkipVerify: true}, "/health", nil, 403},
	} {
		t.Run(name, func(t *testing.T) {
			response, _, err := e.ask(tt.port, tt.tls, tt.target, tt.header...)
			got := refused
			if err == nil {
				got = response.StatusCode
			}
			if got != tt.want {
				t.Errorf("%s gives %d (%v), want %d", tt.target, got, err, tt.want)
			}
		})
	}
}

// TestRealLimits counts what the limits allow.
func TestRealLimits(t *testing.T) {
	e := runInbound(t, strictInbound)
	for _, tt := range []struct {
		target string
		want   int
	}{{"/slow", 200}, {"/slow", 429}, {"/a", 200}, {"/b", 200}, {"/c", 503}, {"/slow", 429}} {
		response, _, err := e.ask(e.limited, e.as(ops), tt.target)
		if err != nil || response.StatusCode != tt.want {
			t.Fatalf("%s gives %v, %v, want %d", tt.target, response, err, tt.want)
		}
		if tt.want == 503 && response.Header.Get("X-Limit") != "100%" {
			t.Errorf("the answer's headers are %v", response.Header)
		}
	}
}

// TestRealTransparency compares what the application receives with what was sent.
func TestRealTransparency(t *testing.T) {
	e := runInbound(t, strictInbound)
	for alpn, proto := range map[string]string{"http/1.1": "HTTP/1.1", "h2": "HTTP/2.0"} {
		t.Run(alpn, func(t *testing.T) {
			response, got, err := e.ask(e.http, e.as(buyer, alpn), "/books//1?a=%2F",
				"X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/ops/sa/gateway", "X-Forwarded-For", "192.0.2.1",
				"X-Envoy-External-Address", "192.0.2.1", "X-Envoy-Internal", "true", "X-Envoy-Upstream-Rq-Timeout-Ms", "1", "Server", "mine")
			if err != nil || response.StatusCode != 200 {
				t.Fatal(response, err)
			}
			if response.Proto != proto || got.Proto != proto || got.Path != "/books/1?a=%2F" || got.Host != "books.example.com" || got.From != "127.0.0.6" {
				t.Errorf("the answer is %s and the application saw %+v", response.Proto, got)
			}
			if cert := got.Header.Get("X-Forwarded-Client-Cert"); !strings.HasSuffix(cert, "URI="+buyer.String()) || strings.Contains(cert, "gateway") {
				t.Errorf("the application gets the certificate header %q", cert)
			}
			if got.Header.Get("X-Forwarded-For") != "192.0.2.1" || response.Header.Get("Server") != "" {
				t.Errorf("headers changed: %v and %v", got.Header, response.Header)
			}
			for name := range got.Header {
				if strings.HasPrefix(name, "X-Envoy") {
					t.Errorf("the application sees %s: %s", name, got.Header.Get(name))
				}
			}
		})
	}
}

// TestRealUpgrade uses WebSocket, and HTTP/1.0 like its oldest clients.
func TestRealUpgrade(t *testing.T) {
	e := runInbound(t, strictInbound)
	for name, tt := range map[string]struct{ request, status, after string }{
		"websocket":          {"GET /books/1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nping\n", "HTTP/1.1 101 Switching Protocols", "ping\n"},
		"forbidden upgrade":  {"GET /admin HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "HTTP/1.1 403 Forbidden", ""},
		"HTTP/1.0":           {"GET /books/1 HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK", ""},
		"forbidden HTTP/1.0": {"GET /admin HTTP/1.0\r\n\r\n", "HTTP/1.0 403 Forbidden", ""},
		"CONNECT, no route":  {"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", "HTTP/1.1 403 Forbidden", ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := e.call(e.http)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn = tls.Client(conn, e.as(buyer))
			fmt.Fprint(conn, tt.request)
			lines := textproto.NewReader(bufio.NewReader(conn))
			status, err := lines.ReadLine()
			if status != tt.status {
				t.Fatalf("the answer begins %q (%v), want %q", status, err, tt.status)
			}
			if tt.after == "" {
				return
			}
			if _, err := lines.ReadMIMEHeader(); err != nil {
				t.Fatal(err)
			}
			if got, err := lines.R.ReadString('\n'); got != tt.after {
				t.Errorf("the echo is %q (%v)", got, err)
			}
		})
	}
}

// TestRealAuthorization has the external authorization service not answer.
func TestRealAuthorization(t *testing.T) {
	for name, tt := range map[string]struct {
		allow  bool
		status int
	}{"closed": {false, 403}, "open": {true, 200}} {
		t.Run(name, func(t *testing.T) {
			e := runInbound(t, func(p *app) inboundCase {
				c := strictInbound(p)
				c.settings = func(s *mesh.Settings) {
					s.Authorization = &mesh.Authorization{Host: "127.0.0.1", Port: 1, Timeout: time.Second, AllowOnFailure: tt.allow}
				}
				return c
			})
			response, _, err := e.ask(e.http, e.as(buyer), "/books/1")
			if err != nil || response.StatusCode != tt.status {
				t.Errorf("the answer is %v, %v, want %d", response, err, tt.status)
			}
		})
	}
}

// TestRealConnections has a real Envoy authorize connections on which the server sends
// first: denied clients receive nothing, and the application does not see them.
func TestRealConnections(t *testing.T) {
	e := runInbound(t, strictInbound)
	for name, tt := range map[string]struct {
		port uint16
		tls  *tls.Config
		want bool
	}{
		"allowed":              {e.tcp, e.as(buyer), true},
		"another identity":     {e.tcp, e.as(ops), false},
		"plaintext":            {e.tcp, nil, false},
		"others":               {e.other, e.as(ops), true},
		"others, another peer": {e.other, e.as(buyer), false},
	} {
		t.Run(name, func(t *testing.T) {
			before := e.connections.Load()
			if tt.tls == nil {
				// Envoy recognizes plaintext at the first byte.
				conn, err := e.call(tt.port)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				fmt.Fprintln(conn, "SELECT 1")
				if n, err := conn.Read(make([]byte, 1)); err == nil {
					t.Errorf("%d bytes came", n)
				}
			} else if answer, err := e.hello(tt.port, tt.tls); (answer == "hello\n") != tt.want {
				t.Errorf("the application sent %q (%v), want a greeting: %t", answer, err, tt.want)
			}
			if came := e.connections.Load() > before; came != tt.want {
				t.Errorf("the application was connected to: %t", came)
			}
		})
	}
}

// TestRealPermissive has all kinds of callers call a permissive workload.
func TestRealPermissive(t *testing.T) {
	e := runInbound(t, func(p *app) inboundCase {
		return inboundCase{inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
			{Port: p.http, Protocol: mesh.HTTP, Access: anyone},
			{Port: p.limited, Protocol: mesh.HTTP, Access: rules(rule("bookstore/buy", anyRequest, buyer))},
			{Port: p.tcp, Protocol: mesh.TCPServerFirst, Access: anyone},
		}, Others: rules(rule("db/others", anyRequest, buyer))}}
	})
	for name, tt := range map[string]struct {
		port uint16
		tls  *tls.Config
		want int
	}{
		"plaintext":              {e.http, nil, 200},
		"peer":                   {e.http, e.as(buyer), 200},
		"plaintext, where rules": {e.limited, nil, 403},
		"peer, where rules":      {e.limited, e.as(buyer), 200},
	} {
		t.Run(name, func(t *testing.T) {
			response, _, err := e.ask(tt.port, tt.tls, "/")
			if err != nil || response.StatusCode != tt.want {
				t.Errorf("the answer is %v, %v, want %d", response, err, tt.want)
			}
		})
	}
	for name, tt := range map[string]struct {
		port uint16
		tls  *tls.Config
		want string
	}{
		"server first, plaintext": {e.tcp, nil, "hello\n"},
		"server first, peer":      {e.tcp, e.as(buyer), "hello\n"},
		"others, plaintext":       {e.other, nil, ""},
		"others, peer":            {e.other, e.as(buyer), "hello\n"},
		"others, another peer":    {e.other, e.as(ops), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if answer, err := e.hello(tt.port, tt.tls); answer != tt.want {
				t.Errorf("the application sent %q (%v), want %q", answer, err, tt.want)
			}
		})
	}
}

// TestRealIngressOfConnections allows connections from addresses outside the mesh. The
// tests' connections come from 10.244.0.5.
func TestRealIngressOfConnections(t *testing.T) {
	e := runInbound(t, func(p *app) inboundCase {
		from := func(text string) []mesh.Ingress {
			return []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "db/office"), Ranges: ranges(text), Requests: anyRequest}}
		}
		return inboundCase{inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
			{Port: p.tcp, Protocol: mesh.TCPServerFirst, Ingress: from("10.244.0.0/16")},
			{Port: p.other, Protocol: mesh.TCPServerFirst, Ingress: from("192.0.2.0/24")},
		}}}
	})
	for name, tt := range map[string]struct {
		port uint16
		want string
	}{"allowed": {e.tcp, "hello\n"}, "another address": {e.other, ""}} {
		t.Run(name, func(t *testing.T) {
			if answer, err := e.hello(tt.port, nil); answer != tt.want {
				t.Errorf("the application sent %q (%v), want %q", answer, err, tt.want)
			}
		})
	}
}
