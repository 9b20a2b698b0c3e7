package pipy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// metrics returns the proxy's metrics.
func (s *pipyPod) metrics(t *testing.T, path string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: s.lab.Node().Dial, DisableKeepAlives: true}}
	response, err := client.Get("http://" + net.JoinHostPort(s.Addresses()[0].String(), "15010") + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// eventually waits until the function returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestInboundMetrics(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	// Without any traffic it still names the metrics that readers look for.
	if _, body := w.metrics(t, "/stats/prometheus"); !strings.Contains(body, "# HELP "+telemetry.Requests+" ") {
		t.Errorf("without traffic the metrics are:\n%s", body)
	}
	for _, target := range []string{"/books/1", "/books/2", "/admin"} {
		if _, _, err := w.ask(httpPort, w.as(t, buyer), target); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.hello(helloPort, w.as(t, buyer)); err != nil {
		t.Fatal(err)
	}
	if status, body := w.metrics(t, "/ready"); status != 200 {
		t.Errorf("it is not ready: %d, %s", status, body)
	}
	if status, _ := w.metrics(t, "/other"); status != 404 {
		t.Errorf("another path gives %d", status)
	}
	eventually(t, func() error {
		_, body := w.metrics(t, "/stats/prometheus")
		for _, want := range []string{
			`envoy_cluster_upstream_rq{envoy_response_code="200",envoy_cluster_name="inbound"} 2`,
			`envoy_cluster_upstream_rq_xx{envoy_response_code_class="2",envoy_cluster_name="inbound"} 2`,
			`envoy_cluster_upstream_rq_time_count{envoy_cluster_name="inbound"} 2`,
			// Buckets contain those below them.
			`envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="inbound",le="3600000"} 2`,
			`envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="inbound",le="+Inf"} 2`,
			`envoy_http_downstream_rq_xx{envoy_response_code_class="4",envoy_http_conn_manager_prefix="inbound/8080"} 1`,
			`envoy_http_rbac_denied{envoy_http_conn_manager_prefix="inbound/8080"} 1`,
			`envoy_cluster_upstream_cx_total{envoy_cluster_name="inbound-tcp"} 1`,
			`# TYPE envoy_cluster_upstream_rq_time histogram`,
			// All connections have ended.
			`envoy_listener_downstream_cx_active{envoy_listener_address="inbound",envoy_port="8080"} 0`,
			`envoy_listener_downstream_cx_active{envoy_listener_address="inbound",envoy_port="9001"} 0`,
		} {
			if !strings.Contains(body, want+"\n") {
				return fmt.Errorf("no %s in\n%s", want, body)
			}
		}
		return nil
	})
}

// TestInboundAudit has connections whose application is there, and others whose is not. Both are
// audited before the application is called.
func TestInboundAudit(t *testing.T) {
	access := rules(rule("ops", anyRequest, ops))
	access.Anyone, access.Audit = true, true
	w := startWorkload(t, inboundView(&mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
		{Port: helloPort, Protocol: mesh.TCP, Access: access}, {Port: nobodyPort, Protocol: mesh.TCP, Access: access},
	}}))
	for _, caller := range []*tls.Config{w.as(t, buyer), w.as(t, ops), nil} {
		if _, err := w.hello(helloPort, caller); err != nil {
			t.Fatal(err)
		}
		if _, err := w.hello(nobodyPort, caller); err == nil {
			t.Fatal("nobody listens at the port, and it greets")
		}
	}
	eventually(t, func() error {
		_, body := w.metrics(t, "/stats/prometheus")
		got := map[string]string{}
		for line := range strings.Lines(body) {
			for _, name := range []string{telemetry.AuditDenied, telemetry.Denied} {
				if labels, found := strings.CutPrefix(line, name+"{"); found {
					labels, n, _ := strings.Cut(strings.TrimSpace(labels), "} ")
					account := regexp.MustCompile(`source_service_account="(.*?)"`).FindStringSubmatch(labels)[1]
					reason := regexp.MustCompile(`reason="(.*?)"`).FindStringSubmatch(labels)[1]
					got[fmt.Sprintf("%s of %q: %s", name, account, reason)] = n
				}
			}
		}
		want := map[string]string{
			telemetry.AuditDenied + ` of "book.buyer": access`: "2", telemetry.AuditDenied + ` of "": plaintext`: "2",
			telemetry.Denied + ` of "book.buyer": no_endpoint`: "1", telemetry.Denied + ` of "admin": no_endpoint`: "1", telemetry.Denied + ` of "": no_endpoint`: "1",
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("it counts %v, want %v", got, want)
		}
		return nil
	})
}

func TestInboundAccessLog(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound(), func(_ *mesh.Proxy, s *mesh.Settings) { s.AccessLog = mesh.FullAccessLog() }))
	if _, _, err := w.ask(httpPort, w.as(t, buyer), "/books/1?x=\"1", "User-Agent", `a "tester"`, "X-Request-Id", "id-1"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.ask(httpPort, w.as(t, ops), "/books/2"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.hello(helloPort, w.as(t, buyer)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.hello(helloPort, w.as(t, ops)); err == nil {
		t.Fatal("it greets a caller without authorization")
	}
	wants := []map[string]any{
		{"path": `/books/1?x="1`, "method": "GET", "response_code": 200.0, "downstream_peer": buyer.String(), "authority": "books.example.com", "user_agent": `a "tester"`,
			"request_id": "id-1", "upstream_host": "198.18.0.10:8080", "response_flags": "-", "response_code_details": "via_upstream", "reason": nil, "requested_server_name": store.DNSName(), "protocol": "HTTP/1.1"},
		{"path": "/books/2", "response_code": 403.0, "downstream_peer": ops.String(), "upstream_host": nil, "response_code_details": "rbac_access_denied", "reason": "access"},
		{"method": nil, "response_code": 0.0, "downstream_peer": buyer.String(), "upstream_host": "198.18.0.10:9001", "bytes_sent": 6.0},
		{"method": nil, "response_code": 0.0, "downstream_peer": ops.String(), "upstream_host": nil, "connection_close_details": "rbac_access_denied", "reason": "access"},
	}
	keys := []string{"start_time", "duration", "downstream_remote", "bytes_received", "bytes_sent", "trace_id", "upstream_cluster", "x_forwarded_for", "upstream_service_time", "time_to_first_byte", "downstream_failure", "upstream_failure", "upstream_peer"}
	eventually(t, func() error {
		var lines []map[string]any
		for line := range strings.Lines(w.log.String()) {
			var fields map[string]any
			if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &fields) == nil {
				lines = append(lines, fields)
			}
		}
		for _, want := range wants {
			if !slices.ContainsFunc(lines, func(fields map[string]any) bool {
				for name, value := range want {
					if fields[name] != value {
						return false
					}
				}
				return !slices.ContainsFunc(keys, func(key string) bool { _, there := fields[key]; return !there })
			}) {
				return fmt.Errorf("no line has %v", want)
			}
		}
		if len(lines) != len(wants) {
			return fmt.Errorf("there are %d lines", len(lines))
		}
		return nil
	})
}

// span is a Zipkin span.
type span struct {
	TraceID, ID, ParentID, Kind, Name string
	Shared                            bool
	Timestamp, Duration               int64
	LocalEndpoint                     struct{ ServiceName string }
	Tags                              map[string]string
}

func TestInboundTracing(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	collector, err := w.lab.Node().Listen(t.Context(), "tcp", "198.18.0.1:9411")
	if err != nil {
		t.Fatal(err)
	}
	spans := make(chan span, 100)
	go http.Serve(collector, http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		var got []span
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.URL.Path != "/spans" {
			t.Errorf("%s: %v", r.URL, err)
		}
		for _, s := range got {
			spans <- s
		}
		out.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(func() { collector.Close() })
	traced := func(sampled uint32) *mesh.View {
		return inboundView(strictInbound(), func(_ *mesh.Proxy, s *mesh.Settings) {
			s.Tracing = &mesh.Tracing{Protocol: "zipkin", Host: "198.18.0.1", Port: 9411, Path: "/spans", Sampled: sampled}
		})
	}
	w.apply(t, traced(1_000_000))
	next := func() span {
		t.Helper()
		select {
		case s := <-spans:
			return s
		case <-time.After(20 * time.Second):
			t.Fatal("no span was sent")
			return span{}
		}
	}
	_, seen, err := w.ask(httpPort, w.as(t, buyer), "/books/1")
	if err != nil {
		t.Fatal(err)
	}
	s := next()
	if s.Kind != "SERVER" || s.TraceID != seen.Header.Get("X-B3-Traceid") || s.ID != seen.Header.Get("X-B3-Spanid") || seen.Header.Get("X-B3-Sampled") != "1" ||
		len(s.TraceID) != 32 || s.LocalEndpoint.ServiceName != "bookstore.bookstore" || s.Tags["http.status_code"] != "200" || s.Duration <= 0 || s.ParentID != "" {
		t.Errorf("the first span is %+v, and the application receives %v", s, seen.Header)
	}
	const trace, parent, id = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "b7ad6b7169203331"
	_, seen, err = w.ask(httpPort, w.as(t, buyer), "/books/2", "X-B3-Traceid", trace, "X-B3-Spanid", id, "X-B3-Parentspanid", parent, "X-B3-Sampled", "1")
	if err != nil {
		t.Fatal(err)
	}
	if s := next(); s.TraceID != trace || s.ID != id || s.ParentID != parent || !s.Shared || seen.Header.Get("X-B3-Spanid") != id || seen.Header.Get("X-B3-Parentspanid") != parent {
		t.Errorf("the span of a client's is %+v, and the application sees %v", s, seen.Header)
	}
	_, seen, err = w.ask(httpPort, w.as(t, buyer), "/books/3", "Traceparent", "00-"+trace+"-"+id+"-01")
	if err != nil {
		t.Fatal(err)
	}
	if s := next(); s.TraceID != trace || seen.Header.Get("Traceparent") != "00-"+trace+"-"+s.ID+"-01" {
		t.Errorf("the span of a client's is %+v, and the application sees %v", s, seen.Header)
	}
	// The client's sampling decision takes precedence over the sampling rate.
	_, seen, err = w.ask(httpPort, w.as(t, buyer), "/books/4", "B3", trace+"-"+id+"-0")
	if err != nil || seen.Header.Get("X-B3-Sampled") != "0" {
		t.Errorf("the application sees %v, %v", seen.Header, err)
	}
	w.apply(t, traced(0))
	if _, seen, err = w.ask(httpPort, w.as(t, buyer), "/books/5"); err != nil || seen.Header.Get("X-B3-Sampled") != "0" {
		t.Errorf("the application sees %v, %v", seen.Header, err)
	}
	_, _, err = w.ask(httpPort, w.as(t, buyer), "/books/6", "X-B3-Traceid", trace, "X-B3-Spanid", id, "X-B3-Sampled", "1")
	if s := next(); err != nil || s.Tags["http.url"] != "http://books.example.com/books/6" {
		t.Errorf("a span other than the last was sent: %+v, %v", s, err)
	}
}
