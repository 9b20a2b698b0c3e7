package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// redirect returns the caller as seen at the destination: without its sidecar if the
// connection is not redirected.
func (x *inquiry) redirect(c caller, address netip.AddrPort) caller {
	if c.view == nil || c.workload.Redirection.TakesOutbound(address) {
		return c
	}
	return x.bypass(c, address.String())
}

// redirectToHost is redirect for an unknown address.
func (x *inquiry) redirectToHost(c caller, host string, port uint16) caller {
	if c.view == nil || c.workload.Redirection.TakesOutboundPort(port) {
		return c
	}
	return x.bypass(c, fmt.Sprintf("%s, port %d", host, port))
}

func (x *inquiry) bypass(c caller, what string) caller {
	x.say("redirection", fmt.Sprintf("connections of %s to %s are excluded from redirection, so they bypass its sidecar", c.workload.Name, what))
	c.view = nil
	return c
}

// ownAddress reports whether the address is the caller's own. Such connections stay in
// the pod and bypass the sidecar.
func (c caller) ownAddress(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(c.workload.Addresses, addr)
}

// bypassesInbound reports whether the connection reaches the application directly,
// because its port is excluded from redirection.
func (x *inquiry) bypassesInbound(a arrival) bool {
	w, ok := x.snapshot.Workloads.Get(a.workload)
	return ok && a.view != nil && !w.Redirection.TakesInbound(a.port)
}

// endAtApplication ends the path of a connection that bypasses the inbound sidecar.
func (x *inquiry) endAtApplication(a arrival) {
	text := fmt.Sprintf("port %d of the endpoint is excluded from redirection", a.port)
	if a.security == mesh.MeshTLS {
		x.end(Unreachable, "access", text+", so the application receives mesh TLS, which it does not support; exclude the port at the callers too, or not at all")
		return
	}
	x.end(Allowed, "access", text+", so the connection reaches the application without access control")
}
