package haproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// spansOf returns the spans that the proxy has written.
func (r *running) spansOf() []agentspec.Span {
	var spans []agentspec.Span
	for line := range strings.Lines(r.spans.String()) {
		at := strings.IndexByte(line, '{')
		if at < 0 || !strings.HasSuffix(line, "\n") {
			continue
		}
		var span agentspec.Span
		if err := json.NewDecoder(strings.NewReader(line[at:])).Decode(&span); err != nil {
			r.t.Errorf("the line %q: %v", line, err)
		}
		if span.TraceID != "" {
			spans = append(spans, span)
		}
	}
	return spans
}

// spanWith waits for the span of the request with the path.
func (r *running) spanWith(path string) agentspec.Span {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, span := range r.spansOf() {
			if strings.HasSuffix(span.Tags["http.url"], path) {
				return span
			}
		}
	}
	r.t.Fatalf("there is no span of %s in %q", path, r.spans)
	return agentspec.Span{}
}

// traced is the trace of a request as its headers and its span describe it.
type traced struct{ trace, id, parent, sampled string }

func b3Of(h http.Header) traced {
	return traced{h.Get("X-B3-Traceid"), h.Get("X-B3-Spanid"), h.Get("X-B3-Parentspanid"), h.Get("X-B3-Sampled")}
}

const (
	traceID  = "0af7651916cd43dd8448eb211c80319c"
	short    = "8448eb211c80319c"
	parentID = "b7ad6b7169203331"
	grandID  = "00f067aa0ba902b7"
)

// TestTraces sends requests with each kind of trace headers through the proxies of a client
// and of a server.
func TestTraces(t *testing.T) {
	ca := newAuthority(t)
	a, p := newApp(t), newPeer(t, ca, store)
	f := newFixture(store)
	f.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}}
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	dir := t.TempDir()
	ca.writeTo(dir, store)
	paths := 0
	for _, logged := range []bool{true, false} {
		for _, protocol := range []string{"zipkin", "otlp"} {
			f.settings.AccessLog = mesh.AccessLog{Enabled: logged, Sampled: mesh.EverythingSampled}
			f.settings.Tracing = &mesh.Tracing{Protocol: protocol, Host: "127.0.0.1", Port: 9411, Sampled: 1_000_000}
			r := start(t, dir, f.view()).awaitReady()
			for _, kind := range []string{"CLIENT", "SERVER"} {
				for name, tt := range map[string]struct {
					header []string
					// trace and parent are what the span continues, and grand the parent of that.
					trace, parent, grand string
					unsampled, w3c       bool
				}{
					"none":           {},
					"decision alone": {header: []string{"X-B3-Sampled", "0"}},
					"b3":             {header: []string{"X-B3-Traceid", traceID, "X-B3-Spanid", parentID, "X-B3-Sampled", "1"}, trace: traceID, parent: parentID},
					"undecided":      {header: []string{"X-B3-Traceid", traceID, "X-B3-Spanid", parentID}, trace: traceID, parent: parentID},
					"debug":          {header: []string{"X-B3-Traceid", traceID, "X-B3-Spanid", parentID, "X-B3-Sampled", "0", "X-B3-Flags", "1"}, trace: traceID, parent: parentID},
					"with a parent":  {header: []string{"X-B3-Traceid", short, "X-B3-Spanid", parentID, "X-B3-Parentspanid", grandID, "X-B3-Sampled", "true"}, trace: short, parent: parentID, grand: grandID},
					"unsampled":      {header: []string{"X-B3-Traceid", traceID, "X-B3-Spanid", parentID, "X-B3-Sampled", "0"}, trace: traceID, parent: parentID, unsampled: true},
					"one header":     {header: []string{"B3", traceID + "-" + parentID + "-d-" + grandID}, trace: traceID, parent: parentID, grand: grandID},
					"one, unsampled": {header: []string{"B3", traceID + "-" + parentID + "-0"}, trace: traceID, parent: parentID, unsampled: true},
					"no id":          {header: []string{"X-B3-Traceid", "x", "X-B3-Spanid", parentID, "X-B3-Sampled", "1"}},
					"w3c":            {header: []string{"Traceparent", "00-" + traceID + "-" + parentID + "-01"}, trace: traceID, parent: parentID, w3c: true},
					"w3c, unsampled": {header: []string{"Traceparent", "00-" + traceID + "-" + parentID + "-02"}, trace: traceID, parent: parentID, unsampled: true, w3c: true},
					"no w3c":         {header: []string{"Traceparent", "00-" + traceID + "-" + parentID}, w3c: true},
					"b3 and w3c":     {header: []string{"Traceparent", "00-" + traceID + "-" + grandID + "-00", "B3", short + "-" + parentID + "-1"}, trace: short, parent: parentID, w3c: true},
				} {
					what := fmt.Sprintf("%s, %s, logged %t: %s", protocol, kind, logged, name)
					if protocol == "otlp" {
						// B3 is not for OTLP.
						if name == "b3 and w3c" {
							tt.trace, tt.parent, tt.unsampled = traceID, grandID, true
						} else if !tt.w3c {
							tt.trace, tt.parent, tt.unsampled = "", "", false
						}
						tt.grand = ""
					}
					c := client(r.outbound, storeAddress, nil, paths%2 == 0)
					if kind == "SERVER" {
						c = client(r.inbound, local(a.http), ca.as(buyer, store, []string{"h2", "http/1.1"}[paths%2]), paths%2 == 0)
					}
					paths++
					path := fmt.Sprint("/traced/", paths)
					response, got, err := ask(c, path, append(tt.header, "X-Request-Id", path, "User-Agent", `a"b\`)...)
					if err != nil || response.StatusCode != 200 {
						t.Fatalf("%s: %v, %v", what, response, err)
					}
					passed := got.Header.Get("Traceparent")
					sampled := map[bool]string{true: "0", false: "1"}[tt.unsampled]
					is := b3Of(got.Header)
					if protocol == "otlp" {
						words := strings.Split(passed, "-")
						if len(words) != 4 || words[0] != "00" {
							t.Fatalf("%s: the traceparent is %q", what, passed)
						}
						is = traced{words[1], words[2], tt.parent, strings.TrimPrefix(words[3], "0")}
					} else if want := fmt.Sprintf("00-%032s-%s-0%s", is.trace, is.id, is.sampled); tt.w3c != (passed == want) || !tt.w3c && passed != "" || got.Header.Get("B3") != "" || got.Header.Get("X-B3-Flags") != "" {
						t.Errorf("%s: the traceparent is %q, beside %+v; the headers are %v", what, passed, is, got.Header)
					}
					want := traced{tt.trace, is.id, tt.parent, sampled}
					if kind == "SERVER" && protocol == "zipkin" && tt.trace != "" {
						want.id, want.parent = tt.parent, tt.grand
					}
					if want.trace == "" {
						want.trace = is.trace
					}
					if is != want || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(is.id) || is.id == tt.parent != (want.id == tt.parent) || len(is.trace) != 16 && len(is.trace) != 32 {
						t.Errorf("%s: the trace is %+v, want %+v", what, is, want)
					}
					if tt.unsampled {
						continue
					}
					span := r.spanWith(path)
					begin, _ := strconv.ParseInt(span.Start, 10, 64)
					end, _ := strconv.ParseInt(span.End, 10, 64)
					if in := (traced{span.TraceID, span.ID, span.ParentID, sampled}); in != want || span.Kind != kind || (span.Shared != "") != (want.id == tt.parent && tt.parent != "") ||
						span.Status != 200 || span.Name != "books.example.com" || end < begin || time.Since(time.UnixMicro(begin)).Abs() > time.Minute || time.UnixMicro(end).Sub(time.UnixMicro(begin)) > time.Minute {
						t.Errorf("%s: the span is %+v, want %+v", what, span, want)
					}
					peer := map[string]string{"CLIENT": store.String(), "SERVER": buyer.String()}[kind]
					for tag, want := range map[string]string{"peer": peer, "http.method": "GET", "user_agent": `a"b\`, "guid:x-request-id": path, "http.url": "http://books.example.com" + path} {
						if span.Tags[tag] != want {
							t.Errorf("%s: the tag %s is %q, want %q", what, tag, span.Tags[tag], want)
						}
					}
				}
			}
			for _, span := range r.spansOf() {
				if strings.Contains(r.log.String(), span.TraceID) != logged {
					t.Fatalf("the trace's id is in the access log: %t", !logged)
				}
			}
		}
	}
}

// TestNoSpanIsLostInAReload reloads the proxy under load. Each request has one span.
func TestNoSpanIsLostInAReload(t *testing.T) {
	// A thread of HAProxy gives up a line if another one writes at the same time for too long,
	// with a reload or without: about one in 25,000.
	t.Setenv(agentspec.EnvConcurrency, "1")
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	f := newFixture(buyer)
	f.settings.AccessLog = mesh.AccessLog{}
	f.settings.Tracing = &mesh.Tracing{Protocol: "zipkin", Host: "127.0.0.1", Port: 9411, Sampled: 1_000_000}
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	r := runOutbound(t, ca, f)
	var requests atomic.Int64
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			c := client(r.outbound, storeAddress, nil, i%2 == 0)
			defer c.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				if response, _, err := keepAsking(c, "GET", fmt.Sprintf("/%d", requests.Add(1))); err != nil || response.StatusCode != 200 {
					t.Errorf("client %d: %v, %v", i, response, err)
				}
			}
		})
	}
	for range 3 {
		r.reload()
		time.Sleep(200 * time.Millisecond)
	}
	close(stop)
	group.Wait()
	spans, want := len(r.spansOf()), int(requests.Load())
	for deadline := time.Now().Add(10 * time.Second); spans < want && time.Now().Before(deadline); spans = len(r.spansOf()) {
		time.Sleep(50 * time.Millisecond)
	}
	if spans != want || want < 50 {
		seen := map[string]int{}
		for _, s := range r.spansOf() {
			seen[s.Tags["http.url"]]++
			if seen[s.Tags["http.url"]] > 1 {
				t.Errorf("%+v", s)
			}
		}
		t.Errorf("%d requests have %d spans", want, spans)
	}
}
