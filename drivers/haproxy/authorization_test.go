package haproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// judge is an authorization service that answers by the header x-case of requests.
type judge struct {
	mu      sync.Mutex
	last    *authv3.AttributeContext
	release chan struct{}
	// waiting counts the requests that wait for release, and given those given up.
	waiting, given atomic.Int32
}

func (j *judge) Check(ctx context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	j.mu.Lock()
	j.last = r.Attributes
	j.mu.Unlock()
	switch r.Attributes.Request.Http.Headers["x-case"] {
	case "allow":
		return &authv3.CheckResponse{Status: &status.Status{}}, nil
	case "empty":
		return &authv3.CheckResponse{}, nil
	case "change":
		return allowedBut(&authv3.OkHttpResponse{
			Headers: []*corev3.HeaderValueOption{
				headerOption("X-User", "alice", nil), headerOption("x-list", "c", wrapperspb.Bool(true)), headerOption("x-case", "changed", wrapperspb.Bool(false)),
			},
			HeadersToRemove: []string{"X-Secret", "Host", ":path"},
			ResponseHeadersToAdd: []*corev3.HeaderValueOption{
				headerOption("x-checked", "yes", nil), headerOption("x-own", "b", nil),
				{Header: &corev3.HeaderValue{Key: "x-set", Value: "c"}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD},
			},
		}), nil
	case "host":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{headerOption("host", "other", nil)}}), nil
	case "identity":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{headerOption("x_forwarded-client-cert", "URI=spiffe://a", nil)}}), nil
	case "remove length":
		return allowedBut(&authv3.OkHttpResponse{HeadersToRemove: []string{"content-length"}}), nil
	case "line break":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{headerOption("x-a", "b\r\nx-c: d", nil)}}), nil
	case "query":
		return allowedBut(&authv3.OkHttpResponse{QueryParametersToRemove: []string{"x"}}), nil
	case "huge change":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{headerOption("x-huge", strings.Repeat("a", 70_000), nil)}}), nil
	case "huge change of the answer":
		return allowedBut(&authv3.OkHttpResponse{ResponseHeadersToAdd: []*corev3.HeaderValueOption{headerOption("x-huge", strings.Repeat("a", 70_000), nil)}}), nil
	case "deny":
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.PermissionDenied)}}, nil
	case "deny with an allowing answer":
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.Unknown)}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{}}}, nil
	case "explain":
		return denied("<p>log in ü"), nil
	case "no content", "not modified":
		answer := denied("body")
		answer.GetDeniedResponse().Status.Code = map[string]typev3.StatusCode{"no content": typev3.StatusCode_NoContent, "not modified": typev3.StatusCode_NotModified}[r.Attributes.Request.Http.Headers["x-case"]]
		return answer, nil
	case "explain at length":
		return denied(strings.Repeat("log in ", 8000)), nil
	case "explain at too great length":
		return denied(strings.Repeat("log in ", 12_000)), nil
	case "explain endlessly":
		return denied(strings.Repeat("log in ", 100_000)), nil
	case "error":
		return nil, context.DeadlineExceeded
	case "slow":
		// The context ends with the time that the proxy gives, to which an answer would not
		// be late.
		<-ctx.Done()
		time.Sleep(500 * time.Millisecond)
		return &authv3.CheckResponse{}, nil
	case "wait":
		j.waiting.Add(1)
		select {
		case <-j.release:
		case <-ctx.Done():
			j.given.Add(1)
		}
		return &authv3.CheckResponse{}, nil
	}
	return nil, context.Canceled
}

func allowedBut(ok *authv3.OkHttpResponse) *authv3.CheckResponse {
	return &authv3.CheckResponse{Status: &status.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: ok}}
}

func denied(body string) *authv3.CheckResponse {
	return &authv3.CheckResponse{
		Status: &status.Status{Code: int32(codes.Unauthenticated)},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode_Unauthorized}, Body: body,
			Headers: []*corev3.HeaderValueOption{headerOption("WWW-Authenticate", "Bearer", nil), headerOption("content-type", "text/html", nil)},
		}},
	}
}

func headerOption(name, value string, appends *wrapperspb.BoolValue) *corev3.HeaderValueOption {
	//lint:ignore SA1019 It decides about the headers of requests, whose options have no other field for this.
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}, Append: appends}
}

// serve serves the authorization service at the address until the function is called.
func (j *judge) serve(t *testing.T, address string) (port uint16, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, j)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return portOf(listener), server.Stop
}

// authorized is a workload whose requests are authorized by the service at the port.
func authorized(a *app, port uint16, allowOnFailure bool) *fixture {
	f := strict(a)
	f.settings.Authorization = &mesh.Authorization{Host: "127.0.0.1", Port: port, Timeout: time.Second, AllowOnFailure: allowOnFailure, StatPrefix: "tickets"}
	return f
}

// ticket sends requests of a kind to a workload.
type ticket struct {
	*running
	ca  *authority
	app *app
}

func (w ticket) ask(alpn, target string, header ...string) (*http.Response, seen, error) {
	return ask(client(w.inbound, local(w.app.http), w.ca.as(buyer, store, alpn), alpn == "h2"), target, header...)
}

// answers checks the status of the answer to an allowed request.
func (w ticket) answers(want int, header ...string) {
	w.t.Helper()
	for _, alpn := range []string{"http/1.1", "h2"} {
		if response, _, err := w.ask(alpn, "/books/1", append(header, "x-case", "allow")...); err != nil || response.StatusCode != want {
			w.t.Errorf("%s: the answer is %v, %v, want %d", alpn, response, err, want)
		}
	}
}

func TestAuthorization(t *testing.T) {
	a, j := newApp(t), new(judge)
	a.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Own", "a")
		w.Header().Set("X-Set", "a")
		return false
	}
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	w := ticket{r, ca, a}
	for _, alpn := range []string{"http/1.1", "h2"} {
		for name, want := range map[string]int{
			"allow": 200, "empty": 200, "change": 200, "deny": 403, "deny with an allowing answer": 403, "explain": 401,
			"host": 403, "identity": 403, "remove length": 403, "line break": 403, "query": 403, "error": 403, "slow": 403, "": 403,
			"huge change": 403, "huge change of the answer": 500, "explain at length": 401, "explain at too great length": 500, "explain endlessly": 403,
		} {
			response, got, err := w.ask(alpn, "/books/1?x=y", "x-case", name, "x-list", "b", "x-secret", "s", "x_secret", "s", "x-user", "forged", "x_user", "forged")
			if err != nil || response.StatusCode != want {
				t.Errorf("%s, %q: the answer is %v, %v, want %d", alpn, name, response, err, want)
				continue
			}
			switch name {
			case "change":
				if h := got.Header; fmt.Sprint(h["X-User"], h["X-List"], h["X-Case"]) != "[alice] [b,c] [changed]" || h["X_user"] != nil || h["X-Secret"] != nil || h["X_secret"] != nil {
					t.Errorf("%s: the application got the headers %v", alpn, h)
				}
				if h := response.Header; fmt.Sprint(h["X-Checked"], h["X-Own"], h["X-Set"]) != "[yes] [a,b] [c]" {
					t.Errorf("%s: the client got the headers %v", alpn, h)
				}
			case "explain":
				if response.Header.Get("WWW-Authenticate") != "Bearer" || response.Header.Get("Content-Type") != "text/html" {
					t.Errorf("%s: the headers of the denial are %v", alpn, response.Header)
				}
			}
		}
	}
	// Rules are checked first, and the service does not open what they forbid.
	j.last = nil
	if response, _, err := w.ask("http/1.1", "/admin", "x-case", "allow"); err != nil || response.StatusCode != http.StatusForbidden || j.last != nil {
		t.Errorf("a request against the rules gets %v, %v, and the service is asked about %v", response, err, j.last)
	}
}

// TestAuthorizationAttributes checks what the service receives about a request.
func TestAuthorizationAttributes(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	for alpn, protocol := range map[string]string{"http/1.1": "HTTP/1.1", "h2": "HTTP/2"} {
		c := client(r.inbound, local(a.http), ca.as(buyer, store, alpn), alpn == "h2")
		request, _ := http.NewRequest("PATCH", "https://books.example.com/put?x=y", strings.NewReader("text"))
		request.Header = http.Header{"X-Case": {"allow"}, "X-Two": {"a", "b"}, "X-Latin": {"caf\xe9"}, "X-Forwarded-Client-Cert": {"forged"}}
		response, err := c.Do(request)
		if err != nil || response.StatusCode != 200 {
			t.Fatal(response, err)
		}
		response.Body.Close()
		c.CloseIdleConnections()
		at := j.last
		h := at.Request.Http
		from, to := at.Source.Address.GetSocketAddress(), at.Destination.Address.GetSocketAddress()
		if at.Source.Principal != buyer.String() || from.Address != "127.0.0.1" || from.GetPortValue() != 4321 || to.Address != "127.0.0.1" || to.GetPortValue() != uint32(a.http) ||
			at.TlsSession.GetSni() != strings.ToLower(store.DNSName()) || time.Since(at.Request.Time.AsTime()).Abs() > time.Minute {
			t.Errorf("%s: the service receives %v", alpn, at)
		}
		if h.Method != "PATCH" || h.Path != "/put?x=y" || h.Host != "books.example.com" || h.Scheme != "http" || h.Size != 4 || h.Protocol != protocol || h.Id == "" ||
			h.Headers[":path"] != h.Path || h.Headers[":method"] != h.Method || h.Headers[":authority"] != h.Host || h.Headers["host"] != "" ||
			h.Headers["x-two"] != "a,b" || h.Headers["x-latin"] != "caf!" || h.Headers["x-forwarded-client-cert"] != "URI="+buyer.String() {
			t.Errorf("%s: the service receives the request %v", alpn, h)
		}
	}
}

// TestAuthorizationOfBodies checks that bodies reach the application after the service has
// decided, and that a client which waits before it sends one gets the denial.
func TestAuthorizationOfBodies(t *testing.T) {
	a, j := newApp(t), new(judge)
	a.answer = func(w http.ResponseWriter, r *http.Request) bool {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, `{"Path": "%d"}`, n)
		return true
	}
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	for _, alpn := range []string{"http/1.1", "h2"} {
		c := client(r.inbound, local(a.http), ca.as(buyer, store, alpn), alpn == "h2")
		c.Transport.(*http.Transport).ExpectContinueTimeout = 20 * time.Second
		for name, want := range map[string]int{"allow": 200, "deny": 403, "explain": 401} {
			const size = 3 << 20
			request, _ := http.NewRequest("POST", "https://books.example.com/books/1", strings.NewReader(strings.Repeat("a", size)))
			request.Header.Set("X-Case", name)
			request.Header.Set("Expect", "100-continue")
			response, err := c.Do(request)
			if err != nil || response.StatusCode != want {
				t.Errorf("%s, %s: the answer is %v, %v, want %d", alpn, name, response, err, want)
				continue
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if got := string(body); err != nil || want == 200 && got != fmt.Sprintf(`{"Path": "%d"}`, size) || want == 401 && got != "<p>log in ü" {
				t.Errorf("%s, %s: the body is %q, %v", alpn, name, body, err)
			}
		}
		c.CloseIdleConnections()
	}
}

// TestAuthorizationOfLongHeaders checks requests with headers as long as HAProxy accepts.
func TestAuthorizationOfLongHeaders(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	w := ticket{r, ca, a}
	header := []string{"x-long", strings.Repeat("a", 40_000)}
	for i := range 150 {
		header = append(header, fmt.Sprintf("x-%d", i), strings.Repeat("b", 50))
	}
	w.answers(200, header...)
	if got := len(j.last.Request.Http.Headers["x-long"]); got != 40_000 {
		t.Errorf("the service receives %d bytes of the header", got)
	}
}

// TestDenialsWithoutBodies checks that the answer after a denial without a body is not
// preceded by one.
func TestDenialsWithoutBodies(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	connect := func() (net.Conn, *bufio.Reader) {
		conn, err := dial(r.inbound, local(a.http))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		secure := tls.Client(conn, ca.as(buyer, store))
		return secure, bufio.NewReader(secure)
	}
	secure, answers := connect()
	for _, tt := range []struct {
		method, name string
		want         int
	}{{"HEAD", "explain", 401}, {"GET", "allow", 200}, {"GET", "no content", 204}, {"GET", "allow", 200}, {"GET", "not modified", 304}, {"GET", "allow", 200}} {
		fmt.Fprintf(secure, "%s /books/1 HTTP/1.1\r\nHost: a\r\nX-Case: %s\r\n\r\n", tt.method, tt.name)
		response, err := http.ReadResponse(answers, &http.Request{Method: tt.method})
		if err != nil || response.StatusCode != tt.want {
			t.Fatalf("%s, %s: the answer is %v, %v, want %d", tt.method, tt.name, response, err, tt.want)
		}
		io.Copy(io.Discard, response.Body)
		// HAProxy 3.0 ends the connection after its own 204.
		if response.Close && tt.want == 204 && isAtLeast(t, 3, 0) {
			secure, answers = connect()
		}
	}
}

// TestAuthorizationOfGRPC checks that clients of gRPC get a denial as a status.
func TestAuthorizationOfGRPC(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	w := ticket{r, ca, a}
	for name, want := range map[string]string{"deny": "7 ", "explain": "16 <p>log in %C3%BC", "error": "7 the external authorization service has not answered"} {
		response, _, err := w.ask("h2", "/books/1", "x-case", name, "content-type", "application/grpc+proto", "te", "trailers")
		if response == nil || response.StatusCode != 200 {
			t.Errorf("%s: the answer is %v, %v", name, response, err)
		} else if got := response.Header.Get("Grpc-Status") + " " + response.Header.Get("Grpc-Message"); got != want || response.Header.Get("Content-Type") != "application/grpc" {
			t.Errorf("%s: the answer is %v, want %q", name, response.Header, want)
		}
	}
}

// TestAuthorizationOfWebSockets checks that the service decides about an upgrade.
func TestAuthorizationOfWebSockets(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	for name, want := range map[string]string{"allow": "101", "change": "101", "deny": "403"} {
		conn, err := dial(r.inbound, local(a.http))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		secure := tls.Client(conn, ca.as(buyer, store))
		fmt.Fprintf(secure, "GET /books/ws HTTP/1.1\r\nHost: a\r\nX-Case: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nping\n", name)
		lines := bufio.NewReader(secure)
		status, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(status, want) {
			t.Errorf("%s: the answer is %q, %v", name, status, err)
			continue
		}
		for line := ""; want == "101" && line != "ping\n"; {
			if line, err = lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAuthorizationOfCallersOutside checks that the service is asked about requests in
// plaintext and in other TLS, too.
func TestAuthorizationOfCallersOutside(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	f := withIngress(a)
	f.settings.Authorization = authorized(a, port, false).settings.Authorization
	r, ca := runInbound(t, f)
	gateway := ca.as(ops, store)
	gateway.ServerName, gateway.InsecureSkipVerify = "books.example.com", true
	long := mesh.Identity{TrustDomain: "cluster.local", Namespace: buyer.Namespace, ServiceAccount: strings.Repeat("long.", 40) + "name"}
	for name, tt := range map[string]struct {
		tls  *tls.Config
		who  string
		path string
	}{
		"plaintext": {nil, "", "/health"}, "other TLS": {gateway, ops.String(), "/health"}, "without a certificate": {&tls.Config{ServerName: "books.example.org", InsecureSkipVerify: true}, "", "/open"},
		"a long name": {ca.as(long, store), long.String(), "/"},
	} {
		for verdict, want := range map[string]int{"allow": 200, "explain": 401} {
			response, _, err := ask(client(r.inbound, local(a.other), tt.tls, false), tt.path, "x-case", verdict)
			if err != nil || response.StatusCode != want || j.last.Source.Principal != tt.who {
				t.Errorf("%s, %s: the answer is %v, %v, want %d; the service receives %v", name, verdict, response, err, want, j.last.Source)
			}
		}
	}
}
