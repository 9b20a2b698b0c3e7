package capture

import (
	"errors"
	"fmt"
	"net"
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
		for _, table := range tables {
			found = found || table.Name == TableName
		}
		return nil
	})
	return found, err
}

// selfDialTime is how long a connection within the machine may take.
const selfDialTime = 5 * time.Second

// Redirected reports whether the rules are in the caller's network namespace. The caller
// needs no right for it: the rules refuse a connection to the proxy's port that was made
// to it, and without them there is one. It listens on that port itself, unless the proxy
// does already.
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
		return false, fmt.Errorf("trying the proxy's port: %w", err)
	}
}
