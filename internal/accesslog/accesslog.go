// Package accesslog reads the lines that sidecars write about requests and connections, and
// selects some of them. docs/observe.md has the fields, which are the same for every
// proxy. The package computes from texts, and reads nothing itself.
package accesslog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// Line is one line. Fields without a value are empty, whatever the proxy writes for them.
type Line struct {
	// Start is when the request or connection began, and Duration how long it took.
	Start    time.Time
	Duration time.Duration
	// Method, Path and Authority are empty for a connection.
	Method, Path, Authority string
	// Code is the status code, 0 if there was none.
	Code int
	// Reason is why the sidecar has refused it, one of package telemetry's, or empty.
	Reason string
	// Flags are the proxy's own short form of what happened.
	Flags     string
	RequestID string
	// Caller is the address that has called the sidecar, and Host the one that it has called.
	Caller, Host string
	// Destination is the address that the caller wanted, in the client's line, if the proxy
	// writes it.
	Destination string
	// Silent is true for a connection to an HTTP port whose client has waited silently. Nothing
	// has failed if the client has opened it in advance.
	Silent bool
	// Client is the caller's verified identity in the server's line, and Server the server's
	// in the client's.
	Client, Server mesh.Identity
}

// Parse reads a line. It reports false for a line that is not about a request or connection.
func Parse(text []byte) (Line, bool) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return Line{}, false
	}
	var raw map[string]any
	if json.Unmarshal(text, &raw) != nil {
		return Line{}, false
	}
	// The only field that every line has.
	if _, ok := raw["downstream_remote"]; !ok {
		return Line{}, false
	}
	l := Line{
		Method: field(raw, "method"), Path: field(raw, "path"), Authority: field(raw, "authority"), Reason: field(raw, "reason"),
		Flags: field(raw, "response_flags"), RequestID: field(raw, "request_id"), Caller: field(raw, "downstream_remote"), Host: field(raw, "upstream_host"),
		Destination: field(raw, "downstream_local"), Silent: field(raw, "connection_close_details") == telemetry.Silent,
	}
	l.Start, _ = time.Parse(time.RFC3339Nano, field(raw, "start_time"))
	if ms, err := strconv.ParseFloat(field(raw, "duration"), 64); err == nil && ms >= 0 && ms < float64(time.Hour*24*365/time.Millisecond) {
		l.Duration = time.Duration(ms * float64(time.Millisecond))
	}
	if code, err := strconv.Atoi(field(raw, "response_code")); err == nil && code > 0 {
		l.Code = code
	}
	// A proxy has read no method from what it answers with 400 because it is no HTTP.
	if l.Method == "" && l.Code == 400 && (l.Reason == "" || l.Reason == telemetry.ReasonInvalidRequest) {
		l.Reason = telemetry.ReasonNotHTTP
	}
	l.Client, _ = mesh.ParseIdentity(field(raw, "downstream_peer"))
	l.Server, _ = mesh.ParseIdentity(field(raw, "upstream_peer"))
	return l, true
}

// field returns a field as text, and nothing for what proxies write in place of a value.
func field(raw map[string]any, name string) string {
	switch value := raw[name].(type) {
	case string:
		if value == "-" || value == "-:-" {
			return ""
		}
		return value
	case float64:
		return strconv.FormatFloat(value, 'f', -1, 64)
	}
	return ""
}

// Failed reports whether the sidecar has refused it, the server has failed, or there was no
// answer to a request.
func (l Line) Failed() bool {
	return l.Reason != "" || l.Code >= 500 || l.Code == 0 && l.Method != ""
}

// IsNotHTTP reports whether the reason is that an HTTP port was sent something else.
func (l Line) IsNotHTTP() bool { return l.Reason == telemetry.ReasonNotHTTP }

// IsAccess reports whether the reason is that no policy lets the caller in.
func (l Line) IsAccess() bool { return l.Reason == telemetry.ReasonAccess }

// Meaning is the sentence that explains the reason, or empty.
func (l Line) Meaning() string {
	for _, r := range telemetry.Reasons() {
		if r.Name == l.Reason {
			return r.Meaning
		}
	}
	return ""
}

// Same reports whether two lines are of the same request at its two ends: they have the same
// ID or, without one, ask the same within a second.
func (l Line) Same(other Line) bool {
	if l.RequestID != "" && other.RequestID != "" {
		return l.RequestID == other.RequestID
	}
	apart := l.Start.Sub(other.Start).Abs()
	return l.Method == other.Method && l.Path == other.Path && apart <= time.Second
}

// IsFrom reports whether the pod with one of the addresses has called its own sidecar, so
// that the line is a client's.
func (l Line) IsFrom(addresses []string) bool {
	from, err := netip.ParseAddrPort(l.Caller)
	if err != nil {
		return false
	}
	if from.Addr().IsLoopback() {
		return true
	}
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil && address.Unmap() == from.Addr().Unmap() {
			return true
		}
	}
	return false
}

// Filter selects lines. Its zero value selects all.
type Filter struct {
	// Codes are status codes and classes of them, such as 403 and 5xx; none means all.
	Codes []string
	// Method is compared without case, and Path is the beginning of a path.
	Method, Path string
	// Reason is a reason of refusal, and Refused selects every reason.
	Reason  string
	Refused bool
	// From is the caller of the pod, and To the server that the pod has called, each as
	// NAMESPACE or NAMESPACE/SERVICEACCOUNT.
	From, To string
	// RequestID is the value of x-request-id.
	RequestID string
}

// Check returns an error that names a value that can never select anything.
func (f *Filter) Check() error {
	for _, code := range f.Codes {
		digits := strings.TrimSuffix(strings.ToLower(code), "xx")
		n, err := strconv.Atoi(digits)
		isClass := digits != strings.ToLower(code)
		if err != nil || isClass && (n < 1 || n > 5) || !isClass && (n < 0 || n > 599) {
			return fmt.Errorf("the status %q is neither a status code such as 403 nor a class of them such as 5xx", code)
		}
	}
	if f.Reason == "" || telemetry.IsReason(f.Reason) {
		return nil
	}
	var known []string
	for _, r := range telemetry.Reasons() {
		known = append(known, r.Name)
	}
	return fmt.Errorf("there is no reason %q; reasons are %s", f.Reason, strings.Join(known, ", "))
}

// Selects reports whether the filter selects a line.
func (f *Filter) Selects(l Line) bool {
	return f.selectsCode(l.Code) && (f.Method == "" || strings.EqualFold(f.Method, l.Method)) && strings.HasPrefix(l.Path, f.Path) &&
		(f.Reason == "" || f.Reason == l.Reason) && (!f.Refused || l.Reason != "") && (f.RequestID == "" || f.RequestID == l.RequestID) &&
		(f.From == "" || isPeer(f.From, l.Client)) && (f.To == "" || isPeer(f.To, l.Server))
}

func (f *Filter) selectsCode(code int) bool {
	for _, wanted := range f.Codes {
		if class, ok := strings.CutSuffix(strings.ToLower(wanted), "xx"); ok && class == strconv.Itoa(code/100) || wanted == strconv.Itoa(code) {
			return true
		}
	}
	return len(f.Codes) == 0
}

func isPeer(wanted string, peer mesh.Identity) bool {
	namespace, account, found := strings.Cut(wanted, "/")
	return namespace == peer.Namespace && (!found || account == peer.ServiceAccount)
}
