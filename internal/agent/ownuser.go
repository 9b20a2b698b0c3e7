package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSocketPath is how long the path of a Unix socket may be (unix(7)).
const maxSocketPath = 107

// listenForOwnUser listens on a Unix socket to which only the agent's own user, and so
// the proxy, can connect: the file's mode says so, and the kernel is asked about each
// connection, since a mode can be changed.
func listenForOwnUser(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listening for the proxy: %w", err)
	}
	// The agent of a container that was restarted has left its own.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listening for the proxy: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
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

// peerUser returns the user of the process that has connected.
func peerUser(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var (
		peer    *unix.Ucred
		peerErr error
	)
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if peerErr != nil {
		return 0, peerErr
	}
	return int(peer.Uid), nil
}
