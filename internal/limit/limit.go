// Package limit limits what unauthenticated clients can use of a server, in total and
// each of them. Delivery kits, other servers of the control plane and the agent use it.
// Excess is rejected rather than queued: clients try again, perhaps at another replica.
// If everything is taken, those who have most give way to others. It also keeps a process
// within the memory that its container may use.
//
// It imports only the standard library.
package limit

import (
	"net"
	"net/netip"
	"sync"
)

// Counter counts what is taken, in total and by key. It is safe for concurrent use.
type Counter[K comparable] struct {
	all, each int

	mu    sync.Mutex
	taken int
	by    map[K]int
}

// NewCounter returns a Counter with limits for the total and for each key, both at
// least 1.
func NewCounter[K comparable](all, each int) *Counter[K] {
	return &Counter[K]{all: max(all, 1), each: max(each, 1), by: make(map[K]int)}
}

// Take takes one for the key, or returns false if a limit is reached. give gives it
// back; only its first call has an effect.
func (c *Counter[K]) Take(key K) (give func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken >= c.all || c.by[key] >= c.each {
		return nil, false
	}
	c.taken++
	c.by[key]++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.taken--
		if c.by[key]--; c.by[key] == 0 {
			delete(c.by, key)
		}
	}), true
}

// Address returns the IP address in a remote address as net.Addr and http.Request have
// it. IPv4-mapped addresses become IPv4; without an address it returns the zero Addr.
func Address(remote string) netip.Addr {
	address, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap()
}

// Listener returns a listener that limits the connections in total and per address by
// the Share. Connections that get no place, or lose it later, are closed; refused is
// called for each. A connection counts until it is closed or its Settle is called.
func Listener(listener net.Listener, share *Share[netip.Addr], refused func()) net.Listener {
	return &limited{listener, share, refused}
}

type limited struct {
	net.Listener
	share   *Share[netip.Addr]
	refused func()
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		place, ok := l.share.Take(Address(conn.RemoteAddr().String()), 1, func() {
			l.refused()
			_ = conn.Close()
		})
		if ok {
			return &Conn{Conn: conn, place: place}, nil
		}
		l.refused()
		_ = conn.Close()
	}
}

// Conn is a counted connection.
type Conn struct {
	net.Conn
	place *Place[netip.Addr]
}

// Settle stops counting the connection, once the client is authenticated. It can then
// no longer lose its place.
func (c *Conn) Settle() { c.place.Give() }

// Close implements net.Conn.
func (c *Conn) Close() error {
	defer c.place.Give()
	return c.Conn.Close()
}
