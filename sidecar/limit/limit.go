// Package limit bounds what strangers can take of a server, in all and each for
// himself, for delivery kits, other servers of the control plane and the agent. What is one too
// many is refused rather than made to wait: a client comes again, to another replica
// perhaps. Where everything is taken, those who have most make room for the others.
//
// It imports the standard library only.
package limit

import (
	"net"
	"net/netip"
	"sync"
)

// Counter counts what is taken, in all and by key. It is safe for use by many
// goroutines.
type Counter[K comparable] struct {
	all, each int

	mu    sync.Mutex
	taken int
	by    map[K]int
}

// NewCounter returns a Counter that lets so many be taken at once, in all and by each
// key. Both are at least 1.
func NewCounter[K comparable](all, each int) *Counter[K] {
	return &Counter[K]{all: max(all, 1), each: max(each, 1), by: make(map[K]int)}
}

// Take takes one for the key, or returns false if there are as many as there may be.
// The function gives it back; only its first call does.
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

// Address returns the IP address of the remote end of a connection, which is given as
// net.Addr and http.Request have it as text; an IPv4 address as such, and the zero Addr
// if there is none.
func Address(remote string) netip.Addr {
	address, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap()
}

// Listener returns a listener that bounds how many connections there are, in all and
// from each address, as the Share says. A connection that gets no place is closed at
// once, and one that has lost its place is closed too; refused is called for each. A
// connection counts until it is closed or its Settle is called.
func Listener(listener net.Listener, share *Share[netip.Addr], refused func()) net.Listener {
	return &limited{listener, share, refused}
}

type limited struct {
	net.Listener
	share   *Share[netip.Addr]
	refused func()
}

// Accept is for net.Listener.
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

// Conn is a connection that is counted.
type Conn struct {
	net.Conn
	place *Place[netip.Addr]
}

// Settle ends that the connection counts, once it is known whose it is. It is then
// nobody else's to close.
func (c *Conn) Settle() { c.place.Give() }

// Close is for net.Conn.
func (c *Conn) Close() error {
	defer c.place.Give()
	return c.Conn.Close()
}
