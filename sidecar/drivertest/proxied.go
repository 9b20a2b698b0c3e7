package drivertest

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Proxied is an application that gets its callers' addresses by the PROXY protocol: it answers
// requests with the caller's address and port, and greets TCP connections with them.
type Proxied struct {
	HTTP, HTTP2, TCP uint16
}

// StartProxied runs the application until the test ends.
func StartProxied(t testing.TB) *Proxied {
	t.Helper()
	p := new(Proxied)
	for _, port := range []*uint16{&p.HTTP, &p.HTTP2} {
		listener := listenProxied(t)
		*port = uint16(listener.Addr().(*net.TCPAddr).Port)
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, r.RemoteAddr)
		}))
		server.Listener.Close()
		server.Listener, server.Config.Protocols = listener, new(http.Protocols)
		server.Config.Protocols.SetHTTP1(port == &p.HTTP)
		server.Config.Protocols.SetUnencryptedHTTP2(port == &p.HTTP2)
		server.Start()
		t.Cleanup(server.Close)
	}
	listener := listenProxied(t)
	p.TCP = uint16(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, conn.RemoteAddr())
			conn.Close()
		}
	}()
	return p
}

// Check calls each port as two clients in turn, whose connections are open at the same time. The
// proxy listens on the address, and learns source and destination of a connection, in place of
// what redirection says, by a header of the PROXY protocol before the handshake.
func (p *Proxied) Check(t *testing.T, address string, config *tls.Config) {
	t.Helper()
	sources := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.8:4321"), netip.MustParseAddrPort("10.244.0.9:4322")}
	connect := func(source netip.AddrPort, port uint16) (net.Conn, *bufio.Reader) {
		t.Helper()
		plain, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { plain.Close() })
		_ = plain.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(plain, "PROXY TCP4 %s 127.0.0.1 %d %d\r\n", source.Addr(), source.Port(), port)
		conn := tls.Client(plain, config)
		if err := conn.Handshake(); err != nil {
			t.Fatal(err)
		}
		return conn, bufio.NewReader(conn)
	}
	for _, port := range []uint16{p.HTTP, p.HTTP2} {
		conns := map[netip.AddrPort]net.Conn{}
		answers := map[netip.AddrPort]*bufio.Reader{}
		for _, source := range sources {
			conns[source], answers[source] = connect(source, port)
		}
		for range 2 {
			for _, source := range sources {
				fmt.Fprint(conns[source], "GET / HTTP/1.1\r\nHost: books.example.com\r\n\r\n")
				response, err := http.ReadResponse(answers[source], nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(response.Body)
				if got := strings.TrimSpace(string(body)); err != nil || got != source.String() {
					t.Errorf("the application gets a request from %q, %v, want %s", got, err, source)
				}
			}
		}
	}
	for _, source := range sources {
		_, greeting := connect(source, p.TCP)
		if got, err := greeting.ReadString('\n'); strings.TrimSpace(got) != source.String() {
			t.Errorf("the application gets a connection from %q, %v, want %s", got, err, source)
		}
	}
}

// listenProxied returns a ProxiedListener on a loopback port.
func listenProxied(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return ProxiedListener(t, listener)
}

// ProxiedListener returns a listener for the connections of another one that begin with a header
// of the PROXY protocol, version 2. Their RemoteAddr is the source in the header. A connection
// without a header is closed and fails the test.
func ProxiedListener(t testing.TB, listener net.Listener) net.Listener {
	return &proxiedListener{listener, t}
}

type proxiedListener struct {
	net.Listener
	t testing.TB
}

func (l *proxiedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source, err := readProxyHeader(conn)
		if err == nil {
			return &proxiedConn{conn, net.TCPAddrFromAddrPort(source)}, nil
		}
		l.t.Errorf("a connection without a header of the PROXY protocol: %v", err)
		conn.Close()
	}
}

type proxiedConn struct {
	net.Conn
	source net.Addr
}

func (c *proxiedConn) RemoteAddr() net.Addr { return c.source }

const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// readProxyHeader reads a header and nothing behind it.
func readProxyHeader(conn net.Conn) (source netip.AddrPort, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	defer func() { err = errors.Join(err, conn.SetReadDeadline(time.Time{})) }()
	var start [16]byte
	if _, err := io.ReadFull(conn, start[:]); err != nil {
		return source, err
	}
	addresses := make([]byte, binary.BigEndian.Uint16(start[14:]))
	const proxyCommand, tcp4, tcp6 = 0x21, 0x11, 0x21
	if string(start[:12]) != proxySignature || start[12] != proxyCommand {
		return source, fmt.Errorf("it begins with %q", start)
	}
	if _, err := io.ReadFull(conn, addresses); err != nil {
		return source, err
	}
	switch {
	case start[13] == tcp4 && len(addresses) >= 12:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addresses)), binary.BigEndian.Uint16(addresses[8:])), nil
	case start[13] == tcp6 && len(addresses) >= 36:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(addresses)), binary.BigEndian.Uint16(addresses[32:])), nil
	}
	return source, fmt.Errorf("family %#x with %d bytes", start[13], len(addresses))
}
