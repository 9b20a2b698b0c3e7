package capture

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Present reports whether the rules of Apply are in the network namespace. It needs the
// capability NET_ADMIN, as Apply does.
func Present(options Options) (bool, error) {
	found := false
	err := in(options.NetNS, func() error {
		conn, err := connect()
		if err != nil {
			return err
		}
		tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
		if err != nil {
			return explain("listing the tables of nftables", err)
		}
		found = slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName })
		return nil
	})
	return found, err
}

// selfDialTime bounds a connection to the loopback address.
const selfDialTime = 5 * time.Second

// Redirected reports whether the rules are in the caller's network namespace. It needs no
// privileges: it dials the proxy's port, which the rules forbid. Unless the proxy already
// listens on that port, Redirected listens itself.
func Redirected() (bool, error) {
	address := fmt.Sprintf("127.0.0.1:%d", OutboundPort)
	listener, err := net.Listen("tcp4", address)
	switch {
	case err == nil:
		defer listener.Close()
	case !errors.Is(err, unix.EADDRINUSE):
		return false, fmt.Errorf("listening on the proxy's port: %w", err)
	}
	conn, err := net.DialTimeout("tcp4", address, selfDialTime)
	switch {
	case err == nil:
		conn.Close()
		return false, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return true, nil
	default:
		return false, fmt.Errorf("dialing the proxy's port: %w", err)
	}
}
