package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// space is a network namespace.
type space struct {
	t    *testing.T
	file *os.File
}

// newSpace creates a namespace whose lo is up, or skips the test.
func newSpace(t *testing.T) *space {
	t.Helper()
	made := make(chan error, 1)
	s := &space{t: t}
	go func() {
		// The thread is in the new namespace, and must end with the goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.file, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; errors.Is(err, os.ErrPermission) {
		t.Skipf("SKIPPED: network namespaces need root or CAP_SYS_ADMIN: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	s.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return s
}

// hasIPv6 reports whether IPv6 is enabled for the thread.
func hasIPv6() bool {
	disabled, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	return err == nil && strings.TrimSpace(string(disabled)) == "0"
}

func (s *space) path() string { return fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()) }

// do calls f on a thread in the namespace.
func (s *space) do(f func() error) {
	s.t.Helper()
	if err := in(s.path(), f); err != nil {
		s.t.Fatal(err)
	}
}

// newPair returns a pod and its only neighbour, which is also its gateway. The pod is
// 10.1.0.1 and fd01::1 on eth0, the neighbour 10.1.0.2 and fd01::2; the neighbour also has
// 198.19.0.1, 198.19.0.2, 198.18.255.255 and fd02::1.
func newPair(t *testing.T) (pod, neighbour *space) {
	t.Helper()
	pod, neighbour = newSpace(t), newSpace(t)
	pod.do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(neighbour.file.Fd()),
		})
	})
	pod.address("eth0", "10.1.0.1/24", "fd01::1/64")
	neighbour.address("eth0", "10.1.0.2/24", "fd01::2/64")
	neighbour.address("lo", "198.19.0.1/32", "198.19.0.2/32", "198.18.255.255/32", "fd02::1/128")
	pod.do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, gateway := range []string{"10.1.0.2", "fd01::2"} {
			if gateway == "fd01::2" && !hasIPv6() {
				continue
			}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(gateway)}); err != nil {
				return fmt.Errorf("route by %s: %w", gateway, err)
			}
		}
		return nil
	})
	return pod, neighbour
}

// address adds addresses to an interface and sets it up.
func (s *space) address(device string, addresses ...string) {
	s.t.Helper()
	s.do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, text := range addresses {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				if !hasIPv6() {
					continue
				}
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("address %s: %w", text, err)
			}
		}
		return nil
	})
}

// listen answers on the ports of both families with the name, the client's address, its own
// address if it is translated and, if it differs, the original destination.
func (s *space) listen(name string, ports ...int) {
	s.t.Helper()
	s.do(func() error {
		for _, port := range ports {
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
						go answer(name, conn.(*net.TCPConn))
					}
				}()
			}
		}
		return nil
	})
}

func answer(name string, conn *net.TCPConn) {
	defer conn.Close()
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	text := fmt.Sprintf("%s from %s", name, from)
	if translated6.Contains(local.Addr()) {
		text += " on " + local.Addr().String()
	}
	if original, err := originalDestination(conn); err == nil && original != local {
		text += " to " + original.String()
	}
	fmt.Fprintln(conn, text)
}

func originalDestination(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	is4 := conn.LocalAddr().(*net.TCPAddr).IP.To4() != nil
	var (
		result netip.AddrPort
		failed error
	)
	err = raw.Control(func(fd uintptr) {
		// In both kinds of addresses the port follows the family, big-endian.
		var b [unix.SizeofSockaddrInet6]byte
		size := uint32(len(b))
		level, at, bytes := unix.SOL_IPV6, 8, 16
		if is4 {
			level, at, bytes = unix.SOL_IP, 4, 4
		}
		// SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST have the same number.
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), unix.SO_ORIGINAL_DST,
			uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
			failed = errno
			return
		}
		addr, _ := netip.AddrFromSlice(b[at : at+bytes])
		result = netip.AddrPortFrom(addr, uint16(b[2])<<8|uint16(b[3]))
	})
	return result, errors.Join(err, failed)
}

// ask connects as a user, and from an address if one is given, and returns the answer or
// "refused".
func (s *space) ask(uid int, from, to string) string {
	s.t.Helper()
	var text string
	s.do(func() error {
		dialer := net.Dialer{Timeout: 5 * time.Second}
		if from != "" {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
		}
		// A socket belongs to the user that opened it. The thread is not used again.
		if err := unix.Setfsuid(uid); err != nil {
			return err
		}
		conn, err := dialer.DialContext(context.Background(), "tcp", to)
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
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		text = strings.TrimSpace(line)
		return nil
	})
	return text
}

// golden compares with a file, or writes it if UPDATE is set.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("the rules are not those of %s, which UPDATE=1 rewrites; they are:\n%s", file, got)
	}
}
