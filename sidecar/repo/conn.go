package repo

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// conn is a connection below TLS.
type conn struct {
	net.Conn
	server *Server
	// busy says that a request is being answered.
	busy atomic.Bool

	mu     sync.Mutex
	closed bool
	// session is nil until the first request is admitted.
	session *session
	// After until the connection accepts no more requests; expiry closes it.
	until  time.Time
	expiry *time.Timer
}

// settle assigns the connection to the session, until it is closed.
func (c *conn) settle(s *session, notAfter time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		// The request on it fails when it writes.
		s.server.leave(s, c)
		return
	}
	if unauthenticated, ok := c.Conn.(*limit.Conn); ok {
		unauthenticated.Settle()
	}
	left := time.Until(notAfter)
	c.session, c.until = s, time.Now().Add(delivery.Lifetime(left))
	c.expiry = time.AfterFunc(left, func() { _ = c.Close() })
}

// assigned returns the session of the connection, nil if there is none yet, and until when
// the connection accepts requests.
func (c *conn) assigned() (*session, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, c.until
}

// Close implements net.Conn.
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
