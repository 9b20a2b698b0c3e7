package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
)

const fieldProxyProtocol = "metadata.annotations[" + metadata.ProxyProtocolPorts + "]"

// inspectProxyProtocol reports ports without a header although the pod asks for it.
func (j *join) inspectProxyProtocol(r *graph.Reader, w *fact.Workload, f *fault) {
	if len(w.ProxyProtocol) > 0 && w.Class == "" {
		f.add(ReasonNoEffect, fieldProxyProtocol, "the pod has no sidecar, so its application gets no header of the PROXY protocol")
		return
	}
	targets := j.targets(r, w)
	for _, port := range w.ProxyProtocol {
		switch {
		case !w.Redirection.TakesInbound(port):
			f.add(ReasonNoEffect, fieldProxyProtocol, "connections to port %d bypass the sidecar, so they have no header of the PROXY protocol; remove the port here or from what is excluded", port)
		case !slices.ContainsFunc(targets, func(t target) bool { return t.port == port }) &&
			!slices.ContainsFunc(w.Ports, func(p fact.WorkloadPort) bool { return p.Number == port }):
			f.add(ReasonNoSuchPort, fieldProxyProtocol, "no container declares port %d, and no service has it as its target; check the number, which is the container's port", port)
		}
	}
}
