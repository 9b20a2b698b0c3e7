package envoy

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestRealAccessLog has a real Envoy refuse requests and connections, and compares the lines at
// each level.
func TestRealAccessLog(t *testing.T) {
	for name, log := range map[string]mesh.AccessLog{"all": mesh.FullAccessLog(), "errors": {Enabled: true}, "none": {}} {
		t.Run(name, func(t *testing.T) {
			e := runInbound(t, func(p *app) inboundCase {
				c := strictInbound(p)
				c.settings = func(s *mesh.Settings) {
					s.AccessLog = log
					s.Authorization = &mesh.Authorization{Host: "127.0.0.1", Port: 1, Timeout: time.Second, AllowOnFailure: true}
				}
				c.inbound.Ports = append(c.inbound.Ports, mesh.InboundPort{Port: 1, Protocol: mesh.HTTP, Access: anyone}, mesh.InboundPort{Port: 2, Protocol: mesh.TCP, Access: anyone})
				return c
			})
			foreign := e.as(buyer)
			foreign.Certificates = e.as(ops).Certificates
			request := func(port uint16, path string, status int) {
				t.Helper()
				if response, _, err := e.ask(port, e.as(buyer), path); err != nil || response.StatusCode != status {
					t.Fatalf("%s gives %v, %v, want %d", path, response, err, status)
				}
			}
			request(e.http, "/books/1", 200)
			request(e.http, "/other", 403)
			request(e.limited, "/slow", 200)
			request(e.limited, "/slow", 429)
			request(1, "/unreachable", 503)
			_, _ = e.hello(e.tcp, e.as(buyer))
			_, _ = e.hello(e.tcp, foreign)
			_, _ = e.hello(e.tcp, nil)
			_, _ = e.hello(2, e.as(buyer))
			want := map[string]int{}
			if log.Enabled {
				for _, line := range []string{"/other " + telemetry.ReasonAccess, "/slow " + telemetry.ReasonRateLimit, "/unreachable " + telemetry.ReasonNoEndpoint,
					"connection " + telemetry.ReasonAccess, "connection " + telemetry.ReasonPlaintext, "connection " + telemetry.ReasonNoEndpoint} {
					want[line] = 1
				}
			}
			if log == mesh.FullAccessLog() {
				want["/books/1 "], want["/slow "], want["connection "] = 1, 1, 1
			}
			var got map[string]int
			for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
				got = linesOf(t, e.output)
				if log.Enabled && fmt.Sprint(got) == fmt.Sprint(want) {
					return
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the lines are %v, want %v", got, want)
			}
		})
	}
}

// linesOf counts the lines of an access log by path and reason.
func linesOf(t *testing.T, file string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var fields struct{ Path, Reason string }
		if json.Unmarshal([]byte(line), &fields) == nil {
			if fields.Path == "" {
				fields.Path = "connection"
			}
			out[fields.Path+" "+fields.Reason]++
		}
	}
	return out
}

// TestRealAccessLogOfPlaintext: a plaintext connection that is accepted has no reason of a
// refusal, although Envoy has looked for a TLS handshake in it.
func TestRealAccessLogOfPlaintext(t *testing.T) {
	e := runInbound(t, func(p *app) inboundCase {
		return inboundCase{
			settings: func(s *mesh.Settings) { s.AccessLog = mesh.FullAccessLog() },
			inbound: mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
				{Port: p.http, Protocol: mesh.TCP, Access: anyone},
				{Port: p.tcp, Protocol: mesh.TCPServerFirst, Access: rules(rule("db/shop", anyRequest, buyer))},
			}},
		}
	})
	if response, _, err := e.ask(e.http, nil, "/books/1"); err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	_, _ = e.hello(e.tcp, nil)
	want := fmt.Sprint(map[string]int{"connection ": 1, "connection " + telemetry.ReasonPlaintext: 1})
	var got string
	for deadline := time.Now().Add(10 * time.Second); got != want && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		got = fmt.Sprint(linesOf(t, e.output))
	}
	if got != want {
		t.Errorf("the lines are %s, want %s", got, want)
	}
}
