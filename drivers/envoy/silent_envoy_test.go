package envoy

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestRealSilent lets applications connect to an HTTP port and wait for the server's first word.
// The one that leaves without a word of its own gets a line, and no other.
func TestRealSilent(t *testing.T) {
	for name, log := range map[string]mesh.AccessLog{"all": mesh.FullAccessLog(), "errors": {Enabled: true}, "none": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := program.WriteIdentity(dir, proxy().Identity); err != nil {
				t.Fatal(err)
			}
			s := *settings()
			s.AccessLog = log
			f := fixture{scope: "*", settings: mesh.Seal(&s)}
			f.destinations = append(f.destinations, destination(port("db", 3306), mesh.HTTP, "10.96.0.1"))
			e := startEnvoy(t, f.view(), dir, "outbound")
			wait := telemetry.SilentAfter + 200*time.Millisecond
			const request = "GET /used HTTP/1.1\r\nHost: db\r\n\r\n"
			connections := map[string]func(net.Conn){
				"waits":             func(net.Conn) { time.Sleep(wait) },
				"leaves at once":    func(net.Conn) {},
				"keeps alive":       func(c net.Conn) { io.WriteString(c, request); time.Sleep(wait) },
				"is slow":           func(c net.Conn) { time.Sleep(wait); io.WriteString(c, request); time.Sleep(200 * time.Millisecond) },
				"is slow and stops": func(c net.Conn) { time.Sleep(wait); io.WriteString(c, "GE"); time.Sleep(200 * time.Millisecond) },
				"is no HTTP":        func(c net.Conn) { time.Sleep(wait); io.WriteString(c, "\x00\x00\r\n"); io.Copy(io.Discard, c) },
			}
			done := make(chan bool)
			for name, use := range connections {
				conn, err := e.dial(t.Context(), "10.96.0.1:3306")
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
			want := 0
			if log.Enabled {
				want = 1
			}
			var got []string
			for deadline := time.Now().Add(5 * time.Second); len(got) < want && time.Now().Before(deadline) || time.Now().Before(deadline.Add(-4500*time.Millisecond)); time.Sleep(50 * time.Millisecond) {
				got = nil
				text, err := os.ReadFile(e.output)
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(string(text)) {
					if strings.Contains(line, telemetry.Silent) {
						got = append(got, line)
					}
				}
			}
			if len(got) != want {
				t.Fatalf("%d lines, want %d: %s", len(got), want, got)
			}
			if want == 0 {
				return
			}
			var fields map[string]any
			if err := json.Unmarshal([]byte(got[0]), &fields); err != nil {
				t.Fatal(err)
			}
			ms, _ := fields["duration"].(float64)
			if fields["downstream_local"] != "10.96.0.1:3306" || fields["reason"] != nil || fields["start_time"] == nil || ms < 2000 || fields["downstream_remote"] == nil {
				t.Errorf("the line is %s", got[0])
			}
		})
	}
}
