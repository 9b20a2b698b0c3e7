package repo

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// http1 is the only protocol that is served: a long poll with HTTP/2 needs more memory.
const http1 = "http/1.1"

// tlsListener accepts secured connections.
type tlsListener struct {
	net.Listener
	server *Server
	config *tls.Config
}

// Accept implements net.Listener. The handshake happens with the first Read.
func (l *tlsListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	below := &conn{Conn: raw, server: l.server}
	return &secured{Conn: tls.Server(below, l.config), below: below}, nil
}

// secured is the TLS connection that the HTTP server uses.
type secured struct {
	*tls.Conn
	below *conn
	// begun says that Read was called.
	begun bool
}

type connKey struct{}

func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func connOf(ctx context.Context) *secured {
	c, _ := ctx.Value(connKey{}).(*secured)
	return c
}

// Read implements net.Conn. The HTTP server reads from one goroutine at a time.
func (c *secured) Read(p []byte) (int, error) {
	if c.begun {
		return c.Conn.Read(p)
	}
	c.begun = true
	// The HTTP server sets the read deadline.
	_ = c.SetWriteDeadline(time.Now().Add(headWithin))
	if err := c.Handshake(); err != nil {
		return 0, err
	}
	_ = c.SetWriteDeadline(time.Time{})
	return c.Conn.Read(p)
}
