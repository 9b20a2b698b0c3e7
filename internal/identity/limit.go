package identity

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/peer"
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
		from := addressOf(conn.RemoteAddr())
		if l.take(from) {
			return &limitedConn{Conn: conn, end: sync.OnceFunc(func() { l.give(from) })}, nil
		}
		l.refused()
		_ = conn.Close()
	}
}

func addressOf(remote net.Addr) netip.Addr {
	address, err := netip.ParseAddrPort(remote.String())
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

// turns limits how many requests are under way, in all and of one address. In all they
// wait for each other; an address that asks for too much at once is refused, so that it
// keeps nobody else waiting.
type turns struct {
	all chan struct{}

	mu   sync.Mutex
	from map[netip.Addr]int
}

func newTurns(limit int) *turns {
	return &turns{all: make(chan struct{}, limit), from: map[netip.Addr]int{}}
}

// take waits for a turn. The function ends it.
func (t *turns) take(ctx context.Context, from netip.Addr) (func(), error) {
	t.mu.Lock()
	if t.from[from] >= max(1, cap(t.all)/16) {
		t.mu.Unlock()
		return nil, errBusy
	}
	t.from[from]++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.from[from]--; t.from[from] == 0 {
			delete(t.from, from)
		}
	}
	select {
	case t.all <- struct{}{}:
		return func() { <-t.all; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// caller returns the address that a call comes from.
func caller(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	return addressOf(p.Addr)
}
