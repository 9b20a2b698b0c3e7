package envoy

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestRealNotHTTP sends to an HTTP port what is not HTTP, and requests that are malformed.
func TestRealNotHTTP(t *testing.T) {
	e := runInbound(t, func(p *app) inboundCase {
		c := strictInbound(p)
		c.settings = func(s *mesh.Settings) { s.AccessLog = mesh.AccessLog{Enabled: true} }
		return c
	})
	var want []string
	for _, tt := range []struct{ text, reason string }{
		{"SSH-2.0-OpenSSH_9\r\n", telemetry.ReasonNotHTTP},
		{"*1\r\n$4\r\nPING\r\n", telemetry.ReasonNotHTTP},
		{"EHLO a.example\r\n", telemetry.ReasonNotHTTP},
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", telemetry.ReasonNotHTTP},
		{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", telemetry.ReasonNotHTTP},
		{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", telemetry.ReasonInvalidRequest},
		{"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", telemetry.ReasonInvalidRequest},
	} {
		raw, err := e.call(e.http)
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, e.as(buyer))
		fmt.Fprint(conn, tt.text)
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
		want = append(want, fmt.Sprintf("%s 127.0.0.1:%d", tt.reason, e.http))
	}
	slices.Sort(want)
	var got []string
	for deadline := time.Now().Add(10 * time.Second); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		text, err := os.ReadFile(e.output)
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for line := range strings.Lines(string(text)) {
			var fields struct {
				Reason string
				Local  string `json:"downstream_local"`
			}
			if json.Unmarshal([]byte(line), &fields) == nil {
				got = append(got, fields.Reason+" "+fields.Local)
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the lines (-want +got):\n%s", diff)
	}
	records, err := os.ReadFile(e.records)
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range reasons {
		if reason.Reason == telemetry.ReasonNotHTTP && strings.Count(string(records), reason.Text) != 5 {
			t.Errorf("%q is not in 5 of the records\n%s", reason.Text, records)
		}
	}
}
