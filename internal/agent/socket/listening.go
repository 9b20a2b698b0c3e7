package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Endpoint is where a socket listens. Sockets with the same endpoint and SO_REUSEPORT share
// its connections.
type Endpoint struct {
	Addr netip.AddrPort
	// only6 says that a socket of IPv6 takes no connections of IPv4.
	only6 bool
}

// String is for errors.
func (e Endpoint) String() string { return e.Addr.String() }

// Socket is a TCP socket, usually a listening one, with its local address.
type Socket struct {
	At    Endpoint
	Inode uint64
}

const (
	// inetDiagV6Only is INET_DIAG_SKV6ONLY.
	inetDiagV6Only = 11
	// diagSize is the size of an answer without attributes, which ends with the socket's inode.
	diagSize = diagUID + 8
)

// Sets of states of TCP sockets: listening ones, and connections that are open or that the kernel
// has not finished.
const (
	statesListening = 1 << 10
	StatesOpen      = 1<<1 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11
)

// List returns the TCP sockets of the agent's user in the pod in some states, by
// sock_diag(7).
func List(states uint32) ([]Socket, error) {
	var all []Socket
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		some, err := dumpSockets(family, states)
		if err != nil {
			return nil, fmt.Errorf("listing the proxy's sockets by sock_diag: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// ListListening returns the listening TCP sockets of the agent's user in the pod.
func ListListening() ([]Socket, error) { return List(statesListening) }

func dumpSockets(family byte, states uint32) ([]Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, err
	}
	if err := unix.Sendto(fd, newDiagRequest(unix.NLM_F_DUMP, family, states), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []Socket
	answer := make([]byte, 32<<10)
	for {
		n, _, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return nil, err
		}
		some, done, err := parseSockets(answer[:n])
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); done {
			return all, nil
		}
	}
}

// parseSockets reads the sockets of the agent's user in one answer, and whether it is the last one.
func parseSockets(b []byte) (all []Socket, done bool, err error) {
	for len(b) >= netlinkHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < netlinkHeader || size > len(b) {
			return nil, false, io.ErrUnexpectedEOF
		}
		message := b[:size]
		b = b[min(align4(size), len(b)):]
		switch kind := binary.NativeEndian.Uint16(message[4:]); kind {
		case unix.NLMSG_DONE:
			return all, true, nil
		case unix.NLMSG_ERROR:
			if len(message) < netlinkHeader+4 {
				return nil, false, io.ErrUnexpectedEOF
			}
			return nil, false, unix.Errno(-int32(binary.NativeEndian.Uint32(message[netlinkHeader:])))
		case sockDiagByFamily:
			if len(message) < diagSize {
				return nil, false, io.ErrUnexpectedEOF
			}
			if int(binary.NativeEndian.Uint32(message[diagUID:])) == os.Geteuid() {
				all = append(all, socketOf(message))
			}
		default:
			return nil, false, fmt.Errorf("unexpected answer of type %d", kind)
		}
	}
	return all, false, nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// socketOf reads a complete message about a socket.
func socketOf(message []byte) Socket {
	body := message[netlinkHeader:]
	ip := netip.AddrFrom4([4]byte(body[8:12]))
	if body[0] == unix.AF_INET6 {
		ip = netip.AddrFrom16([16]byte(body[8:24]))
	}
	l := Socket{
		At:    Endpoint{Addr: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(body[4:]))},
		Inode: uint64(binary.NativeEndian.Uint32(message[diagUID+4:])),
	}
	for rest := message[diagSize:]; len(rest) >= 4; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < 4 || size > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[2:]) == inetDiagV6Only && size > 4 {
			l.At.only6 = rest[4] != 0
		}
		rest = rest[min(align4(size), len(rest)):]
	}
	return l
}

// Of returns the inodes of the sockets of a process, given as its ID or "self".
func Of(process string) (map[uint64]bool, error) {
	folder := filepath.Join("/proc", process, "fd")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	inodes := make(map[uint64]bool)
	for _, entry := range entries {
		to, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err != nil {
			// It was closed meanwhile, as that of the folder is.
			continue
		}
		if text, ok := strings.CutPrefix(to, "socket:["); ok {
			if inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64); err == nil {
				inodes[inode] = true
			}
		}
	}
	return inodes, nil
}

// maxHops is the highest number of hops that a packet can have left.
const maxHops = 255

// ListenSilently opens a socket that shares the endpoint's connections, but drops the packets
// that the kernel gives it: whoever wants to connect tries again a second later. It demands
// packets with maxHops hops left, while Linux, BSD and Windows begin with 64 or 128.
func ListenSilently(endpoint Endpoint) (fd int, inode uint64, err error) {
	family := unix.AF_INET
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: int(endpoint.Addr.Port()), Addr: as4(endpoint.Addr.Addr())}
	if endpoint.Addr.Addr().Is6() {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(endpoint.Addr.Port()), Addr: endpoint.Addr.Addr().As16()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, 0, err
	}
	set := func(level, option, value int) {
		if err == nil {
			err = unix.SetsockoptInt(fd, level, option, value)
		}
	}
	set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	set(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	// For a socket of IPv6, too: it may take connections of IPv4.
	set(unix.IPPROTO_IP, unix.IP_MINTTL, maxHops)
	if family == unix.AF_INET6 {
		only6 := 0
		if endpoint.only6 {
			only6 = 1
		}
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only6)
		set(unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, maxHops)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	var stat unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &stat)
	}
	if err != nil {
		return -1, 0, errors.Join(fmt.Errorf("listening on %s beside the proxy: %w", endpoint, err), unix.Close(fd))
	}
	return fd, stat.Ino, nil
}

func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}
