package haproxy

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestProxyProtocol reads the caller's address in an application that asks for it, behind a
// listener for mesh TLS alone and behind one that looks at what comes first.
func TestProxyProtocol(t *testing.T) {
	for _, mode := range []mesh.TLSMode{mesh.Strict, mesh.Permissive} {
		t.Run(string(mode), func(t *testing.T) {
			a, p := newApp(t), drivertest.StartProxied(t)
			f := newFixture(store)
			f.inbound.TLS = mode
			f.inbound.Ports = []mesh.InboundPort{
				{Port: p.HTTP, Protocol: mesh.HTTP, Access: anyone, ProxyProtocol: true},
				{Port: p.HTTP2, Protocol: mesh.HTTP2, Access: anyone, ProxyProtocol: true},
				{Port: p.TCP, Protocol: mesh.TCPServerFirst, Access: anyone, ProxyProtocol: true},
				{Port: a.greeter, Protocol: mesh.TCPServerFirst, Access: anyone},
			}
			r, ca := runInbound(t, f)
			p.Check(t, local(r.inbound), ca.as(buyer, store))
			if got, err := hello(r.inbound, local(a.greeter), ca.as(buyer, store)); got != "hello\n" {
				t.Errorf("another port answers %q, %v", got, err)
			}
		})
	}
}
