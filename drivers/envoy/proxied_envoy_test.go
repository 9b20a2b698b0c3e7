package envoy

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestProxyProtocol reads the caller's address in an application that asks for it.
func TestProxyProtocol(t *testing.T) {
	p := drivertest.StartProxied(t)
	e := runInbound(t, func(a *app) inboundCase {
		return inboundCase{inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
			{Port: p.HTTP, Protocol: mesh.HTTP, Access: anyone, ProxyProtocol: true},
			{Port: p.HTTP2, Protocol: mesh.HTTP2, Access: anyone, ProxyProtocol: true},
			{Port: p.TCP, Protocol: mesh.TCPServerFirst, Access: anyone, ProxyProtocol: true},
			{Port: a.tcp, Protocol: mesh.TCPServerFirst, Access: anyone},
		}}}
	})
	p.Check(t, func(source netip.AddrPort, port uint16) (net.Conn, error) {
		conn, err := net.Dial("tcp", e.address)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(conn, "PROXY TCP4 %s 127.0.0.1 %d %d\r\n", source.Addr(), source.Port(), port)
		secured := tls.Client(conn, e.as(buyer))
		return secured, secured.Handshake()
	})
	if got, err := e.hello(e.tcp, e.as(buyer)); got != "hello\n" {
		t.Errorf("another port answers %q, %v", got, err)
	}
}
