package pipy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// strictInbound is a workload with rules.
func strictInbound() *mesh.Inbound {
	return &mesh.Inbound{
		TLS: mesh.Strict,
		Ports: []mesh.InboundPort{
			{Port: httpPort, Protocol: mesh.HTTP, Access: rules(
				rule("bookstore/buy", []mesh.HTTPMatch{
					{Path: mesh.StringMatch{Regex: "/books/.*"}},
					{Path: mesh.StringMatch{Prefix: "/public"}, Headers: []mesh.KeyMatch{{Name: "x-tenant", StringMatch: mesh.StringMatch{Exact: "a"}}}},
					{Query: []mesh.KeyMatch{{Name: "token", StringMatch: mesh.StringMatch{Exact: "1"}}}},
				}, buyer),
				rule("bookstore/nobody", anyRequest),
				rule("bookstore/nothing", nil, ops),
			)},
			{Port: limitedPort, Protocol: mesh.HTTP, Access: anyone, Limits: mesh.RateLimits{
				Requests: &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 2, Interval: time.Hour},
					Status: 503, AddHeaders: []mesh.Header{{Name: "X-Limit", Value: "100%"}}},
				Routes: []mesh.RouteLimit{{Path: "/slow", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Hour}}}},
			}},
			{Port: ingressPort, Protocol: mesh.HTTP, Access: anyone, Ingress: []mesh.Ingress{
				{Origin: drivertest.Origin("IngressBackend", "bookstore/local"), Ranges: prefixes("198.18.0.0/16"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/health"}}}},
				{Origin: drivertest.Origin("IngressBackend", "bookstore/far"), Ranges: prefixes("192.0.2.0/24"), Requests: anyRequest},
				{Origin: drivertest.Origin("IngressBackend", "bookstore/gateway"), TLS: true, SNIHosts: []string{"books.example.com"}, Principals: []mesh.Identity{ops}, Requests: anyRequest},
				{Origin: drivertest.Origin("IngressBackend", "bookstore/open"), TLS: true, SkipClientCert: true, Ranges: prefixes("198.18.0.1/32"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/open"}}}},
			}},
			{Port: helloPort, Protocol: mesh.TCPServerFirst, Access: rules(rule("db/shop", anyRequest, buyer))},
			{Port: tcpPort, Protocol: mesh.TCP, Access: rules(rule("db/shop", anyRequest, buyer))},
			{Port: nobodyPort, Protocol: mesh.HTTP, Access: anyone},
			{Port: grpcPort, Protocol: mesh.GRPC, Access: anyone},
		},
		Others: rules(rule("db/others", anyRequest, ops)),
	}
}

const refused = 0

// TestInboundRequests checks the authorization of requests by a real Pipy.
func TestInboundRequests(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	foreign := newAuthority(t)
	other := w.as(t, buyer)
	other.ServerName, other.InsecureSkipVerify = "books.example.com", true
	gateway := w.as(t, ops)
	gateway.ServerName, gateway.InsecureSkipVerify = "books.example.com", true
	outsider := &tls.Config{ServerName: "books.example.org", InsecureSkipVerify: true}
	noCertificate := &tls.Config{RootCAs: w.root.Pool(), ServerName: store.DNSName()}
	forged := noCertificate.Clone()
	forged.Certificates = []tls.Certificate{foreign.issue(t, buyer.DNSName(), buyer.String())}
	// The protocols of the first client from outside must not determine those for peers.
	if _, _, err := w.ask(ingressPort, gateway, "/health"); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		port   int
		tls    *tls.Config
		target string
		header []string
		want   int
	}{
		"allowed":                         {httpPort, w.as(t, buyer), "/books/1", nil, 200},
		"allowed by HTTP/2":               {httpPort, w.as(t, buyer, "h2"), "/books/1", nil, 200},
		"allowed by header":               {httpPort, w.as(t, buyer), "/public/a", []string{"X-Tenant", "a"}, 200},
		"another header":                  {httpPort, w.as(t, buyer), "/public/a", []string{"X-Tenant", "b"}, 403},
		"another path":                    {httpPort, w.as(t, buyer), "/admin", nil, 403},
		"another path by HTTP/2":          {httpPort, w.as(t, buyer, "h2"), "/admin", nil, 403},
		"beginning of a segment":          {httpPort, w.as(t, buyer), "/publicity", []string{"X-Tenant", "a"}, 403},
		"dot segments":                    {httpPort, w.as(t, buyer), "/books/../admin", nil, 403},
		"escaped dot segments":            {httpPort, w.as(t, buyer), "/books/%2e%2e/admin", nil, 403},
		"escaped slash":                   {httpPort, w.as(t, buyer), "/books/..%2Fadmin", nil, 403},
		"escaped backslash":               {httpPort, w.as(t, buyer), "/books/..%5cadmin", nil, 403},
		"dot segment with parameter":      {httpPort, w.as(t, buyer), "/books/..;/admin", nil, 403},
		"query":                           {httpPort, w.as(t, buyer), "/admin?a=b&token=1", nil, 200},
		"another value":                   {httpPort, w.as(t, buyer), "/admin?token=10", nil, 403},
		"another parameter":               {httpPort, w.as(t, buyer), "/admin?atoken=1", nil, 403},
		"parameter twice":                 {httpPort, w.as(t, buyer), "/admin?token=1&token=2", nil, 403},
		"another identity":                {httpPort, w.as(t, ops), "/books/1", nil, 403},
		"a fragment":                      {httpPort, w.as(t, buyer), "/books/1#/../../admin", nil, 400},
		"no certificate":                  {httpPort, noCertificate, "/books/1", nil, refused},
		"foreign certificate":             {httpPort, forged, "/books/1", nil, refused},
		"another server name":             {httpPort, other, "/books/1", nil, refused},
		"plaintext":                       {httpPort, nil, "/books/1", nil, refused},
		"anyone":                          {ingressPort, w.as(t, ops), "/other", nil, 200},
		"ingress by address":              {ingressPort, nil, "/health", nil, 200},
		"ingress, another path":           {ingressPort, nil, "/other", nil, 403},
		"ingress by principal":            {ingressPort, gateway, "/health", nil, 200},
		"ingress without certificate":     {ingressPort, outsider, "/open", nil, 200},
		"ingress without, another path":   {ingressPort, outsider, "/health", nil, 403},
		"ingress, another identity":       {ingressPort, other, "/health", nil, 403},
		"the application is not there":    {nobodyPort, w.as(t, buyer), "/", nil, 503},
		"not there by HTTP/2":             {nobodyPort, w.as(t, buyer, "h2"), "/", nil, 503},
		"an application with HTTP/2 only": {grpcPort, w.as(t, buyer), "/", nil, 200},
	} {
		t.Run(name, func(t *testing.T) {
			response, _, err := w.ask(tt.port, tt.tls, tt.target, tt.header...)
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

// TestInboundLimits counts the requests and connections that pass the limits.
func TestInboundLimits(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	for _, tt := range []struct {
		target string
		want   int
	}{{"/slow", 200}, {"/slow", 429}, {"/a", 200}, {"/b", 200}, {"/c", 503}, {"/slow", 429}} {
		response, _, err := w.ask(limitedPort, w.as(t, ops), tt.target)
		if err != nil || response.StatusCode != tt.want {
			t.Fatalf("%s gives %v, %v, want %d", tt.target, response, err, tt.want)
		}
		if tt.want == 503 && response.Header.Get("X-Limit") != "100%" {
			t.Errorf("the answer's headers are %v", response.Header)
		}
	}
}

// TestInboundTransparency compares the request that the application receives with the one
// that was sent.
func TestInboundTransparency(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	long := strings.Repeat("0123456789", 300_000)
	for name, tt := range map[string]struct {
		alpn, method, body string
		chunked            bool
		length             int64
	}{
		"no body":              {method: "GET"},
		"a short body":         {method: "POST", body: "short", length: 5},
		"a long body":          {method: "POST", body: long, length: int64(len(long))},
		"chunks":               {method: "PUT", body: "short", chunked: true, length: -1},
		"no body, HTTP/2":      {alpn: "h2", method: "GET", length: -1},
		"a short body, HTTP/2": {alpn: "h2", method: "POST", body: "short", length: 5},
		"a long body, HTTP/2":  {alpn: "h2", method: "POST", body: long, length: int64(len(long))},
	} {
		t.Run(name, func(t *testing.T) {
			config := w.as(t, buyer)
			proto := "HTTP/1.1"
			if tt.alpn != "" {
				config.NextProtos = []string{tt.alpn}
				proto = "HTTP/2.0"
			}
			var body io.Reader
			if tt.body != "" {
				body = strings.NewReader(tt.body)
			}
			if tt.chunked {
				body = io.MultiReader(body)
			}
			response, got, err := w.do(httpPort, config, tt.method, "/books//./1%2e2/%E2%82%AC?q=//..%2e&r=a+b", body,
				"X-Forwarded-Client-Cert", "By=forged;URI=spiffe://cluster.local/ns/ops/sa/admin", "ServiceIdentity", "admin.ops",
				"X-Envoy-Original-Path", "/forged", "X-Envoy-Internal", "true", "X-Forwarded-For", "192.0.2.7", "User-Agent", "tester", "Cookie", "a=1; b=2")
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatal(response, err)
			}
			if got.Body != tt.body {
				t.Errorf("the application got a body of %d bytes, want %d", len(got.Body), len(tt.body))
			}
			want := seen{
				Proto: proto, Path: "/books/1.2/%E2%82%AC?q=//..%2e&r=a+b", Host: "books.example.com", From: "127.0.0.6", Body: tt.body, ContentLength: tt.length,
				Header: http.Header{
					"X-Forwarded-Client-Cert": {"By=" + store.String() + ";URI=" + buyer.String()},
					"X-Forwarded-For":         {"192.0.2.7"}, "User-Agent": {"tester"}, "Cookie": {"a=1; b=2"},
				},
			}
			for _, name := range []string{"X-Request-Id", "Accept-Encoding", "Content-Length", "Connection"} {
				got.Header.Del(name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the application receives (-want +got):\n%s", diff)
			}
			for _, name := range []string{"Server", "X-Envoy-Upstream-Service-Time", "Via"} {
				if value := response.Header.Get(name); value != "" {
					t.Errorf("the answer's %s is %q", name, value)
				}
			}
		})
	}
}

// TestInboundTCP connects to ports without requests.
func TestInboundTCP(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	for name, tt := range map[string]struct {
		port  int
		as    *tls.Config
		hello bool
	}{
		"allowed":                          {helloPort, w.as(t, buyer), true},
		"another identity":                 {helloPort, w.as(t, ops), false},
		"no certificate":                   {helloPort, &tls.Config{InsecureSkipVerify: true, ServerName: store.DNSName()}, false},
		"plaintext":                        {helloPort, nil, false},
		"a port that nothing names":        {otherPort, w.as(t, ops), true},
		"the same with another identity":   {otherPort, w.as(t, buyer), false},
		"nobody listens to it":             {9998, w.as(t, ops), false},
		"other TLS":                        {helloPort, &tls.Config{InsecureSkipVerify: true, ServerName: "example.com"}, false},
		"TLS without a server name":        {helloPort, &tls.Config{InsecureSkipVerify: true}, false},
		"a name that ends like the mesh's": {helloPort, &tls.Config{InsecureSkipVerify: true, ServerName: "x.evilsa.cluster.local"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.connections.Load()
			got, err := w.hello(tt.port, tt.as)
			if tt.hello {
				if err != nil || got != "hello\n" {
					t.Errorf("it says %q, %v", got, err)
				}
				return
			}
			var late net.Error
			if err == nil || errors.As(err, &late) && late.Timeout() {
				t.Errorf("it says %q, %v; it should hang up", got, err)
			}
			if after := w.connections.Load(); after != before {
				t.Errorf("the application got %d connections", after-before)
			}
		})
	}
	t.Run("both ways", func(t *testing.T) {
		raw, err := w.call(t.Context(), tcpPort)
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, w.as(t, buyer))
		defer conn.Close()
		sent := bytes.Repeat([]byte("0123456789"), 100_000)
		go func() {
			conn.Write(sent)
			// Pipy ends both directions when one side ends TLS.
			conn.NetConn().(*net.TCPConn).CloseWrite()
		}()
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("the echo is not what was sent: %v", err)
		}
		if n, err := conn.Read(got); n > 0 || err == nil {
			t.Errorf("after the echo there are %d bytes", n)
		}
	})
}

// TestInboundStreams sends data in both directions of a request at a time.
func TestInboundStreams(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		http.NewResponseController(out).EnableFullDuplex()
		out.Header().Set("Trailer", "Grpc-Status")
		out.WriteHeader(http.StatusOK)
		http.NewResponseController(out).Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(out, strings.ToUpper(lines.Text()))
			http.NewResponseController(out).Flush()
		}
		out.Header().Set("Grpc-Status", "0")
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(w.listen(t, 9100))
	t.Cleanup(func() { server.Close() })
	in := strictInbound()
	in.Ports = append(in.Ports, mesh.InboundPort{Port: 9100, Protocol: mesh.GRPC, Access: anyone})
	w.apply(t, inboundView(in))

	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, 9100) },
		TLSClientConfig: w.as(t, buyer, "h2"), Protocols: new(http.Protocols),
	}
	transport.Protocols.SetHTTP2(true)
	defer transport.CloseIdleConnections()
	body, write := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://stream/", body)
	if err != nil {
		t.Fatal(err)
	}
	go fmt.Fprintln(write, "first")
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for _, line := range []string{"first", "second", "third"} {
		if line != "first" {
			fmt.Fprintln(write, line)
		}
		if got, err := lines.ReadString('\n'); err != nil || got != strings.ToUpper(line)+"\n" {
			t.Fatalf("it says %q, %v", got, err)
		}
	}
	write.Close()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Fatalf("it ends with %q, %v", rest, err)
	}
	if got := response.Trailer.Get("Grpc-Status"); got != "0" {
		t.Errorf("the trailers are %v", response.Trailer)
	}
}

// TestInboundWebSocket upgrades a connection.
func TestInboundWebSocket(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	raw, err := w.call(t.Context(), ingressPort)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, w.as(t, buyer))
	defer conn.Close()
	fmt.Fprintf(conn, "GET /chat HTTP/1.1\r\nHost: books\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(response, err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		fmt.Fprint(conn, line)
		if got, err := in.ReadString('\n'); err != nil || got != line {
			t.Fatalf("it says %q, %v", got, err)
		}
	}
	conn.Close()
	// A refused one continues with no data.
	if response, _, err := w.ask(httpPort, w.as(t, ops), "/books/1", "Connection", "Upgrade", "Upgrade", "websocket"); err != nil || response.StatusCode != 403 || !response.Close {
		t.Errorf("a refused WebSocket gives %v, %v", response, err)
	}
	if response, _, err := w.ask(ingressPort, w.as(t, buyer), "/other"); err != nil || response.StatusCode != 200 {
		t.Errorf("after it, a request gives %v, %v", response, err)
	}
	eventually(t, func() error {
		_, body := w.metrics(t, "/stats/prometheus")
		for _, port := range []int{httpPort, ingressPort} {
			if want := fmt.Sprintf(`envoy_listener_downstream_cx_active{envoy_listener_address="inbound",envoy_port="%d"} 0`+"\n", port); !strings.Contains(body, want) {
				return fmt.Errorf("a connection remains: %s", body)
			}
		}
		return nil
	})
}

// TestInboundRefusesGRPC checks that gRPC clients get a gRPC status.
func TestInboundRefusesGRPC(t *testing.T) {
	in := strictInbound()
	in.Ports[0].Protocol = mesh.GRPC
	w := startWorkload(t, inboundView(in))
	for name, tt := range map[string]struct {
		port int
		want string
	}{"denied": {httpPort, "7"}, "not there": {9998, "14"}} {
		t.Run(name, func(t *testing.T) {
			if tt.port == 9998 {
				in := strictInbound()
				in.Ports = append(in.Ports, mesh.InboundPort{Port: 9998, Protocol: mesh.GRPC, Access: anyone})
				w.apply(t, inboundView(in))
			}
			response, _, err := w.do(tt.port, w.as(t, ops, "h2"), http.MethodPost, "/books.Store/Get", strings.NewReader("\x00\x00\x00\x00\x00"), "Content-Type", "application/grpc", "TE", "trailers")
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != 200 || response.Header.Get("Content-Type") != "application/grpc" || response.Trailer.Get("Grpc-Status") != tt.want || response.Trailer.Get("Grpc-Message") == "" {
				t.Errorf("it gives %s, %v, and at the end %v", response.Status, response.Header, response.Trailer)
			}
		})
	}
	t.Run("an error of the application", func(t *testing.T) {
		response, _, err := w.do(grpcPort, w.as(t, ops, "h2"), http.MethodPost, "/books.Store/Get", strings.NewReader("\x00\x00\x00\x00\x00"), "Content-Type", "application/grpc", "TE", "trailers", "X-Fail", "yes")
		if err != nil || response.Trailer.Get("Grpc-Status") != "5" || response.Trailer.Get("Grpc-Message") != "not found" || response.Header.Get("Grpc-Status") != "" {
			t.Errorf("it gives %+v, %v", response, err)
		}
	})
}
