package probe

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// app is an application with a page for every outcome.
type app struct {
	*httptest.Server
	// request is the last request to /record.
	request chan *http.Request
}

func newApp(t *testing.T, start func(http.Handler) *httptest.Server) *app {
	a := &app{request: make(chan *http.Request, 16)}
	mux := http.NewServeMux()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			if code >= 200 {
				fmt.Fprint(w, "the app's own words")
			}
		}
	}
	for _, code := range []int{200, 204, 304, 400, 404, 500, 503} {
		mux.HandleFunc(fmt.Sprintf("/%d", code), status(code))
	}
	redirect := func(to func(r *http.Request) string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to(r), http.StatusFound) }
	}
	mux.HandleFunc("/to-good", redirect(func(*http.Request) string { return "/200" }))
	mux.HandleFunc("/to-bad", redirect(func(*http.Request) string { return "/503" }))
	mux.HandleFunc("/to-itself", redirect(func(*http.Request) string { return "/to-itself" }))
	mux.HandleFunc("/elsewhere", redirect(func(*http.Request) string { return "http://192.0.2.1/" }))
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/broken", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("h"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/two-seconds", func(http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Second) })
	mux.HandleFunc("/record", func(_ http.ResponseWriter, r *http.Request) { a.request <- r })
	a.Server = start(mux)
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(a.Close)
	return a
}

func (a *app) port() int32 { return int32(a.Listener.Addr().(*net.TCPAddr).Port) }

// testAgent is a server in place of an agent, whose pod has the address 127.0.0.1, like its app.
type testAgent struct {
	t   *testing.T
	url string
}

func newTestServer(probes ...agentspec.Probe) *Server {
	return NewServer(Options{Probes: probes, PodIP: "127.0.0.1", Log: slog.New(slog.DiscardHandler), Metrics: new(kit.Metrics)})
}

func newTestAgent(t *testing.T, probes ...agentspec.Probe) *testAgent {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := newTestServer(probes...).HTTP()
	t.Cleanup(func() { web.HTTP.Close() })
	go web.Serve(listener)
	return &testAgent{t, "http://" + listener.Addr().String()}
}

// ask sends a request and returns the answer's status and text.
func (a *testAgent) ask(method, path string) (int, string) {
	request, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(text))
}

// patience is longer than any step takes on a busy machine.
const patience = time.Minute

// TestProbes sends probes of all kinds to an agent.
func TestProbes(t *testing.T) {
	plain := newApp(t, httptest.NewServer)
	tls := newApp(t, httptest.NewTLSServer)
	tls2 := newApp(t, func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = true
		s.StartTLS()
		return s
	})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closedPort := int32(closed.Addr().(*net.TCPAddr).Port)
	closed.Close()
	// This server accepts connections and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	silentPort := int32(silent.Addr().(*net.TCPAddr).Port)
	// This one speaks first, and no HTTP.
	banner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { banner.Close() })
	bannerPort := int32(banner.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			conn, err := banner.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "SSH-2.0-banner of the app\r\n")
			conn.Close()
		}
	}()
	services := health.NewServer()
	services.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	services.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	grpcPort := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, services) })
	otherPort := serveGRPC(t, func(*grpc.Server) {})
	// HTTP/2 without TLS and without HTTP/1.1, as Kubernetes' protocol HTTP2 asks for it.
	h2c := newApp(t, func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
		return s
	})
	grpcTLS := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, services) },
		grpc.Creds(credentials.NewServerTLSFromCert(&tls.TLS.Certificates[0])))

	get := func(a *app, scheme, url string) agentspec.Probe {
		return agentspec.Probe{Kind: agentspec.HTTP, Scheme: scheme, Port: a.port(), URL: url}
	}
	by := func(protocol string, probe agentspec.Probe) agentspec.Probe {
		if probe.Kind == agentspec.GRPC {
			probe.Mode = protocol
		} else {
			probe.Protocol = protocol
		}
		return probe
	}
	rpc := func(port int32, service string) agentspec.Probe {
		return agentspec.Probe{Kind: agentspec.GRPC, Port: port, Service: service}
	}
	tests := map[string]struct {
		probe agentspec.Probe
		want  int
	}{
		"http":             {get(plain, "HTTP", "/200"), 200},
		"http-default":     {get(plain, "", "200"), 200},
		"http-204":         {get(plain, "HTTP", "/204"), 204},
		"http-304":         {get(plain, "HTTP", "/304"), 304},
		"http-404":         {get(plain, "HTTP", "/404"), 404},
		"http-500":         {get(plain, "HTTP", "/500"), 500},
		"http-to-https":    {get(tls, "HTTP", "/200"), 400},
		"https":            {get(tls, "HTTPS", "/200"), 200},
		"https-503":        {get(tls, "HTTPS", "/503"), 503},
		"https-2":          {get(tls2, "HTTPS", "/200"), 200},
		"https-to-http":    {get(plain, "HTTPS", "/200"), 503},
		"h2c":              {by("HTTP2", get(h2c, "HTTP", "/200")), 200},
		"h2c-503":          {by("HTTP2", get(h2c, "HTTP", "/503")), 503},
		"h2c-redirect":     {by("HTTP2", get(h2c, "HTTP", "/to-good")), 200},
		"h2c-by-http-1":    {by("HTTP1", get(h2c, "HTTP", "/200")), 503},
		"http-1-by-h2c":    {by("HTTP2", get(plain, "HTTP", "/200")), 503},
		"http-1":           {by("HTTP1", get(plain, "HTTP", "/200")), 200},
		"redirect":         {get(plain, "HTTP", "/to-good"), 200},
		"redirect-bad":     {get(plain, "HTTP", "/to-bad"), 503},
		"redirect-forever": {get(plain, "HTTP", "/to-itself"), 503},
		"redirect-away":    {get(plain, "HTTP", "/elsewhere"), 302},
		"slow":             {get(plain, "HTTP", "/slow"), 504},
		"endless":          {get(plain, "HTTP", "/endless"), 200},
		"broken":           {get(plain, "HTTP", "/broken"), 503},
		"banner":           {agentspec.Probe{Kind: agentspec.HTTP, Port: bannerPort, URL: "/banner"}, 503},
		"no-url":           {get(plain, "HTTP", "%zz"), 404},
		"closed":           {agentspec.Probe{Kind: agentspec.HTTP, Port: closedPort}, 503},
		"silent":           {agentspec.Probe{Kind: agentspec.HTTP, Port: silentPort}, 504},
		"bad-header":       {agentspec.Probe{Kind: agentspec.HTTP, Port: plain.port(), URL: "/200", Headers: []agentspec.Header{{Name: "a b", Value: "\n"}}}, 503},
		"tcp":              {agentspec.Probe{Kind: agentspec.TCP, Port: silentPort}, 200},
		"tcp-closed":       {agentspec.Probe{Kind: agentspec.TCP, Port: closedPort}, 503},
		"tcp-host":         {agentspec.Probe{Kind: agentspec.TCP, Port: silentPort, Host: "localhost"}, 200},
		"grpc":             {rpc(grpcPort, ""), 200},
		"grpc-up":          {rpc(grpcPort, "up"), 200},
		"grpc-down":        {rpc(grpcPort, "down"), 503},
		"grpc-tls":         {by("TLS", rpc(grpcTLS, "up")), 200},
		"grpc-tls-down":    {by("TLS", rpc(grpcTLS, "down")), 503},
		"grpc-tls-plain":   {by("Plaintext", rpc(grpcTLS, "up")), 503},
		"grpc-plain-tls":   {by("TLS", rpc(grpcPort, "up")), 503},
		"grpc-plaintext":   {by("Plaintext", rpc(grpcPort, "up")), 200},
		"grpc-unknown":     {rpc(grpcPort, "unknown"), 503},
		"grpc-other":       {rpc(otherPort, ""), 503},
		"grpc-closed":      {rpc(closedPort, ""), 503},
		"grpc-silent":      {rpc(silentPort, ""), 504},
	}
	var probes []agentspec.Probe
	for name, tt := range tests {
		tt.probe.Path, tt.probe.TimeoutSeconds = "/app-health/"+name+"/livez", 1
		probes = append(probes, tt.probe)
	}
	agent := newTestAgent(t, probes...)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, text := agent.ask("GET", "/app-health/"+name+"/livez")
			if status != tt.want {
				t.Errorf("the agent answers %d %s, want %d", status, text, tt.want)
			}
			for _, secret := range []string{"own words", "to-itself", "/broken", "127.0.0.1", "banner"} {
				if strings.Contains(text, secret) {
					t.Errorf("the app's text or URL is passed on to the network: %s", text)
				}
			}
		})
	}
	for path, want := range map[string]int{"/app-health/http/readyz": 404, "/app-health/http/livez/": 404, "/": 404} {
		if status, _ := agent.ask("GET", path); status != want {
			t.Errorf("%s is answered with %d", path, status)
		}
	}
	if status, _ := agent.ask("POST", "/app-health/http/livez"); status != 405 {
		t.Errorf("POST is answered with %d", status)
	}
}

func serveGRPC(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) int32 {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	register(server)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// TestProbeHeaders compares what the app sees with what the kubelet would have sent.
func TestProbeHeaders(t *testing.T) {
	a := newApp(t, httptest.NewServer)
	kubelet := http.Header{"User-Agent": {"kube-probe/1.36"}, "Accept": {"*/*"}, "Connection": {"close"}}
	for name, tt := range map[string]struct {
		headers []agentspec.Header
		host    string
		want    http.Header
	}{
		"none": {nil, "", http.Header{"User-Agent": {"kube-probe/1.36"}, "Accept": {"*/*"}, "Connection": {"close"}}},
		"own": {[]agentspec.Header{{Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}, {Name: "Host", Value: "shop.example"}, {Name: "User-Agent", Value: "me"}, {Name: "Accept", Value: "text/html"}},
			"shop.example", http.Header{"X-A": {"1", "2"}, "User-Agent": {"me"}, "Accept": {"text/html"}, "Connection": {"close"}}},
		"taken away": {[]agentspec.Header{{Name: "User-Agent"}, {Name: "Accept"}}, "", http.Header{"Connection": {"close"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := newProber("127.0.0.1").probe(t.Context(), agentspec.Probe{
				Kind: agentspec.HTTP, Port: a.port(), URL: "/record?a=b", Headers: tt.headers, TimeoutSeconds: 5,
			}, kubelet)
			if !got.ok() {
				t.Fatal(got)
			}
			r := <-a.request
			if diff := cmp.Diff(tt.want, r.Header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			host := tt.host
			if host == "" {
				host = a.Listener.Addr().String()
			}
			if r.Host != host || r.URL.String() != "/record?a=b" {
				t.Errorf("the app was asked for %s of %s", r.URL, r.Host)
			}
		})
	}
}

// TestProbesAreLimited sends the agent more probes that hang than it allows. The kubelet's
// probes must still be answered.
func TestProbesAreLimited(t *testing.T) {
	release := make(chan struct{})
	arrived := make(chan struct{}, 2*maxProbes)
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-release }))
	defer slow.Close()
	probe := agentspec.Probe{Path: "/slow", Kind: agentspec.HTTP, Port: int32(slow.Listener.Addr().(*net.TCPAddr).Port), TimeoutSeconds: 60}
	s := newTestServer(probe)
	ask := func(from string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/slow", nil)
		r.RemoteAddr = from + ":4711"
		s.ServeHTTP(w, r)
		_, _ = io.Copy(io.Discard, w.Body)
		return w.Code
	}
	var arrive int
	answers := make(chan int, maxProbes)
	fill := func(from string) {
		for range maxProbesEach {
			go func() { answers <- ask(from) }()
		}
		for range maxProbesEach {
			select {
			case <-arrived:
				arrive++
			case code := <-answers:
				t.Fatalf("a probe of %s is answered with %d", from, code)
			case <-time.After(patience):
				t.Fatal("the probes do not arrive")
			}
		}
		if code := ask(from); code != 503 {
			t.Errorf("one more probe of %s is answered with %d", from, code)
		}
	}
	for _, from := range []string{"192.0.2.1", "[2001:db8::1]", "192.0.2.2", "192.0.2.3"} {
		fill(from)
	}
	if arrive != maxProbes {
		t.Fatalf("%d probes are being asked, want %d", arrive, maxProbes)
	}
	// An address with fewer probes is served; one of the others' probes is canceled.
	kubelet := make(chan int, 1)
	go func() { kubelet <- ask("192.0.2.4") }()
	select {
	case <-arrived:
	case code := <-kubelet:
		t.Errorf("beside %d probes another one is answered with %d", arrive, code)
	case <-time.After(patience):
		t.Fatal("the kubelet's probe does not arrive")
	}
	if code := <-answers; code != 503 {
		t.Errorf("the probe that makes room is answered with %d", code)
	}
	close(release)
	if code := <-kubelet; code != 200 {
		t.Errorf("the kubelet's probe is answered with %d", code)
	}
	for range maxProbes - 1 {
		if code := <-answers; code != 200 {
			t.Errorf("a probe is answered with %d", code)
		}
	}
	if code := ask("192.0.2.1"); code != 200 {
		t.Errorf("afterwards a probe is answered with %d", code)
	}
	for i := range maxProbes {
		from := netip.AddrFrom4([4]byte{192, 0, 2, byte(i / maxProbesEach)})
		if _, ok := s.slots.Take(from, 1, func() {}); !ok {
			t.Errorf("afterwards only %d of %d probes could be asked", i, maxProbes)
			break
		}
	}
}
