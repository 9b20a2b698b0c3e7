package xds

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

type tlsState = tls.ConnectionState

// serverCredentials are gRPC's for TLS, which also tell of the connection below and
// bound how many a proxy has.
type serverCredentials struct {
	credentials.TransportCredentials
	known *connections
}

// connections are those of each proxy, by its UID, the oldest first.
type connections struct {
	mu sync.Mutex
	of map[string][]net.Conn
}

// add notes a connection of the proxy's, and closes the oldest if there are too many:
// a proxy that comes again has lost what it had. The function forgets the connection.
func (c *connections) add(uid string, raw net.Conn) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := append(c.of[uid], raw)
	for ; len(all) > connectionsPerProxy; all = all[1:] {
		_ = all[0].Close()
	}
	c.of[uid] = all
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(c.of[uid]), func(other net.Conn) bool { return other == raw })
		if c.of[uid] = rest; len(rest) == 0 {
			delete(c.of, uid)
		}
	})
}

// authInfo is what is known of a connection.
type authInfo struct {
	credentials.TLSInfo
	// raw is the connection below TLS, to be closed when nothing else helps.
	raw net.Conn
}

const http2 = "h2"

func newCredentials(config *tls.Config) serverCredentials {
	config = delivery.Speak(config, http2, nil)
	return serverCredentials{credentials.NewTLS(config), &connections{of: make(map[string][]net.Conn)}}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	state, _ := info.(credentials.TLSInfo)
	peer, err := driver.PeerOf(&state.State)
	if err != nil {
		// Its stream is told why it is refused, and it stays a stranger.
		return conn, authInfo{TLSInfo: state, raw: raw}, nil
	}
	if stranger, ok := raw.(*limit.Conn); ok {
		stranger.Settle()
	}
	return &proxyConn{conn, c.known.add(peer.ProxyUID, raw)}, authInfo{TLSInfo: state, raw: raw}, nil
}

// proxyConn tells when it is closed.
type proxyConn struct {
	net.Conn
	forget func()
}

// Close is for net.Conn.
func (c *proxyConn) Close() error {
	defer c.forget()
	return c.Conn.Close()
}

// Clone implements credentials.TransportCredentials.
func (c serverCredentials) Clone() credentials.TransportCredentials {
	return serverCredentials{c.TransportCredentials.Clone(), c.known}
}

var _ interface {
	ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error)
	ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error)
} = serverCredentials{}
