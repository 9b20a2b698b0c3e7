package repo

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

// conn is a connection, below TLS.
type conn struct {
	net.Conn
	server *Server
	// busy says that a request is answered.
	busy atomic.Bool

	mu     sync.Mutex
	closed bool
	// session is nil until the first request that is let in.
	session *session
	// until is when the connection must take no more requests, and expiry ends it for
	// good.
	until  time.Time
	expiry *time.Timer
}

// settle notes whose the connection is, which it is until it is closed.
func (c *conn) settle(s *session, notAfter time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		// The request that came over it finds out.
		s.server.leave(s, c)
		return
	}
	if stranger, ok := c.Conn.(*limit.Conn); ok {
		stranger.Settle()
	}
	left := time.Until(notAfter)
	c.session, c.until = s, time.Now().Add(delivery.Lifetime(left))
	c.expiry = time.AfterFunc(left, func() { _ = c.Close() })
}

// of returns the session of the connection, if it is known, and until when it lasts.
func (c *conn) of() (*session, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, c.until
}

// Close is for net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	session, first := c.session, !c.closed
	c.closed = true
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.mu.Unlock()
	if first && session != nil {
		c.server.leave(session, c)
	}
	return c.Conn.Close()
}
