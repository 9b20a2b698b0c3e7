package haproxy

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// grpcStatus sends a gRPC call, and returns the status that a client of gRPC sees.
func grpcStatus(t *testing.T, c *http.Client, target string) string {
	t.Helper()
	request, err := http.NewRequest("POST", target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "books.example.com"
	request.Header.Set("Content-Type", "application/grpc+proto")
	response, err := c.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 || len(body) > 0 || response.Header.Get("Content-Type") != "application/grpc" {
		t.Errorf("%s gives %d %v with the body %q, %v", target, response.StatusCode, response.Header, body, err)
	}
	return response.Header.Get("Grpc-Status")
}

// TestAnswersToGRPC checks that HAProxy's own answers are statuses of gRPC for its clients.
func TestAnswersToGRPC(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	p.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		time.Sleep(time.Second)
		return false
	}
	f := newFixture(buyer)
	service := servicePort("bookstore", 80)
	d := f.service(service, mesh.GRPC, "10.96.0.10", backend(service, mesh.GRPC, store, p.address), backend(servicePort("closed", 80), mesh.GRPC, store, "127.0.0.1:1"))
	route := func(path, backend string) mesh.Route {
		return mesh.Route{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: path}}, Backends: []mesh.WeightedBackend{{Backend: backend, Weight: 1}}}
	}
	slow, tried := route("/slow", service.String()), route("/tried", servicePort("closed", 80).String())
	slow.Timeout = 200 * time.Millisecond
	tried.Retry = &mesh.Retry{On: []string{"5xx"}, Attempts: 1, Backoff: time.Millisecond}
	d.Routes = []mesh.Route{slow, tried, route("/invalid", ""), {Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/none"}}}, route("/closed", servicePort("closed", 80).String())}
	r := runOutbound(t, ca, f)
	c := client(r.outbound, storeAddress, nil, true)
	for path, want := range map[string]string{"/slow": "4", "/tried": "14", "/invalid": "14", "/none": "14", "/closed": "14", "/other": "12"} {
		if got := grpcStatus(t, c, "http://books.example.com"+path); got != want {
			t.Errorf("%s gives %s, want %s", path, got, want)
		}
	}

	a := newApp(t)
	s := strict(a)
	for i := range s.inbound.Ports {
		if s.inbound.Ports[i].Port == a.other {
			s.inbound.Ports[i].Access = anyone
			s.inbound.Ports[i].Limits.Requests = &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Interval: time.Hour}, AddHeaders: []mesh.Header{{Name: "x-limit", Value: "a"}}}
		}
	}
	in, inner := runInbound(t, s)
	if got := grpcStatus(t, client(in.inbound, local(a.http), inner.as(ops, store, "h2"), true), "https://books.example.com/denied"); got != "7" {
		t.Errorf("a call that is not allowed gives %s, want 7", got)
	}
	if got := grpcStatus(t, client(in.inbound, local(a.other), inner.as(ops, store, "h2"), true), "https://books.example.com/limited"); got != "14" {
		t.Errorf("a call over the limit gives %s, want 14", got)
	}
}
