package xds

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// TestConnectionsOfManyProxies connects and disconnects proxies concurrently, for the
// race detector. Disconnected proxies must leave nothing behind.
func TestConnectionsOfManyProxies(t *testing.T) {
	known := &connections{byProxy: make(map[string][]net.Conn)}
	var proxies sync.WaitGroup
	for i := range 16 {
		proxies.Go(func() {
			for j := range 200 {
				conn, other := net.Pipe()
				forget := known.add(fmt.Sprint("proxy-", (i+j)%4), conn)
				_ = other.Close()
				forget()
				forget()
			}
		})
	}
	proxies.Wait()
	if len(known.byProxy) > 0 {
		t.Errorf("connections of %d proxies are remembered, want none", len(known.byProxy))
	}
}

// isClosed waits until the server has closed the connection, and fails if it takes as
// long as the handshake timeout.
func isClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout / 2))
	// HTTP/2 servers send first.
	for buffer := make([]byte, 1024); ; {
		if _, err := conn.Read(buffer); err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				t.Fatal("the connection is open")
			}
			return
		}
	}
}

// TestUnauthenticatedAreLimited opens many connections that send nothing.
func TestUnauthenticatedAreLimited(t *testing.T) {
	h := newCore(t).serve(t, forever)
	served := connected(t, h)
	dial := func() net.Conn {
		t.Helper()
		conn, err := h.listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for range unauthenticatedPerAddress {
		dial()
	}
	isClosed(t, dial())
	h.set("p", shop.with(endpoints, "b@1", "2"))
	served.take("Endpoint b@1=2")
}

// TestOldestConnectionEnds opens too many idle connections of one proxy.
func TestOldestConnectionEnds(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.set("p", shop)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: h.ca.Pool(), ServerName: "controller", NextProtos: []string{http2},
		Certificates: []tls.Certificate{h.ca.SignFor(proxyOf("p"), time.Hour)},
	}
	var all []*tls.Conn
	for range connectionsPerProxy + 1 {
		raw, err := h.listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, config)
		t.Cleanup(func() { conn.Close() })
		if err := conn.Handshake(); err != nil {
			t.Fatal(err)
		}
		// The server's first bytes show that it has verified the certificate.
		if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	isClosed(t, all[0])
	again := h.delta(t, "p")
	again.subscribe(listeners)
	again.take("Listener l=1")
}
