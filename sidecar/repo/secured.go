package repo

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// http1 is the only protocol that is served: a long poll of HTTP/2 costs more memory.
const http1 = "http/1.1"

// listening is a listener of secured connections.
type listening struct {
	net.Listener
	server *Server
	config *tls.Config
}

// Accept is for net.Listener. The handshake is left to the first Read.
func (l *listening) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	below := &conn{Conn: raw, server: l.server}
	return &secured{tls: tls.Server(below, l.config), conn: below}, nil
}

// secured is a connection with TLS, as the HTTP server has it.
type secured struct {
	*conn
	tls *tls.Conn
	// begun says that something was read.
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

// Read is for net.Conn. The HTTP server reads from one goroutine at a time.
func (c *secured) Read(p []byte) (int, error) {
	if c.begun {
		return c.tls.Read(p)
	}
	c.begun = true
	// The deadline for reading is the HTTP server's.
	_ = c.tls.SetWriteDeadline(time.Now().Add(headWithin))
	if err := c.tls.Handshake(); err != nil {
		return 0, err
	}
	_ = c.tls.SetWriteDeadline(time.Time{})
	return c.tls.Read(p)
}

// Write is for net.Conn.
func (c *secured) Write(p []byte) (int, error) { return c.tls.Write(p) }

// Close is for net.Conn.
func (c *secured) Close() error { return c.tls.Close() }

// SetDeadline is for net.Conn.
func (c *secured) SetDeadline(t time.Time) error { return c.tls.SetDeadline(t) }

// SetReadDeadline is for net.Conn.
func (c *secured) SetReadDeadline(t time.Time) error { return c.tls.SetReadDeadline(t) }

// SetWriteDeadline is for net.Conn.
func (c *secured) SetWriteDeadline(t time.Time) error { return c.tls.SetWriteDeadline(t) }
