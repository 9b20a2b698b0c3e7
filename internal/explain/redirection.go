package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// redirect returns the caller as it calls an address: without its sidecar, if the
// connection does not go through it.
func (x *inquiry) redirect(c caller, to netip.AddrPort) caller {
	if c.view == nil || c.workload.Redirection.TakesOutbound(to) {
		return c
	}
	return x.past(c, to.String())
}

// redirectToHost is redirect where the address is not known.
func (x *inquiry) redirectToHost(c caller, host string, port uint16) caller {
	if c.view == nil || c.workload.Redirection.TakesOutboundPort(port) {
		return c
	}
	return x.past(c, fmt.Sprintf("%s, port %d", host, port))
}

func (x *inquiry) past(c caller, what string) caller {
	x.say("redirection", fmt.Sprintf("connections of %s to %s are excluded from redirection, so they go past its sidecar", c.workload.Name, what))
	c.view = nil
	return c
}

// ownAddress reports whether the address is the caller's own, where connections stay in
// the pod and meet no sidecar.
func (c caller) ownAddress(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(c.workload.Addresses, addr)
}

// meetsApplication reports whether the connection reaches the application itself,
// because its port is excluded from redirection.
func (x *inquiry) meetsApplication(a arrival) bool {
	w, ok := x.snapshot.Workloads.Get(a.workload)
	return ok && a.view != nil && !w.Redirection.TakesInbound(a.port)
}

// meetApplication ends the way of a connection that no sidecar takes.
func (x *inquiry) meetApplication(a arrival) {
	text := fmt.Sprintf("port %d of the endpoint is excluded from redirection", a.port)
	if a.security == mesh.MeshTLS {
		x.end(Unreachable, "access", text+", so its application itself gets the mesh TLS, which it does not speak; exclude the port at the callers too, or nowhere")
		return
	}
	x.end(Allowed, "access", text+", so the application takes the connection and nobody decides")
}
