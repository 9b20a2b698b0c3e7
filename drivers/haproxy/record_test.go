package haproxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// recordsOf returns the records of requests from a reporter, by status code and reason. The
// proxy writes each line twice.
func (r *running) recordsOf(reporter string) map[string]int {
	r.t.Helper()
	seen, out := map[string]bool{}, map[string]int{}
	for line := range strings.Lines(r.spans.String()) {
		_, line, _ = strings.Cut(line, "line=")
		id, line, _ := strings.Cut(line, " ")
		_, record, _ := strings.Cut(line, "record=")
		fields := strings.Split(record, ";")
		if len(fields) < 12 || seen[id] || fields[4] != reporter || fields[5] != telemetry.HTTP {
			continue
		}
		seen[id] = true
		reason, _, _ := strings.Cut(fields[11], " ")
		out[strings.TrimSpace(fields[6]+" "+reason)]++
	}
	return out
}

// TestStoppingProcessCounts sends requests over connections to a process that has stopped
// because of a reload. It refuses some of them itself and passes the others on.
func TestStoppingProcessCounts(t *testing.T) {
	t.Setenv(agentspec.EnvRecords, "3")
	a := newApp(t)
	s := newFixture(store)
	s.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: access(permission("books", []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/books"}}}, buyer))}}
	server, ca := runInbound(t, s)
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, redirected(t, server.inbound, a.http)))
	d.Routes[0].Match.Path.Prefix = "/"
	d.Routes[0].Match.Methods = []string{"GET"}
	r := runOutbound(t, ca, f)

	for _, tt := range []struct {
		what             string
		on               *running
		reporter, record string
		listener         uint16
		address          string
		method, path     string
		status           int
	}{
		{"refused by the server", server, telemetry.ReporterDestination, "403 access", 0, "", "GET", "/other", http.StatusForbidden},
		{"passed on by the server", server, telemetry.ReporterDestination, "200", 0, "", "GET", "/books", http.StatusOK},
		{"refused by the client", r, telemetry.ReporterSource, "404 no_route", r.outbound, storeAddress, "PUT", "/books", http.StatusNotFound},
		{"passed on by the client", r, telemetry.ReporterSource, "200", r.outbound, storeAddress, "GET", "/books", http.StatusOK},
	} {
		c := client(server.inbound, local(a.http), ca.as(buyer, store), false)
		if tt.listener != 0 {
			c = client(tt.listener, tt.address, nil, false)
		}
		defer c.CloseIdleConnections()
		if response, _, err := keepAsking(c, "GET", "/books"); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: the first answer is %v, %v", tt.what, response, err)
		}
		tt.on.reload()
		before := tt.on.recordsOf(tt.reporter)[tt.record]
		if response, _, err := keepAsking(c, tt.method, tt.path); err != nil || response.StatusCode != tt.status {
			t.Fatalf("%s: the answer is %v, %v, want %d", tt.what, response, err, tt.status)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if grown := tt.on.recordsOf(tt.reporter)[tt.record] - before; grown == 1 {
				break
			} else if time.Now().After(deadline) {
				t.Errorf("%s: there are %d more records of %q, want 1; all are %v", tt.what, grown, tt.record, tt.on.recordsOf(tt.reporter))
				break
			}
		}
	}
}
