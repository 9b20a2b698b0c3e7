package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// spanLine is a line as HAProxy writes it.
const spanLine = `<30>1 2026-11-24T22:54:44Z - haproxy 1 - {"traceId":%q,"id":"b7ad6b7169203331","parentId":%q,"kind":"SERVER","shared":"true","name":"books","start":"1795560884000000","end":"1795560884000250","status":%d,"tags":{"peer":"a\"b","empty":""}} raw 92` + "\n"

const longTrace, shortTrace, parentSpan = "0af7651916cd43dd8448eb211c80319c", "8448eb211c80319c", "00f067aa0ba902b7"

// tracedPod is a pod whose proxy writes the lines of a file as spans.
type tracedPod struct {
	*pod
	files *repositoryServer
}

func newTracedPod(t *testing.T, collector agentspec.Collector) *tracedPod {
	t.Helper()
	p := &tracedPod{pod: newPod(t)}
	p.write("lines", "Proxy f stopped\n")
	p.spec.ReadyURL, p.spec.Command = "", []string{"sh", "-c", "exec tail -n +1 -f " + p.path("lines") + " >&$" + agentspec.EnvSpans}
	p.files = mirrored(p.pod)
	p.spec.Spans = &agentspec.Spans{Collector: "collector.json"}
	p.collect(collector)
	p.serve()
	p.files.serve()
	p.start()
	p.untilReady()
	return p
}

// collect changes the collector.
func (p *tracedPod) collect(collector agentspec.Collector) {
	p.t.Helper()
	text, err := json.Marshal(collector)
	if err != nil {
		p.t.Fatal(err)
	}
	p.files.set("collector.json", string(text))
}

// span lets the proxy write a span, and one that is not sampled.
func (p *tracedPod) span(trace, parent string, status int) {
	p.t.Helper()
	p.writeLine(fmt.Sprintf(spanLine, "", "", 200) + fmt.Sprintf(spanLine, trace, parent, status))
}

func (p *tracedPod) writeLine(line string) {
	p.t.Helper()
	fd, err := unix.Open(p.path("lines"), unix.O_APPEND|unix.O_WRONLY, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(line))
		unix.Close(fd)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *tracedPod) untilCounted(result string, n float64) {
	p.t.Helper()
	name := fmt.Sprintf("outrigger_agent_spans_total{result=%q}", result)
	p.until(fmt.Sprintf("%s is %v", name, n), func() bool { return p.number(name) == n })
}

// TestSpansForZipkin also lets the collector fail and come back.
func TestSpansForZipkin(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	status := http.StatusAccepted
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var spans []json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&spans); err != nil || r.URL.Path != "/api/v2/spans" || r.Method != http.MethodPost {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		for _, span := range spans {
			got = append(got, string(span))
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	to := agentspec.Collector{Protocol: "zipkin", Address: server.Listener.Addr().String(), Path: "/api/v2/spans", Service: "books.shop", IP: "10.1.2.3", Tags: map[string]string{"component": "proxy"}}
	p := newTracedPod(t, to)
	p.span(longTrace, parentSpan, 503)
	p.untilCounted("sent", 1)
	const want = `{"traceId":"0af7651916cd43dd8448eb211c80319c","id":"b7ad6b7169203331","parentId":"00f067aa0ba902b7","kind":"SERVER","shared":true,"name":"books","timestamp":1795560884000000,"duration":250,` +
		`"localEndpoint":{"serviceName":"books.shop","ipv4":"10.1.2.3"},"tags":{"component":"proxy","error":"true","http.status_code":"503","peer":"a\"b"}}`
	mu.Lock()
	if len(got) != 1 || got[0] != want {
		t.Errorf("the collector got %s, want %s", got, want)
	}
	status = http.StatusServiceUnavailable
	mu.Unlock()
	p.span(longTrace, "", 200)
	p.untilCounted("lost", 1)
	p.until("the log says that spans are lost", func() bool { return strings.Contains(p.log.String(), "spans are lost") })
	// A bad span must not spoil others, and lines that are none are skipped.
	mu.Lock()
	status = http.StatusOK
	mu.Unlock()
	p.writeLine("{\n" + fmt.Sprintf(spanLine, "nohex", "", 200) + "no span\n" + strings.Repeat("{", 100<<10) + "\n")
	p.span(shortTrace, "", 200)
	p.untilCounted("sent", 2)
	mu.Lock()
	if last := got[len(got)-1]; !strings.Contains(last, shortTrace) || strings.Contains(last, "error") || strings.Contains(last, "parentId") {
		t.Errorf("the last span is %s", last)
	}
	mu.Unlock()
	to.Address = "127.0.0.1:1"
	p.collect(to)
	p.until("the collector has changed", func() bool { return strings.Contains(p.read("files/collector.json"), to.Address) })
	lost := p.number(`outrigger_agent_spans_total{result="lost"}`)
	p.span(longTrace, "", 200)
	p.untilCounted("lost", lost+1)
}

func TestSpansForOTLP(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spans := make(chan *tracev1.ResourceSpans, 10)
	var mu sync.Mutex
	var rejected []byte
	// TracesData has the same fields as the request of the collector's service, and the answer
	// of those that are used here: a message with the number of rejected spans.
	export := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		traces := new(tracev1.TracesData)
		if err := decode(traces); err != nil {
			return nil, err
		}
		for _, r := range traces.ResourceSpans {
			spans <- r
		}
		mu.Lock()
		defer mu.Unlock()
		answer := new(tracev1.TracesData)
		answer.ProtoReflect().SetUnknown(rejected)
		return proto.Message(answer), nil
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: export}},
	}, nil)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	p := newTracedPod(t, agentspec.Collector{Protocol: "otlp", Address: listener.Addr().String(), Service: "books.shop", Tags: map[string]string{"component": "proxy"}})
	p.span(shortTrace, parentSpan, 0)
	select {
	case r := <-spans:
		span, tags := r.ScopeSpans[0].Spans[0], map[string]string{}
		for _, a := range span.Attributes {
			tags[a.Key] = a.Value.GetStringValue()
		}
		if r.Resource.Attributes[0].Key != "service.name" || r.Resource.Attributes[0].Value.GetStringValue() != "books.shop" ||
			hex.EncodeToString(span.TraceId) != "0000000000000000"+shortTrace || hex.EncodeToString(span.SpanId) != "b7ad6b7169203331" || hex.EncodeToString(span.ParentSpanId) != parentSpan ||
			span.Name != "books" || span.Kind != tracev1.Span_SPAN_KIND_SERVER || span.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR ||
			span.StartTimeUnixNano != 1795560884000000000 || span.EndTimeUnixNano != 1795560884000250000 || tags["component"] != "proxy" || tags["peer"] != `a"b` || len(tags) != 3 {
			t.Errorf("the collector got %v", r)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the collector got no span: ", p.log)
	}
	p.untilCounted("sent", 1)
	mu.Lock()
	rejected = kit.AppendField(nil, 1, append([]byte{8, 1}, kit.AppendField(nil, 2, []byte("too old"))...))
	mu.Unlock()
	p.span(longTrace, "", 200)
	p.untilCounted("lost", 1)
	p.until("the log says why spans were rejected", func() bool { return strings.Contains(p.log.String(), "too old") })
	server.Stop()
	p.span(longTrace, "", 200)
	p.untilCounted("lost", 2)
}
