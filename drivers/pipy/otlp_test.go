package pipy

import (
	"context"
	"encoding/hex"
	"net/http"
	"testing"
	"time"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// collect serves OpenTelemetry's collector at the node's port 4317, and returns the spans
// that it receives, each with the resource that it belongs to.
func (s *pipyPod) collect(t *testing.T) <-chan *tracev1.ResourceSpans {
	t.Helper()
	listener, err := s.lab.Node().Listen(t.Context(), "tcp", "198.18.0.1:4317")
	if err != nil {
		t.Fatal(err)
	}
	spans := make(chan *tracev1.ResourceSpans, 100)
	// TracesData has the same fields as the request of the collector's service.
	export := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		traces := new(tracev1.TracesData)
		if err := decode(traces); err != nil {
			t.Errorf("the request: %v", err)
			return nil, err
		}
		for _, r := range traces.ResourceSpans {
			for _, span := range r.ScopeSpans[0].Spans {
				spans <- &tracev1.ResourceSpans{Resource: r.Resource, ScopeSpans: []*tracev1.ScopeSpans{{Spans: []*tracev1.Span{span}}}}
			}
		}
		return proto.Message(new(tracev1.TracesData)), nil
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: export}},
	}, nil)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return spans
}

func nextSpan(t *testing.T, spans <-chan *tracev1.ResourceSpans) (service string, span *tracev1.Span, tags map[string]string) {
	t.Helper()
	select {
	case r := <-spans:
		span, tags = r.ScopeSpans[0].Spans[0], map[string]string{}
		for _, a := range span.Attributes {
			tags[a.Key] = a.Value.GetStringValue()
		}
		return r.Resource.Attributes[0].Value.GetStringValue(), span, tags
	case <-time.After(20 * time.Second):
		t.Fatal("no span was sent")
		return "", nil, nil
	}
}

func TestOTLPTracing(t *testing.T) {
	traced := func(_ *mesh.Proxy, s *mesh.Settings) {
		s.Tracing = &mesh.Tracing{Protocol: "otlp", Host: "198.18.0.1", Port: 4317, Sampled: 1_000_000}
	}
	w := startWorkload(t, inboundView(strictInbound(), traced))
	spans := w.collect(t)
	begun := time.Now()
	_, seen, err := w.ask(httpPort, w.as(t, buyer), "/books/1")
	if err != nil {
		t.Fatal(err)
	}
	service, span, tags := nextSpan(t, spans)
	trace, id := hex.EncodeToString(span.TraceId), hex.EncodeToString(span.SpanId)
	if want := "00-" + trace + "-" + id + "-01"; len(trace) != 32 || len(id) != 16 || seen.Header.Get("Traceparent") != want || seen.Header.Get("X-B3-Traceid") != "" {
		t.Errorf("the application gets the headers %v, want the traceparent %s", seen.Header, want)
	}
	start, end := time.Unix(0, int64(span.StartTimeUnixNano)), time.Unix(0, int64(span.EndTimeUnixNano))
	if service != "bookstore.bookstore" || span.Kind != tracev1.Span_SPAN_KIND_SERVER || len(span.ParentSpanId) != 0 || span.Status != nil ||
		start.Before(begun.Add(-time.Second)) || end.Before(start) || end.After(time.Now().Add(time.Second)) ||
		tags["http.status_code"] != "200" || tags["peer"] != buyer.String() || tags["k8s.pod.name"] != "bookstore-1" {
		t.Errorf("the span of %s is %v", service, span)
	}
	const parent, parentID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	_, _, err = w.ask(nobodyPort, w.as(t, buyer), "/", "Traceparent", "00-"+parent+"-"+parentID+"-01", "X-B3-Sampled", "0")
	if _, span, _ = nextSpan(t, spans); err != nil || hex.EncodeToString(span.TraceId) != parent || hex.EncodeToString(span.ParentSpanId) != parentID ||
		hex.EncodeToString(span.SpanId) == parentID || span.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR {
		t.Errorf("the span of a client's that fails is %v, %v", span, err)
	}
	// The client's decision takes precedence over the sampling rate, and a collector that
	// is not there has no effect on requests.
	_, seen, err = w.ask(httpPort, w.as(t, buyer), "/books/2", "Traceparent", "00-"+parent+"-"+parentID+"-00")
	if got := seen.Header.Get("Traceparent"); err != nil || len(got) != 55 || got[:36] != "00-"+parent+"-" || got[52:] != "-00" {
		t.Errorf("the application gets the traceparent %q, %v", got, err)
	}
	w.apply(t, inboundView(strictInbound(), func(_ *mesh.Proxy, s *mesh.Settings) {
		s.Tracing = &mesh.Tracing{Protocol: "otlp", Host: "nowhere.invalid", Port: 4317, Sampled: 1_000_000}
	}))
	for range 3 {
		if response, _, err := w.ask(httpPort, w.as(t, buyer), "/books/3"); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("without a collector the answer is %v, %v", response, err)
		}
	}
	select {
	case got := <-spans:
		t.Errorf("the collector got %v", got)
	case <-time.After(2 * time.Second):
	}
}

func TestOTLPTracingOfClients(t *testing.T) {
	b := newViewBuilder()
	b.settings.Tracing = &mesh.Tracing{Protocol: "otlp", Host: "198.18.0.1", Port: 4317, Sampled: 1_000_000}
	s := startPod(t, b.view())
	spans := s.collect(t)
	got := make(chan string, 1)
	b.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Traceparent")
	})), storeName))
	s.apply(t, b.view())
	if status, _ := s.get(t, "http://10.96.0.1/"); status != http.StatusOK {
		t.Fatalf("the answer is %d", status)
	}
	service, span, _ := nextSpan(t, spans)
	if want := "00-" + hex.EncodeToString(span.TraceId) + "-" + hex.EncodeToString(span.SpanId) + "-01"; service != "bookbuyer.bookbuyer" || span.Kind != tracev1.Span_SPAN_KIND_CLIENT || <-got != want {
		t.Errorf("the span of %s is %v, and the server got another traceparent than %s", service, span, want)
	}
}
