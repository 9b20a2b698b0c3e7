package repo

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"slices"
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
	// begun says that something was read, and ahead is what was read too much.
	begun bool
	ahead []byte
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
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	c.ahead = nil
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
	n, err := c.tls.Read(p)
	if completed := withHost(p[:n]); completed != nil {
		n = copy(p, completed)
		c.ahead = completed[n:]
	}
	return n, err
}

// withHost returns the beginning of a connection with a Host in its request, or nil if
// there is no need for that: Pipy asks for a WebSocket by HTTP/1.1 without one, which
// the HTTP server does not take.
func withHost(begin []byte) []byte {
	head, _, whole := bytes.Cut(begin, []byte("\r\n\r\n"))
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if !whole || !bytes.HasSuffix(line, []byte(" HTTP/1.1")) {
		return nil
	}
	upgrade := false
	for field := range bytes.SplitSeq(rest, []byte("\r\n")) {
		name, value, _ := bytes.Cut(field, []byte(":"))
		if bytes.EqualFold(name, []byte("Host")) {
			return nil
		}
		if bytes.EqualFold(name, []byte("Upgrade")) && bytes.EqualFold(bytes.TrimSpace(value), []byte("websocket")) {
			upgrade = true
		}
	}
	if !upgrade {
		return nil
	}
	return slices.Concat(line, []byte("\r\nHost: repository"), begin[len(line):])
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
