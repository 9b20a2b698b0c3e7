package haproxy

import (
	"io"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestLogOfSilence lets applications connect to an HTTP port and wait for the server's first word.
// Those that leave without a word of their own get a line, and no others.
func TestLogOfSilence(t *testing.T) {
	for name, log := range map[string]mesh.AccessLog{"all": mesh.FullAccessLog(), "errors": {Enabled: true}, "none": {}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(agentspec.EnvRecords, "3")
			f := newFixture(buyer)
			f.settings.AccessLog = log
			f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, "192.0.2.1:80"))
			r := runOutbound(t, newAuthority(t), f)
			wait := telemetry.SilentAfter + 200*time.Millisecond
			connections := map[string]func(net.Conn){
				"waits":          func(net.Conn) { time.Sleep(wait) },
				"waits longer":   func(net.Conn) { time.Sleep(inspectDelay + time.Second) },
				"leaves at once": func(net.Conn) {},
				"keeps alive":    func(c net.Conn) { io.WriteString(c, "GET /used HTTP/1.1\r\nHost: a\r\n\r\n"); time.Sleep(wait) },
				"is slow": func(c net.Conn) {
					time.Sleep(wait)
					io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
					time.Sleep(200 * time.Millisecond)
				},
				"is slow and stops": func(c net.Conn) { time.Sleep(wait); io.WriteString(c, "GE"); time.Sleep(200 * time.Millisecond) },
				"is no HTTP":        func(c net.Conn) { time.Sleep(wait); io.WriteString(c, "\x00\x00\r\n"); io.Copy(io.Discard, c) },
			}
			done := make(chan bool)
			for name, use := range connections {
				conn, err := dial(r.outbound, storeAddress)
				if err != nil {
					t.Fatal(name, err)
				}
				go func() {
					use(conn)
					conn.Close()
					done <- true
				}()
			}
			for range connections {
				<-done
			}
			silent := func() (out []map[string]any) {
				for _, fields := range r.lines() {
					if fields["connection_close_details"] == telemetry.Silent {
						out = append(out, fields)
					}
				}
				return out
			}
			if !log.Enabled {
				if got := silent(); len(got) > 0 {
					t.Errorf("there are lines without an access log: %v", got)
				}
				return
			}
			if records := regexp.MustCompile(` record=.*;source;[^;]+;.*` + telemetry.Silent).FindString(r.spans.String()); records != "" {
				t.Errorf("the agent would count %s", records)
			}
			r.await("lines about silent clients", func() bool { return len(silent()) >= 2 })
			time.Sleep(100 * time.Millisecond)
			got := silent()
			if len(got) != 2 {
				t.Fatalf("there are %d lines about silent clients: %v", len(got), r.lines())
			}
			for i, least := range []float64{2000, 5500} {
				line := got[i]
				if ms, _ := line["duration"].(float64); ms < least || ms > least+2000 || line["downstream_local"] != storeAddress || line["reason"] != nil && line["reason"] != "" || line["start_time"] == "" {
					t.Errorf("the line of a silent client is %v", line)
				}
			}
		})
	}
}

// inspectDelay is how long HAProxy waits for what decides where a connection goes.
const inspectDelay = 5 * time.Second
