package xds

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// TestConnectionsOfManyProxies has proxies come and go at once, for the race detector. Those
// that are gone take no memory.
func TestConnectionsOfManyProxies(t *testing.T) {
	known := &connections{of: make(map[string][]net.Conn)}
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
	if len(known.of) > 0 {
		t.Errorf("connections of %d proxies are remembered, want none", len(known.of))
	}
}

// isClosed waits until the other end has closed the connection, sooner than it would
// for its silence alone.
func isClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout / 2))
	// An HTTP/2 server speaks first.
	for buffer := make([]byte, 1024); ; {
		if _, err := conn.Read(buffer); err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				t.Fatal("the connection is open")
			}
			return
		}
	}
}

// TestStrangersAreLimited has somebody connect again and again and say nothing.
func TestStrangersAreLimited(t *testing.T) {
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
	for range strangersEach {
		dial()
	}
	isClosed(t, dial())
	h.set("p", shop.with(endpoints, "b@1", "2"))
	served.take("Endpoint b@1=2")
}

// TestOldestConnectionEnds has one proxy open connections that it does nothing with.
func TestOldestConnectionEnds(t *testing.T) {
	h := newCore(t).serve(t, forever)
	h.set("p", shop)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: h.ca.Pool(), ServerName: "controller", NextProtos: []string{http2},
		Certificates: []tls.Certificate{h.ca.workload(t, proxyOf("p"), time.Hour)},
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
		// What the server says first shows that it has seen the certificate.
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
