package envoy

import (
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
	p.Check(t, e.address, e.as(buyer))
	if got, err := e.hello(e.tcp, e.as(buyer)); got != "hello\n" {
		t.Errorf("another port answers %q, %v", got, err)
	}
}
