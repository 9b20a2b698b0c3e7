package behaviour

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// traces are the services that have sent spans, by the ID of the trace.
type traces struct {
	mu       sync.Mutex
	services map[string]map[string]bool
}

func (s *traces) add(trace, service string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services[trace] == nil {
		s.services[trace] = map[string]bool{}
	}
	s.services[trace][service] = true
}

// await sends requests until one trace has spans of two services.
func (s *traces) await(t *testing.T, w *testMesh) {
	t.Helper()
	w.eventually(t, func() error {
		if _, err := w.send(w.pod(t, "users/web"), request{url: cartV1}); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, of := range s.services {
			if len(of) >= 2 {
				return nil
			}
		}
		return fmt.Errorf("no trace has spans of two proxies: %v", s.services)
	})
}

// testTraces collects spans as Zipkin does.
func testTraces(t *testing.T, w *testMesh) {
	seen := &traces{services: map[string]map[string]bool{}}
	listener := listenOn(t, w.Lab().Node(), net.JoinHostPort(nodeAddress, "9411"))
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		var spans []struct {
			TraceID       string `json:"traceId"`
			LocalEndpoint struct {
				ServiceName string `json:"serviceName"`
			} `json:"localEndpoint"`
		}
		if err := json.NewDecoder(r.Body).Decode(&spans); err == nil {
			for _, s := range spans {
				seen.add(s.TraceID, s.LocalEndpoint.ServiceName)
			}
		}
		out.WriteHeader(http.StatusAccepted)
	})}
	go server.Serve(listener)
	defer server.Close()
	w.configure(t, "", `tracing: {enable: true, address: "`+nodeAddress+`", port: 9411, sampledFraction: "1.0"}`)
	seen.await(t, w)
}

// testOTLPTraces collects spans as OpenTelemetry's collector does.
func testOTLPTraces(t *testing.T, w *testMesh) {
	seen := &traces{services: map[string]map[string]bool{}}
	// TracesData has the same fields as the request of the collector's service.
	export := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		sent := new(tracev1.TracesData)
		if err := decode(sent); err != nil {
			return nil, err
		}
		for _, r := range sent.ResourceSpans {
			service := ""
			for _, a := range r.Resource.GetAttributes() {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, scope := range r.ScopeSpans {
				for _, span := range scope.Spans {
					seen.add(hex.EncodeToString(span.TraceId), service)
				}
			}
		}
		return new(tracev1.TracesData), nil
	}
	listener := listenOn(t, w.Lab().Node(), net.JoinHostPort(nodeAddress, "4317"))
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: export}},
	}, nil)
	go server.Serve(listener)
	defer server.Stop()
	w.configure(t, "", `tracing: {enable: true, protocol: OTLP, address: "`+nodeAddress+`", sampledFraction: "1.0"}`)
	seen.await(t, w)
}
