package accesslog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The same refused request in the lines of three proxies, from docs/observe.md.
var thief = map[string]string{
	"envoy":   `{"authority":"cart-v1.shop","downstream_peer":"spiffe://cluster.local/ns/users/sa/thief","downstream_remote":"198.18.223.112:52336","duration":0,"method":"GET","path":"/cart/stolen","reason":"access","request_id":"999c3d09","response_code":403,"response_flags":"-","start_time":"2026-11-25T14:09:40.522Z","upstream_host":null,"upstream_peer":null}`,
	"haproxy": `{"start_time":"2026-11-25T14:09:40Z","authority":"cart-v1.shop","method":"GET","path":"/cart/stolen","reason":"access","request_id":"-","response_code":403,"response_flags":"PR--","duration":0,"downstream_remote":"198.18.223.112:33118","downstream_peer":"spiffe://cluster.local/ns/users/sa/thief","upstream_host":"-:-","upstream_peer":"-"}`,
	"pipy":    `{"authority":"cart-v1.shop","downstream_peer":"spiffe://cluster.local/ns/users/sa/thief","downstream_remote":"198.18.223.112:45082","duration":1,"method":"GET","path":"/cart/stolen","reason":"access","request_id":null,"response_code":403,"response_flags":"-","start_time":"2026-11-25T14:09:54.064Z","upstream_host":null,"upstream_peer":null}`,
}

func TestParse(t *testing.T) {
	for class, text := range thief {
		l, ok := Parse([]byte(text + "\n"))
		if !ok {
			t.Fatalf("%s: the line is not read", class)
		}
		if l.Start.Year() != 2026 {
			t.Errorf("%s: it began at %s", class, l.Start)
		}
		// These differ between the proxies.
		l.Start, l.Duration, l.Flags, l.RequestID, l.Caller = time.Time{}, 0, "", "", ""
		want := Line{
			Method: "GET", Path: "/cart/stolen", Authority: "cart-v1.shop", Code: 403, Reason: "access",
			Client: mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "thief"},
		}
		if diff := cmp.Diff(want, l); diff != "" {
			t.Errorf("%s (-want +got):\n%s", class, diff)
		}
	}
	for _, text := range []string{"", "a log", `{"level":"info","msg":"started"}`, `{"downstream_remote"`, `["downstream_remote"]`, "null"} {
		if l, ok := Parse([]byte(text)); ok {
			t.Errorf("%q is read as %+v", text, l)
		}
	}
	if l, ok := Parse([]byte(`{"downstream_remote":"a","duration":1e300,"response_code":-1,"start_time":7,"downstream_peer":"spiffe://x"}`)); !ok || l != (Line{Caller: "a"}) {
		t.Errorf("invalid values are read as %+v", l)
	}
}

// TestNotHTTP: a line of an HTTP port without a method is about something else than HTTP.
func TestNotHTTP(t *testing.T) {
	for name, text := range map[string]string{
		"haproxy":     `{"downstream_remote":"10.0.0.2:50000","downstream_local":"10.96.0.9:5432","method":"-","path":"-","reason":"-","response_code":400,"response_flags":"PR--","upstream_host":"-:-"}`,
		"envoy":       `{"downstream_remote":"10.0.0.2:50000","downstream_local":"10.96.0.9:5432","method":null,"path":null,"reason":"invalid_request","response_code":400,"response_flags":"DPE"}`,
		"by its name": `{"downstream_remote":"10.0.0.2:50000","downstream_local":"10.96.0.9:5432","reason":"not_http","response_code":0}`,
	} {
		l, ok := Parse([]byte(text))
		if !ok || !l.IsNotHTTP() || !l.Failed() || l.Destination != "10.96.0.9:5432" || !strings.Contains(l.Meaning(), "appProtocol") {
			t.Errorf("%s: %t, %+v, %s", name, ok, l, l.Meaning())
		}
	}
	for name, text := range map[string]string{
		"an invalid request": `{"downstream_remote":"a","method":"GET","reason":"invalid_request","response_code":400}`,
		"a connection":       `{"downstream_remote":"a","method":null,"reason":"","response_code":0}`,
	} {
		if l, ok := Parse([]byte(text)); !ok || l.IsNotHTTP() {
			t.Errorf("%s: %t, %+v", name, ok, l)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range thief {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if l, ok := Parse(text); ok && (l.Duration < 0 || l.Code < 0) {
			t.Errorf("%q has %+v", text, l)
		}
	})
}

func TestFailed(t *testing.T) {
	for _, tt := range []struct {
		line Line
		want bool
	}{
		{Line{Method: "GET", Code: 200}, false},
		{Line{Method: "GET", Code: 404}, false},
		{Line{Method: "GET", Code: 403, Reason: "access"}, true},
		{Line{Method: "GET", Code: 503}, true},
		{Line{Method: "GET"}, true},
		{Line{}, false},
		{Line{Reason: "plaintext"}, true},
	} {
		if got := tt.line.Failed(); got != tt.want {
			t.Errorf("%+v: got %t", tt.line, got)
		}
	}
	if (Line{Reason: "access"}).Meaning() == "" || (Line{}).Meaning() != "" {
		t.Error("a reason has no meaning, or none has one")
	}
}

func TestSame(t *testing.T) {
	now := time.Now()
	l := Line{Method: "GET", Path: "/a", Start: now}
	for _, tt := range []struct {
		change func(*Line)
		want   bool
	}{
		{func(*Line) {}, true},
		{func(o *Line) { o.Start = now.Add(-time.Second) }, true},
		{func(o *Line) { o.Start = now.Add(2 * time.Second) }, false},
		{func(o *Line) { o.Path = "/b" }, false},
		{func(o *Line) { o.RequestID = "1" }, true},
	} {
		other := l
		tt.change(&other)
		if got := l.Same(other); got != tt.want {
			t.Errorf("%+v: got %t", other, got)
		}
	}
	if (Line{RequestID: "1"}).Same(Line{RequestID: "2"}) || !(Line{RequestID: "1", Path: "/a"}).Same(Line{RequestID: "1", Path: "/b"}) {
		t.Error("the request's ID does not decide")
	}
}

func TestIsFrom(t *testing.T) {
	addresses := []string{"10.0.0.1", "fd00::1"}
	for caller, want := range map[string]bool{
		"10.0.0.1:40000": true, "[fd00::1]:1": true, "127.0.0.1:5": true, "[::ffff:10.0.0.1]:5": true,
		"10.0.0.2:40000": false, "": false, "10.0.0.1": false,
	} {
		if got := (Line{Caller: caller}).IsFrom(addresses); got != want {
			t.Errorf("%q: got %t", caller, got)
		}
	}
}

func TestFilter(t *testing.T) {
	line, _ := Parse([]byte(thief["envoy"]))
	for _, tt := range []struct {
		filter Filter
		want   bool
	}{
		{Filter{}, true},
		{Filter{Codes: []string{"403"}}, true},
		{Filter{Codes: []string{"200", "4xx"}}, true},
		{Filter{Codes: []string{"5XX"}}, false},
		{Filter{Method: "get", Path: "/cart"}, true},
		{Filter{Method: "POST"}, false},
		{Filter{Path: "/stolen"}, false},
		{Filter{Reason: "access", Refused: true}, true},
		{Filter{Reason: "plaintext"}, false},
		{Filter{From: "users"}, true},
		{Filter{From: "users/thief"}, true},
		{Filter{From: "users/thie"}, false},
		{Filter{From: "shop"}, false},
		{Filter{To: "users"}, false},
		{Filter{RequestID: "999c3d09"}, true},
		{Filter{RequestID: "999"}, false},
	} {
		if err := tt.filter.Check(); err != nil {
			t.Error(err)
		}
		if got := tt.filter.Selects(line); got != tt.want {
			t.Errorf("%+v: got %t", tt.filter, got)
		}
	}
	if err := (&Filter{Reason: "acces"}).Check(); err == nil || !strings.Contains(err.Error(), "access, plaintext") {
		t.Errorf("a reason that does not exist: %v", err)
	}
	if (&Filter{Refused: true}).Selects(Line{Code: 500}) {
		t.Error("an answer of the application is taken for a refusal")
	}
	for _, code := range []string{"x", "600", "9xx", "xx", "-1", ""} {
		if err := (&Filter{Codes: []string{code}}).Check(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", code)) {
			t.Errorf("%q: %v", code, err)
		}
	}
}
