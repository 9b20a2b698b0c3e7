package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// dial connects from an address, and keeps the connection until the test's end.
func (s *space) dial(from, to string) (err error) {
	s.t.Helper()
	s.do(func() error {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
		var conn net.Conn
		if conn, err = dialer.DialContext(context.Background(), "tcp", to); err == nil {
			s.t.Cleanup(func() { conn.Close() })
		}
		return nil
	})
	return err
}

// TestConnectionsEach keeps many connections of one address open, and connects from others.
func TestConnectionsEach(t *testing.T) {
	const limit = 5
	for _, tt := range []struct {
		name, first, other, host string
		setting, want            int
		port                     int
	}{
		{"IPv4", "10.1.0.2", "198.19.0.1", "10.1.0.1", limit, limit, 8080},
		{"IPv6", "fd01::2", "fd02::1", "[fd01::1]", limit, limit, 8080},
		{"several ports together", "10.1.0.2", "198.19.0.1", "10.1.0.1", limit, limit, 0},
		{"the default", "10.1.0.2", "198.19.0.1", "10.1.0.1", 0, 200, 8080},
		{"unlimited", "10.1.0.2", "198.19.0.1", "10.1.0.1", -1, 200, 8080},
		{"metrics", "10.1.0.2", "198.19.0.1", "10.1.0.1", -1, metricsEach, metricsPort},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, neighbour := newPair(t)
			var with6 bool
			pod.do(func() error { with6 = hasIPv6(); return nil })
			if tt.name == "IPv6" && !with6 {
				t.Skip("SKIPPED: IPv6 is switched off here")
			}
			if err := Apply(agentspec.Redirection{InboundConnectionsEach: tt.setting}, Options{NetNS: pod.path(), DNS: []netip.Addr{}, Warn: func(err error) { t.Error(err) }}); err != nil {
				t.Fatal(err)
			}
			// The connections are established although they are not accepted.
			pod.do(func() error {
				for _, port := range []int{InboundPort, metricsPort} {
					l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
					if err != nil {
						return err
					}
					t.Cleanup(func() { l.Close() })
				}
				return nil
			})
			address := func(i int) string {
				if tt.port == 0 {
					return fmt.Sprintf("%s:%d", tt.host, 8080+i)
				}
				return fmt.Sprintf("%s:%d", tt.host, tt.port)
			}
			for i := range tt.want {
				if err := neighbour.dial(tt.first, address(i)); err != nil {
					t.Fatalf("connection %d: %v", i+1, err)
				}
			}
			if tt.want < 200 {
				if err := neighbour.dial(tt.first, address(0)); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("one more connection ends with %v, want that it is refused", err)
				}
			}
			if err := neighbour.dial(tt.other, address(0)); err != nil {
				t.Errorf("a connection of another address: %v", err)
			}
		})
	}
}
