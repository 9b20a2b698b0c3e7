package xds

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// serverCredentials are gRPC's TLS credentials. They also expose the underlying
// connection and limit the number of connections per proxy.
type serverCredentials struct {
	credentials.TransportCredentials
	known *connections
}

// connections holds the open connections of each proxy by its UID, oldest first.
type connections struct {
	mu      sync.Mutex
	byProxy map[string][]net.Conn
}

// add registers a connection of the proxy and closes the oldest ones above the limit: a
// proxy that reconnects has lost its former connections. The returned function
// unregisters the connection.
func (c *connections) add(uid string, raw net.Conn) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := append(c.byProxy[uid], raw)
	for ; len(all) > connectionsPerProxy; all = all[1:] {
		_ = all[0].Close()
	}
	c.byProxy[uid] = all
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(c.byProxy[uid]), func(other net.Conn) bool { return other == raw })
		if c.byProxy[uid] = rest; len(rest) == 0 {
			delete(c.byProxy, uid)
		}
	})
}

// authInfo describes an authenticated connection.
type authInfo struct {
	credentials.TLSInfo
	// raw is the connection below TLS. Closing it is the last resort against a stuck
	// client.
	raw net.Conn
}

const http2 = "h2"

func newCredentials(config *tls.Config) serverCredentials {
	config = delivery.Speak(config, http2, nil)
	return serverCredentials{credentials.NewTLS(config), &connections{byProxy: make(map[string][]net.Conn)}}
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
		// Its stream reports the reason. Until then it counts as unauthenticated.
		return conn, authInfo{TLSInfo: state, raw: raw}, nil
	}
	if limited, ok := raw.(*limit.Conn); ok {
		limited.Settle()
	}
	return &proxyConn{conn, c.known.add(peer.ProxyUID, raw)}, authInfo{TLSInfo: state, raw: raw}, nil
}

// proxyConn unregisters itself when it is closed.
type proxyConn struct {
	net.Conn
	unregister func()
}

// Close implements net.Conn.
func (c *proxyConn) Close() error {
	defer c.unregister()
	return c.Conn.Close()
}

// Clone implements credentials.TransportCredentials.
func (c serverCredentials) Clone() credentials.TransportCredentials {
	return serverCredentials{c.TransportCredentials.Clone(), c.known}
}

var _ credentials.TransportCredentials = serverCredentials{}
