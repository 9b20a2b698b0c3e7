package haproxy

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// lines returns the lines of the access log.
func (r *running) lines() []map[string]any {
	var out []map[string]any
	for line := range strings.Lines(r.log.String()) {
		var fields map[string]any
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &fields) == nil {
			out = append(out, fields)
		}
	}
	return out
}

// logs waits until the access log has so many lines of requests with the path and status code,
// which all have the reason.
func (r *running) logs(count int, path string, status int, reason string) {
	r.t.Helper()
	var all []map[string]any
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		all = slices.DeleteFunc(r.lines(), func(fields map[string]any) bool {
			return fields["path"] != path || fmt.Sprint(fields["response_code"]) != fmt.Sprint(status)
		})
		if len(all) == count {
			break
		}
	}
	if len(all) != count || slices.ContainsFunc(all, func(fields map[string]any) bool { return fields["reason"] != reason }) {
		r.t.Errorf("of %s with status code %d there are %v, want %d lines with the reason %q", path, status, all, count, reason)
	}
}

// TestAccessLogOfErrors checks which requests a server has lines about, and that all of them
// have records.
func TestAccessLogOfErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		log                mesh.AccessLog
		successes, refused int
	}{
		"all": {mesh.FullAccessLog(), 5, 5}, "errors": {mesh.AccessLog{Enabled: true}, 0, 5}, "none": {mesh.AccessLog{}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(agentspec.EnvRecords, "3")
			a := newApp(t)
			a.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/books/broken" {
					w.WriteHeader(http.StatusInternalServerError)
				}
				return r.URL.Path == "/books/broken"
			}
			s := newFixture(store)
			s.settings.AccessLog = tt.log
			s.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP,
				Access: access(permission("books", []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/books"}}}, buyer)),
				Limits: mesh.RateLimits{Routes: []mesh.RouteLimit{{Path: "/books/limited", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 5, Interval: time.Hour}}}}},
			}, {Port: 1, Protocol: mesh.HTTP, Access: anyone}}
			r, ca := runInbound(t, s)
			send := func(port uint16, path string, times int) {
				for range times {
					if _, _, err := ask(client(r.inbound, local(port), ca.as(buyer, store), false), path); err != nil {
						t.Fatal(err)
					}
				}
			}
			send(a.http, "/books/1", 5)
			send(a.http, "/other", 5)
			send(a.http, "/books/limited", 10)
			send(a.http, "/books/broken", 5)
			send(1, "/unreachable", 5)
			r.logs(tt.refused, "/other", 403, telemetry.ReasonAccess)
			r.logs(tt.refused, "/books/limited", 429, telemetry.ReasonRateLimit)
			r.logs(tt.refused, "/books/broken", 500, "")
			r.logs(tt.refused, "/unreachable", 503, telemetry.ReasonNoEndpoint)
			r.logs(tt.successes, "/books/1", 200, "")
			want := map[string]int{"200": 10, "403 access": 5, "429 rate_limit": 5, "500": 5, "503 no_endpoint": 5}
			for deadline := time.Now().Add(5 * time.Second); fmt.Sprint(r.recordsOf(telemetry.ReporterDestination)) != fmt.Sprint(want); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the records are %v, want %v", r.recordsOf(telemetry.ReporterDestination), want)
				}
			}
		})
	}
}

// TestAccessLogOfAShare checks that about half of the requests and connections have a line.
func TestAccessLogOfAShare(t *testing.T) {
	a := newApp(t)
	s := newFixture(store)
	s.settings.AccessLog = mesh.AccessLog{Enabled: true, Sampled: mesh.EverythingSampled / 2}
	s.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}, {Port: a.greeter, Protocol: mesh.TCPServerFirst, Access: anyone}}
	r, ca := runInbound(t, s)
	c := client(r.inbound, local(a.http), ca.as(buyer, store), false)
	defer c.CloseIdleConnections()
	const requests, connections = 400, 100
	for range requests {
		if _, _, err := keepAsking(c, "GET", "/"); err != nil {
			t.Fatal(err)
		}
	}
	for range connections {
		if _, err := hello(r.inbound, local(a.greeter), ca.as(buyer, store)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	ofRequests := 0
	for _, fields := range r.lines() {
		if fields["path"] == "/" {
			ofRequests++
		}
	}
	// These bounds are five standard deviations away.
	if ofRequests < 150 || ofRequests > 250 {
		t.Errorf("%d of %d requests have a line, want about half", ofRequests, requests)
	}
	if n := len(r.lines()) - ofRequests; n < 25 || n > 75 {
		t.Errorf("%d of %d connections have a line, want about half", n, connections)
	}
}

// TestAccessLogOfAuthorization checks that what the external authorization refuses has a line at
// every level but none, whether the service or its failure is the reason.
func TestAccessLogOfAuthorization(t *testing.T) {
	for name, tt := range map[string]struct {
		log              mesh.AccessLog
		allowed, refused int
	}{
		"all": {mesh.FullAccessLog(), 3, 3}, "errors": {mesh.AccessLog{Enabled: true}, 0, 3},
		"a share": {mesh.AccessLog{Enabled: true, Sampled: 1}, 0, 3}, "none": {mesh.AccessLog{}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, j := newApp(t), new(judge)
			port, stop := j.serve(t, "127.0.0.1:0")
			s := authorized(a, port, false)
			s.settings.AccessLog = tt.log
			r, ca := runInbound(t, s)
			w := ticket{r, ca, a}
			send := func(path string, status int, header ...string) {
				for range 3 {
					if response, _, err := w.ask("http/1.1", path, header...); err != nil || response.StatusCode != status {
						t.Fatalf("%s gets %v, %v, want %d", path, response, err, status)
					}
				}
			}
			send("/books/allowed", 200, "x-case", "allow")
			send("/books/denied", 403, "x-case", "deny")
			stop()
			send("/books/unanswered", 403)
			r.logs(tt.refused, "/books/denied", 403, telemetry.ReasonAuthorization)
			r.logs(tt.refused, "/books/unanswered", 403, telemetry.ReasonAuthorization)
			r.logs(tt.allowed, "/books/allowed", 200, "")
		})
	}
}

// await waits until something holds.
func (r *running) await(what string, holds func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Errorf("there is no %s; the lines are %v and the records are\n%s", what, r.lines(), r.spans)
			return
		}
	}
}

// TestLogOfUnknownHosts lets an application open TLS to a host that an Egress allows by a wildcard,
// and that has no address.
func TestLogOfUnknownHosts(t *testing.T) {
	t.Setenv(agentspec.EnvRecords, "3")
	f := newFixture(buyer)
	f.egress.Ports = []mesh.EgressRoutes{{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "*.invalid", Matches: anyRequest}}}}
	r := runOutbound(t, newAuthority(t), f)
	if got, err := hello(r.outbound, "192.0.2.1:443", &tls.Config{ServerName: "any.invalid", InsecureSkipVerify: true}); err == nil {
		t.Fatalf("a host without an address says %q", got)
	}
	r.await("line with the reason", func() bool {
		return slices.ContainsFunc(r.lines(), func(fields map[string]any) bool {
			return fields["requested_server_name"] == "any.invalid" && fields["reason"] == telemetry.ReasonEgress
		})
	})
	r.await("record with the reason", func() bool {
		record := regexp.MustCompile(`;source;tcp;[^ ]*;` + telemetry.ReasonEgress + ` `)
		return record.MatchString(r.spans.String())
	})
}

// TestLogOfNotHTTP lets an application send to an HTTP port what is not HTTP.
func TestLogOfNotHTTP(t *testing.T) {
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, "192.0.2.1:80"))
	r := runOutbound(t, newAuthority(t), f)
	for i, text := range []string{"*1\r\n$4\r\nPING\r\n", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "SSH-2.0-client\r\n"} {
		conn, err := dial(r.outbound, storeAddress)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, text)
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
		r.await("line about "+text, func() bool {
			lines := slices.DeleteFunc(r.lines(), func(fields map[string]any) bool {
				return fields["reason"] != telemetry.ReasonNotHTTP || fields["downstream_local"] != storeAddress || fields["start_time"] == ""
			})
			return len(lines) == i+1
		})
	}
}

// TestLogOfConnect sends requests with the method CONNECT to both sides.
func TestLogOfConnect(t *testing.T) {
	t.Setenv(agentspec.EnvRecords, "3")
	a := newApp(t)
	f := strict(a)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, "192.0.2.1:80"))
	r, ca := runInbound(t, f)
	for _, tt := range []struct {
		listener         uint16
		to               string
		as               *tls.Config
		reporter, reason string
	}{
		{r.inbound, local(a.http), ca.as(buyer, store), telemetry.ReporterDestination, telemetry.ReasonAccess},
		{r.outbound, storeAddress, nil, telemetry.ReporterSource, telemetry.ReasonInvalidRequest},
	} {
		conn, err := dial(tt.listener, tt.to)
		if err != nil {
			t.Fatal(err)
		}
		if tt.as != nil {
			conn = tls.Client(conn, tt.as)
		}
		fmt.Fprint(conn, "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		conn.Close()
		if err != nil || response.StatusCode != http.StatusForbidden {
			t.Fatalf("%s gets %v, %v, want 403", tt.to, response, err)
		}
		r.await("line with the reason "+tt.reason, func() bool {
			return slices.ContainsFunc(r.lines(), func(fields map[string]any) bool {
				return fields["method"] == "CONNECT" && fields["reason"] == tt.reason
			})
		})
		r.await("record with the reason "+tt.reason, func() bool { return r.recordsOf(tt.reporter)["403 "+tt.reason] == 1 })
	}
}
