package pipy

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestLogOfNotHTTP lets an application send to an HTTP port what is not HTTP. It gets an answer at
// once, and a line names the destination and the reason. A client that waits for the server to
// speak first gets a line when it leaves.
func TestLogOfNotHTTP(t *testing.T) {
	w := newViewBuilder()
	w.settings.AccessLog = mesh.FullAccessLog()
	s := startPod(t, w.view())
	w.service("web", 80, mesh.HTTP, "10.96.0.1", at(s.listenTLS(t, storeName, echo), storeName))
	s.apply(t, w.view())
	lines := func() []map[string]any {
		var out []map[string]any
		for line := range strings.Lines(s.log.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["downstream_local"] == "10.96.0.1:80" {
				out = append(out, fields)
			}
		}
		return out
	}
	await := func(n int) map[string]any {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); len(lines()) < n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("there are %d lines, want %d:\n%s", len(lines()), n, s.log)
			}
		}
		return lines()[n-1]
	}
	n := 0
	for _, text := range []string{"*1\r\n$4\r\nPING\r\n", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "\x16\x03\x01\x00\xa5\x01", "SSH-2.0-client\r\n", "EHLO a.example\r\n", "GET /\r\n", strings.Repeat("a", 100)} {
		conn := s.dial(t, "10.96.0.1:80")
		began := time.Now()
		io.WriteString(conn, text)
		if got, _ := io.ReadAll(conn); !strings.HasPrefix(string(got), "HTTP/1.1 400 ") || time.Since(began) > 5*time.Second {
			t.Errorf("%q gets %q after %v, want 400 at once", text, got, time.Since(began))
		}
		n++
		line := await(n)
		for field, want := range map[string]any{"reason": telemetry.ReasonNotHTTP, "method": nil, "path": nil, "protocol": nil, "response_code": 400.0, "upstream_cluster": "bookstore/web:80"} {
			if line[field] != want {
				t.Errorf("the %s of the line about %q is %v, want %v", field, text, line[field], want)
			}
		}
	}
	// A request that is HTTP but malformed has its method and path, and the other reason.
	conn := s.dial(t, "10.96.0.1:80")
	io.WriteString(conn, "PUT /broken HTTP/1.1\r\nHost: a\r\nBroken Header: b\r\n\r\n")
	io.Copy(io.Discard, conn)
	n++
	if line := await(n); line["reason"] != telemetry.ReasonInvalidRequest || line["method"] != "PUT" || line["path"] != "/broken" {
		t.Errorf("the line about a malformed request is %v", line)
	}
	// Slow clients of HTTP are not mistaken for others.
	conn = s.dial(t, "10.96.0.1:80")
	for _, part := range []string{"\r", "\nP", "UT /slow HT", "TP/1.1\r", "\nHost: a\r\nBroken"} {
		io.WriteString(conn, part)
		time.Sleep(20 * time.Millisecond)
	}
	io.WriteString(conn, " Header: b\r\n\r\n")
	io.Copy(io.Discard, conn)
	n++
	if line := await(n); line["path"] != "/slow" {
		t.Errorf("the line about a slow request is %v", line)
	}
	for _, level := range []string{"all", "errors"} {
		if level == "errors" {
			w.settings.AccessLog = mesh.AccessLog{Enabled: true}
			s.apply(t, w.view())
		}
		silent, unused := s.dial(t, "10.96.0.1:80"), s.dial(t, "10.96.0.1:80")
		unused.Close()
		time.Sleep(telemetry.SilentAfter + 500*time.Millisecond)
		silent.Close()
		n++
		if line := await(n); line["reason"] != nil || line["upstream_cluster"] != "bookstore/web:80" || line["connection_close_details"] != telemetry.Silent {
			t.Errorf("the line about a silent client is %v, with %s", line, level)
		}
	}
}
