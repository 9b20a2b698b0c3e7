package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// reset answers with "NAME\n" on a port of both families, and then resets the connection.
func (s *space) reset(name string, port int) {
	s.t.Helper()
	s.do(func() error {
		for _, network := range []string{"tcp4", "tcp6"} {
			if network == "tcp6" && !hasIPv6() {
				continue
			}
			l, err := net.Listen(network, fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			s.t.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					fmt.Fprintln(conn, name)
					// The client reads before it gets the reset.
					time.Sleep(50 * time.Millisecond)
					conn.(*net.TCPConn).SetLinger(0)
					conn.Close()
				}
			}()
		}
		return nil
	})
}

// askFrom connects from a port as a user, and returns what the server says before it resets
// the connection, or "refused".
func (s *space) askFrom(uid int, from, to string) string {
	s.t.Helper()
	var text string
	s.do(func() error {
		if err := unix.Setfsuid(uid); err != nil {
			return err
		}
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))}
		conn, err := dialer.Dial("tcp", to)
		if errors.Is(err, syscall.ECONNREFUSED) {
			text = "refused"
			return nil
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		got, err := io.ReadAll(conn)
		if !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("%s to %s ends with %v after %q, want a reset", from, to, err, got)
		}
		text = strings.TrimSpace(string(got))
		return nil
	})
	return text
}

// TestPortOfAnotherUser connects as one user, and after the server's reset as the other
// from the same port to the same destination. The kernel keeps the decision about the first
// connection for a while.
func TestPortOfAnotherUser(t *testing.T) {
	const app, proxy = "app", "proxy"
	users := map[string]int{app: appUID, proxy: proxyUID}
	for _, tt := range []struct {
		name           string
		redirection    agentspec.Redirection
		to             string
		first, second  string
		want, thenWant string
	}{
		{"the app after the proxy", agentspec.Redirection{}, "10.1.0.2:80", proxy, app, "neighbour", "outbound"},
		{"the proxy after the app", agentspec.Redirection{}, "10.1.0.2:80", app, proxy, "outbound", "neighbour"},
		{"the app after the proxy, by IPv6", agentspec.Redirection{}, "[fd01::2]:80", proxy, app, "neighbour", "outbound"},
		{"the proxy after the app, by IPv6", agentspec.Redirection{}, "[fd01::2]:80", app, proxy, "outbound", "neighbour"},
		{"the app after the proxy, translated", agentspec.Redirection{TranslateIPv6: true}, "[fd01::2]:80", proxy, app, "neighbour", "outbound"},
		{"the proxy after the app, translated", agentspec.Redirection{TranslateIPv6: true}, "[fd01::2]:80", app, proxy, "outbound", "neighbour"},
		{"an included port", agentspec.Redirection{IncludeOutboundPorts: []int{80}}, "10.1.0.2:80", proxy, app, "neighbour", "outbound"},
		{"an included range", agentspec.Redirection{IncludeOutboundRanges: []string{"10.1.0.2/32"}}, "10.1.0.2:80", proxy, app, "neighbour", "outbound"},
		{"an excluded port", agentspec.Redirection{ExcludeOutboundPorts: []int{80}}, "10.1.0.2:80", proxy, app, "neighbour", "neighbour"},
		{"an excluded range", agentspec.Redirection{ExcludeOutboundRanges: []string{"10.1.0.2/32"}}, "10.1.0.2:80", proxy, app, "neighbour", "neighbour"},
		{"the pod's own address, first the app", agentspec.Redirection{}, "10.1.0.1:8080", app, proxy, "app", "inbound"},
		{"the pod's own address, first the proxy", agentspec.Redirection{}, "10.1.0.1:8080", proxy, app, "inbound", "app"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pod, neighbour := newPair(t)
			from := "10.1.0.1:33333"
			if strings.Contains(tt.to, "[") {
				from = "[fd01::1]:33333"
				var with6 bool
				pod.do(func() error { with6 = hasIPv6(); return nil })
				if !with6 {
					t.Skip("SKIPPED: IPv6 is switched off here")
				}
			}
			if err := Apply(tt.redirection, Options{NetNS: pod.path(), DNS: []netip.Addr{}, Warn: func(err error) { t.Error(err) }}); err != nil {
				t.Fatal(err)
			}
			pod.reset("outbound", OutboundPort)
			pod.reset("inbound", InboundPort)
			pod.reset("app", 8080)
			neighbour.reset("neighbour", 80)
			if got := pod.askFrom(users[tt.first], from, tt.to); got != tt.want {
				t.Fatalf("%s reaches %q, want %q", tt.first, got, tt.want)
			}
			if got := pod.askFrom(users[tt.second], from, tt.to); got != tt.thenWant && got != "refused" {
				t.Errorf("at once %s reaches %q, want %q or that it is refused", tt.second, got, tt.thenWant)
			}
			// The kernel forgets the former connection afterReset seconds after its end,
			// or after the refusal, which resets it too.
			time.Sleep(afterReset*time.Second + 1500*time.Millisecond)
			if got := pod.askFrom(users[tt.second], from, tt.to); got != tt.thenWant {
				t.Errorf("later %s reaches %q, want %q", tt.second, got, tt.thenWant)
			}
		})
	}
}
