package pipy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
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

// judges is an authorization service that answers by the header x-case of requests.
type judges struct {
	mu   sync.Mutex
	last *authv3.AttributeContext
}

func (j *judges) Check(ctx context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
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
				option("X-User", "alice", nil), option("x-list", "c", wrapperspb.Bool(true)), option("x-case", "changed", wrapperspb.Bool(false)),
			},
			HeadersToRemove:      []string{"X-Secret", "Host", ":path"},
			ResponseHeadersToAdd: []*corev3.HeaderValueOption{option("x-checked", "yes", nil)},
		}), nil
	case "host":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{option("host", "other", nil)}}), nil
	case "identity":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{option("x-forwarded-client-cert", "URI=spiffe://a", nil)}}), nil
	case "remove length":
		return allowedBut(&authv3.OkHttpResponse{HeadersToRemove: []string{"content-length"}}), nil
	case "line break":
		return allowedBut(&authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{option("x-a", "b\r\nx-c: d", nil)}}), nil
	case "query":
		return allowedBut(&authv3.OkHttpResponse{QueryParametersToRemove: []string{"x"}}), nil
	case "deny":
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.PermissionDenied)}}, nil
	case "deny with an allowing answer":
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.Unknown)}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{}}}, nil
	case "explain":
		return &authv3.CheckResponse{
			Status: &status.Status{Code: int32(codes.Unauthenticated)},
			HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_Unauthorized}, Body: "<p>log in",
				Headers: []*corev3.HeaderValueOption{option("WWW-Authenticate", "Bearer", nil), option("content-type", "text/html", nil)},
			}},
		}, nil
	case "error":
		return nil, context.DeadlineExceeded
	case "slow":
		<-ctx.Done()
		return &authv3.CheckResponse{}, nil
	}
	return nil, context.Canceled
}

func allowedBut(ok *authv3.OkHttpResponse) *authv3.CheckResponse {
	return &authv3.CheckResponse{Status: &status.Status{}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: ok}}
}

func option(name, value string, appends *wrapperspb.BoolValue) *corev3.HeaderValueOption {
	//lint:ignore SA1019 It decides about the headers of requests, whose options have no other field for this.
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}, Append: appends}
}

// authorize serves the authorization service at the node until the function is called.
func (s *pipyPod) authorize(t *testing.T, address string, j *judges) func() {
	t.Helper()
	listener, err := s.lab.Node().Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, j)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return server.Stop
}

// externally returns a View whose requests are authorized by the service at the node's port.
func externally(port uint16, allowOnFailure bool) *mesh.View {
	return inboundView(strictInbound(), func(_ *mesh.Proxy, s *mesh.Settings) {
		s.Authorization = &mesh.Authorization{Host: "198.18.0.1", Port: port, Timeout: time.Second, AllowOnFailure: allowOnFailure, StatPrefix: "tickets"}
	})
}

func TestExternalAuthorization(t *testing.T) {
	w := startWorkload(t, externally(9191, false))
	judge := new(judges)
	stop := w.authorize(t, "198.18.0.1:9191", judge)
	for _, alpn := range []string{"http/1.1", "h2"} {
		config := w.as(t, buyer, alpn)
		for name, want := range map[string]int{
			"allow": 200, "empty": 200, "change": 200, "deny": 403, "deny with an allowing answer": 403, "explain": 401,
			"host": 403, "identity": 403, "remove length": 403, "line break": 403, "query": 403, "error": 403, "slow": 403, "": 403,
		} {
			response, got, err := w.ask(httpPort, config, "/books/1?x=y", "x-case", name, "x-list", "b", "x-secret", "s")
			if err != nil || response.StatusCode != want {
				t.Errorf("%s, %q: the answer is %v, %v, want %d", alpn, name, response, err, want)
				continue
			}
			switch name {
			case "change":
				if got.Header.Get("X-User") != "alice" || got.Header.Get("X-List") != "b,c" || got.Header.Get("X-Case") != "changed" || got.Header["X-Secret"] != nil {
					t.Errorf("%s: the application got the headers %v", alpn, got.Header)
				}
				if response.Header.Get("X-Checked") != "yes" {
					t.Errorf("%s: the client got the headers %v", alpn, response.Header)
				}
			case "explain":
				if response.Header.Get("WWW-Authenticate") != "Bearer" || response.Header.Get("Content-Type") != "text/html" {
					t.Errorf("%s: the headers of the denial are %v", alpn, response.Header)
				}
			}
		}
	}
	// Rules are checked first, and the service does not open what they forbid.
	if response, _, err := w.ask(httpPort, w.as(t, buyer, "http/1.1"), "/admin", "x-case", "allow"); err != nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("a request against the rules gets %v, %v", response, err)
	}
	if response, got, err := w.do(httpPort, w.as(t, buyer, "http/1.1"), "POST", "/books/1?x=y", strings.NewReader("text"), "x-case", "allow"); err != nil || response.StatusCode != 200 || got.Body != "text" {
		t.Errorf("a request with a body gets %v, %v, and the application %+v", response, err, got)
	}
	judge.mu.Lock()
	a := judge.last
	judge.mu.Unlock()
	h := a.Request.Http
	if a.Source.Principal != buyer.String() || a.Source.Address.GetSocketAddress().GetPortValue() == 0 || a.Destination.Address.GetSocketAddress().GetPortValue() != httpPort ||
		a.Destination.Address.GetSocketAddress().Address != storeAddress.String() || a.TlsSession.GetSni() != store.DNSName() || a.Request.Time.AsTime().Before(time.Now().Add(-time.Minute)) ||
		h.Method != "POST" || h.Path != "/books/1?x=y" || h.Host != "books.example.com" || h.Size != 4 || h.Protocol != "HTTP/1.1" || h.Headers[":path"] != h.Path || h.Id == "" {
		t.Errorf("the service receives %v", a)
	}
	stop()
	asks := func(want int) {
		t.Helper()
		for range 3 {
			if response, _, err := w.ask(httpPort, w.as(t, buyer, "http/1.1"), "/books/1", "x-case", "allow"); err != nil || response.StatusCode != want {
				t.Errorf("the answer is %v, %v, want %d", response, err, want)
			}
		}
	}
	asks(403)
	w.authorize(t, "198.18.0.1:9191", judge)
	asks(200)
	w.apply(t, externally(9192, false))
	asks(403)
	w.apply(t, externally(9192, true))
	asks(200)
	// A service that does not speak gRPC, and one that speaks nothing.
	silent := w.accepting(t, "198.18.0.1:9193")
	defer silent.listener.Close()
	web, err := w.lab.Node().Listen(t.Context(), "tcp", "198.18.0.1:9194")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(web)
	defer server.Close()
	for _, address := range []net.Addr{silent.listener.Addr(), web.Addr()} {
		port := address.(*net.TCPAddr).AddrPort().Port()
		w.apply(t, externally(port, false))
		asks(403)
		w.apply(t, externally(port, true))
		asks(200)
	}
	for _, host := range []string{"", "no host", "nowhere.invalid", "::", "[", "198.18.0.1:1"} {
		w.apply(t, inboundView(strictInbound(), func(_ *mesh.Proxy, s *mesh.Settings) { s.Authorization = &mesh.Authorization{Host: host} }))
		asks(403)
	}
	w.apply(t, externally(0, true))
	asks(200)
	_, metrics := w.metrics(t, "/stats/prometheus")
	for _, name := range []string{"ok", "denied", "error", "failure_mode_allowed"} {
		if !strings.Contains(metrics, "envoy_http_ext_authz_tickets_"+name+`{envoy_http_conn_manager_prefix="inbound/8080"} `) {
			t.Errorf("the requests are not counted as %s:\n%s", name, metrics)
		}
	}
	if response, _, err := w.ask(httpPort, w.as(t, buyer, "http/1.1"), "/admin"); err != nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("while the service fails a request against the rules gets %v, %v", response, err)
	}
}

// TestExternalAuthorizationKeepsNothing checks that the proxy's memory does not grow with
// the number of requests that are authorized.
func TestExternalAuthorizationKeepsNothing(t *testing.T) {
	w := startWorkload(t, externally(9191, false))
	w.authorize(t, "198.18.0.1:9191", new(judges))
	config := w.as(t, buyer, "http/1.1")
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return w.call(context.Background(), httpPort)
		},
		TLSClientConfig: config,
	}}
	run := func(n int) {
		for i := range n {
			request, _ := http.NewRequestWithContext(t.Context(), "GET", "https://books/books/1", nil)
			name, want := "change", http.StatusOK
			if i%2 == 0 {
				name, want = "explain", http.StatusUnauthorized
			}
			request.Header.Set("x-case", name)
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode != want {
				t.Fatalf("%s gives %s", name, response.Status)
			}
		}
	}
	const n, most = 4000, 1 << 20
	run(n / 2)
	before, begun := w.resident(t), time.Now()
	run(n)
	grown := w.resident(t) - before
	t.Logf("%d took %s: %d bytes each", n, time.Since(begun).Round(time.Millisecond), grown/n)
	if grown > most {
		t.Errorf("%d of them leak %d bytes", n, grown)
	}
}
