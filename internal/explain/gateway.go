package explain

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// passGateway follows a request from a gateway at which it has arrived.
func (x *inquiry) passGateway(a arrival) {
	if x.passed[a.workload] {
		x.end(Unreachable, "gateway", "the request has passed "+a.workload+" already, and would go round for ever")
		return
	}
	if x.passed == nil {
		x.passed = make(map[string]bool)
	}
	x.passed[a.workload] = true
	defer delete(x.passed, a.workload)
	port, ok := a.view.Outbound.ListenerAt(a.port)
	switch {
	case !ok:
		x.refuse(Unreachable, telemetry.ReasonNoEndpoint, "gateway", fmt.Sprintf("the gateway has no listener at port %d", a.port))
		return
	case a.security == mesh.MeshTLS:
		x.end(Unreachable, "gateway", "a gateway does not take mesh TLS")
		return
	}
	w, ok := x.snapshot.Workloads.Get(a.workload)
	if !ok {
		x.end(Unreachable, "gateway", "the gateway's pod is gone")
		return
	}
	x.say("gateway", fmt.Sprintf("the %s proxy of %s takes it, and calls as %s", a.view.Proxy.Class, a.workload, a.view.Proxy.Identity))
	x.call(caller{workload: w, view: a.view}, port)
}

// callsItself ends an explanation whose caller is a gateway's pod, which has no application.
func (x *inquiry) callsItself(c caller) bool {
	if c.view == nil || !c.view.Proxy.Gateway {
		return false
	}
	x.end(Unreachable, "gateway", fmt.Sprintf("%s is a gateway's pod, which only passes on what others send to it; ask about a request to %s", c.workload.Name, c.workload.Name))
	return true
}
