package identity

import (
	"net"
	"net/netip"
	"sync"
)

// limitListener closes connections that are one too many, in all or of one address,
// rather than let them wait: a client comes again, to another replica perhaps.
type limitListener struct {
	net.Listener
	max     int
	refused func()

	mu   sync.Mutex
	all  int
	from map[netip.Addr]int
}

func newLimitListener(listener net.Listener, limit int, refused func()) *limitListener {
	return &limitListener{Listener: listener, max: limit, refused: refused, from: map[netip.Addr]int{}}
}

// Accept is for net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := remote(conn)
		if l.take(from) {
			return &limitedConn{Conn: conn, end: sync.OnceFunc(func() { l.give(from) })}, nil
		}
		l.refused()
		_ = conn.Close()
	}
}

func remote(conn net.Conn) netip.Addr {
	address, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap()
}

func (l *limitListener) take(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.max || l.from[from] >= max(1, l.max/16) {
		return false
	}
	l.all++
	l.from[from]++
	return true
}

func (l *limitListener) give(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.from[from]--; l.from[from] == 0 {
		delete(l.from, from)
	}
}

// limitedConn tells when it is closed.
type limitedConn struct {
	net.Conn
	end func()
}

// Close is for net.Conn.
func (c *limitedConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}
