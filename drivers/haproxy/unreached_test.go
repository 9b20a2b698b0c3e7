package haproxy

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// fullListener returns the address of a listener that completes no further connection.
func fullListener(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := local(uint16(name.(*syscall.SockaddrInet4).Port))
	for range 5 {
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("the listener still completes connections")
	return ""
}

// silentListener returns the address of a server that says nothing, not even its certificate.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	return onlyReads(t, l, err)
}

// tlsListener returns the address of a server with a certificate that says nothing else.
func tlsListener(t *testing.T, certificate tls.Certificate) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	return onlyReads(t, l, err)
}

// onlyReads lets a listener's connections be read until the test ends, and returns its address.
func onlyReads(t *testing.T, l net.Listener, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// TestLogOfUnreachedServers lets connections fail before they reach a server, and clients leave
// before. Only the former are refused, in the access log and in the records.
func TestLogOfUnreachedServers(t *testing.T) {
	ca := newAuthority(t)
	full, silent := fullListener(t), silentListener(t)
	cases := []struct {
		name      string
		endpoints []string
		// leaves is when the client leaves, if it does not wait for the proxy's answer.
		leaves time.Duration
		// It may send bytes before, and leave with a reset.
		sends, aborts bool
		// busy is true if another connection uses up the limit of connections.
		busy   bool
		reason string
		// mayFail is true if HAProxy 3.0 and later may notice only after the last try that the
		// client has left. Then it is refused.
		mayFail bool
	}{
		{name: "refused", endpoints: []string{"127.0.0.1:1"}, reason: telemetry.ReasonNoEndpoint},
		{name: "too-late", endpoints: []string{full}, reason: telemetry.ReasonNoEndpoint},
		{name: "silent", endpoints: []string{silent}, reason: telemetry.ReasonNoEndpoint},
		{name: "another", endpoints: []string{tlsListener(t, ca.issue(ops))}, reason: telemetry.ReasonNoEndpoint},
		{name: "nobody", reason: telemetry.ReasonNoEndpoint},
		{name: "left", endpoints: []string{full}, leaves: 300 * time.Millisecond},
		{name: "left-after-bytes", endpoints: []string{full}, leaves: 300 * time.Millisecond, sends: true, aborts: true, mayFail: true},
		{name: "aborted", endpoints: []string{full}, leaves: 300 * time.Millisecond, aborts: true},
		{name: "left-handshake", endpoints: []string{silent}, leaves: 300 * time.Millisecond},
		{name: "left-between-tries", endpoints: []string{"127.0.0.1:1"}, leaves: 300 * time.Millisecond},
		{name: "left-queue", endpoints: []string{tlsListener(t, ca.issue(store))}, leaves: 300 * time.Millisecond, busy: true},
		{name: "reached", endpoints: []string{tlsListener(t, ca.issue(store))}, leaves: 300 * time.Millisecond},
	}
	f := newFixture(buyer)
	for i, c := range cases {
		b := backend(servicePort(c.name, 80), mesh.TCP, store, c.endpoints...)
		b.Policy.ConnectTimeout = time.Second
		if c.busy {
			b.Policy.MaxConnections = new(uint32(1))
		}
		f.service(servicePort(c.name, 80), mesh.TCP, fmt.Sprintf("10.96.0.%d", 100+i), b)
	}
	t.Setenv(agentspec.EnvRecords, "3")
	r := runOutbound(t, ca, f)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			to := fmt.Sprintf("10.96.0.%d:80", 100+i)
			if c.busy {
				first, err := dial(r.outbound, to)
				if err != nil {
					t.Fatal(err)
				}
				defer first.Close()
				time.Sleep(200 * time.Millisecond)
			}
			conn, err := dial(r.outbound, to)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if c.sends {
				fmt.Fprint(conn, "hello")
			}
			if c.leaves > 0 {
				time.Sleep(c.leaves)
			} else if n, err := conn.Read(make([]byte, 1)); err == nil {
				t.Fatalf("%d bytes come back", n)
			}
			if c.aborts {
				_ = conn.(*net.TCPConn).SetLinger(0)
			}
			conn.Close()
			want := c.reason
			of := "bookstore:" + c.name + ":80"
			r.await("line about "+of, func() bool { return len(r.linesTo(of)) > 0 })
			for _, line := range r.linesTo(of) {
				if c.mayFail && isAtLeast(t, 3, 0) && strings.HasPrefix(fmt.Sprint(line["response_flags"]), "sC") {
					want = telemetry.ReasonNoEndpoint
				}
				if line["reason"] != want {
					t.Errorf("the reason in the access log is %q, want %q, in %v", line["reason"], want, line)
				}
			}
			of = ";bookstore/" + c.name + ";"
			r.await("record about "+of, func() bool { return strings.Contains(r.spans.String(), of) })
			for line := range strings.Lines(r.spans.String()) {
				_, why, found := strings.Cut(line, of)
				why, _, _ = strings.Cut(why, ";")
				if reason := reasonOf(why); found && reason != want {
					t.Errorf("the reason in the record is %q, want %q: it says %q", reason, want, why)
				}
			}
		})
	}
}

// linesTo returns the lines of the access log about a backend.
func (r *running) linesTo(backend string) []map[string]any {
	return slices.DeleteFunc(r.lines(), func(fields map[string]any) bool { return fields["upstream_cluster"] != backend })
}

// reasonOf translates a record's WHY as the agent does.
func reasonOf(why string) string {
	if first, _, _ := strings.Cut(why, " "); telemetry.IsReason(first) {
		return first
	}
	for _, r := range reasons {
		if strings.Contains(why, r.Text) {
			return r.Reason
		}
	}
	return ""
}
