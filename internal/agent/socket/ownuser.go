package socket

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxPath is the maximum length of a Unix socket's path, in bytes (unix(7)).
const MaxPath = 107

// ListenForOwnUser listens on a Unix socket that only processes with the agent's user ID, such
// as the proxy, can use. The network is unix or unixpacket. The file's mode excludes others;
// since a mode can be changed, each connection's user is checked too.
func ListenForOwnUser(network, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listening for the proxy: %w", err)
	}
	// In a restarted container the previous agent's socket still exists.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listening for the proxy: %w", err)
	}
	listener, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listening for the proxy: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listening for the proxy: %w", err), listener.Close())
	}
	return ownUserListener{listener}, nil
}

// ownUserListener closes the connections of other users.
type ownUserListener struct{ *net.UnixListener }

// Accept is for net.Listener.
func (l ownUserListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUser(conn); err == nil && uid == os.Getuid() {
			return conn, nil
		}
		conn.Close()
	}
}

// peerUser returns the user ID of the connected process.
func peerUser(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if peerErr != nil {
		return 0, peerErr
	}
	return int(peer.Uid), nil
}

// IsOwnUser reports whether a request from this machine comes from a process with the
// agent's user ID. The kernel knows the owner of the client's socket; if it does not
// answer, the result is false.
func IsOwnUser(r *http.Request) bool {
	server, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	here, hereErr := netip.ParseAddrPort(server.String())
	there, thereErr := netip.ParseAddrPort(r.RemoteAddr)
	if hereErr != nil || thereErr != nil {
		return false
	}
	uid, err := queryUser(there, here)
	if err != nil {
		uid, err = scanForUser(there, here)
	}
	return err == nil && uid == os.Getuid()
}

// errNoSocket is returned if the kernel has no such socket.
var errNoSocket = errors.New("there is no such socket")

// queryUser returns the user ID of this machine's TCP socket with the addresses. It queries
// the kernel for that socket only (sock_diag(7)).
func queryUser(local, remote netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	// The answer has arrived when Sendto returns. If not, none will come.
	answer := make([]byte, 4<<10)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, err
	}
	return diagUser(answer[:n])
}

// The layout of the kernel's messages (linux/netlink.h, linux/inet_diag.h).
const (
	sockDiagByFamily = 20
	netlinkHeader    = 16
	diagRequestSize  = netlinkHeader + 56
	// diagUID is the offset of the user ID in an answer: after the header, four bytes, the
	// socket's addresses and three numbers.
	diagUID = netlinkHeader + 4 + 48 + 12
)

// newDiagRequest returns a query for TCP sockets of the family in the states, with flags of
// netlink.
func newDiagRequest(flags uint16, family byte, states uint32) []byte {
	b := make([]byte, diagRequestSize)
	binary.NativeEndian.PutUint32(b[0:], diagRequestSize)
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	body := b[netlinkHeader:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], states)
	return b
}

// diagRequest returns the query for one socket.
func diagRequest(local, remote netip.AddrPort) []byte {
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	family := byte(unix.AF_INET)
	if from.Is6() {
		family = unix.AF_INET6
	}
	b := newDiagRequest(0, family, ^uint32(0))
	body := b[netlinkHeader:]
	binary.BigEndian.PutUint16(body[8:], local.Port())
	binary.BigEndian.PutUint16(body[10:], remote.Port())
	copy(body[12:28], from.AsSlice())
	copy(body[28:44], to.AsSlice())
	// Any interface; no cookie, which would identify a socket seen before.
	binary.NativeEndian.PutUint64(body[48:], ^uint64(0))
	return b
}

// diagUser returns the user ID in an answer.
func diagUser(b []byte) (int, error) {
	if len(b) < netlinkHeader {
		return 0, io.ErrUnexpectedEOF
	}
	switch kind := binary.NativeEndian.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR && len(b) >= netlinkHeader+4:
		if code := -int32(binary.NativeEndian.Uint32(b[netlinkHeader:])); code > 0 {
			return 0, unix.Errno(code)
		}
		return 0, errNoSocket
	case kind != sockDiagByFamily:
		return 0, fmt.Errorf("unexpected answer of type %d", kind)
	case len(b) < diagUID+4:
		return 0, io.ErrUnexpectedEOF
	}
	uid := binary.NativeEndian.Uint32(b[diagUID:])
	if uid > 1<<31-1 {
		return 0, fmt.Errorf("%d is not a user ID", uid)
	}
	return int(uid), nil
}

// scanForUser is queryUser by the kernel's list of all sockets, for machines without
// sock_diag. It is slow if there are many connections.
func scanForUser(local, remote netip.AddrPort) (int, error) {
	// /proc/self would be the list of the first thread, which may be in another network
	// namespace than this one.
	for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue
		}
		uid, err := userOf(file, local, remote)
		file.Close()
		if err == nil {
			return uid, nil
		}
	}
	return 0, errNoSocket
}

// userOf returns the user ID of the socket with these addresses in a list in the format of
// /proc/net/tcp.
func userOf(table io.Reader, local, remote netip.AddrPort) (int, error) {
	port := fmt.Appendf(nil, ":%04X ", local.Port())
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), port) {
			continue
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || !isSocket(fields[1], local) || !isSocket(fields[2], remote) {
			continue
		}
		uid, err := strconv.ParseUint(fields[7], 10, 31)
		return int(uid), err
	}
	return 0, errNoSocket
}

// isSocket reports whether a field of the kernel's list is the address, as 32-bit words in
// the machine's byte order, and the port.
func isSocket(field string, address netip.AddrPort) bool {
	words, port, ok := strings.Cut(field, ":")
	if !ok || port != fmt.Sprintf("%04X", address.Port()) {
		return false
	}
	b, err := hex.DecodeString(words)
	if err != nil || len(b)%4 != 0 {
		return false
	}
	for word := range slices.Chunk(b, 4) {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	is, ok := netip.AddrFromSlice(b)
	return ok && is.Unmap() == address.Addr().Unmap()
}
