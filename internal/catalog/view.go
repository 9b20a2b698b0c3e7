package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// offerProxy puts the own part of the View of a workload with a proxy, and says which Outbound
// belongs to it.
func (j *join) offerProxy(r *graph.Reader, key mesh.Name, out *graph.Output) {
	w, _ := j.workloads.Get(r, key)
	if !j.hasProxy(r, w) {
		return
	}
	account := accountOf(w)
	j.offerLacking(r, w, out)
	if g, ok := j.gatewayOf(r, w); ok {
		viewer, as := j.viewerOf(r, g, w)
		graph.PutKey(out, j.sharers, as.scope(), as)
		graph.Put(out, j.viewers, w.UID, viewer)
		return
	}
	as := j.shared.Get(r, clients{ServiceAccount: account, services: j.outboundServicesOf(r, w).String()})
	scope := as.scope()
	graph.PutKey(out, j.sharers, scope, as)
	graph.Put(out, j.viewers, w.UID, fact.NewViewer(
		j.proxies.Get(r, key),
		j.settingsOf(r, w),
		j.inboundOf.Get(r, key),
		j.egress.Get(r, account),
		scope,
	))
}

// offerOutbound puts the Outbound of clients.
func (j *join) offerOutbound(r *graph.Reader, key clients, out *graph.Output) {
	graph.Put(out, j.outboundsTable, key.scope(), j.outbounds.Get(r, key))
}

// offerNamespace publishes a namespace of the mesh.
func (j *join) offerNamespace(r *graph.Reader, name mesh.Name, out *graph.Output) {
	if ns, ok := j.namespaces.Get(r, name); ok && ns.Member {
		graph.Put(out, j.namespacesTable, ns.Name, ns)
	}
}

// settingsOf returns the mesh's settings with the access log of a workload.
func (j *join) settingsOf(r *graph.Reader, w *fact.Workload) *mesh.Settings {
	own := w.AccessLog
	if own == nil {
		ns, _ := j.namespaces.Get(r, mesh.Name{Name: w.Namespace})
		own = ns.AccessLog
	}
	settings := j.mustSettings(r)
	if own == nil || *own == settings.AccessLog {
		return settings
	}
	return j.logged.Get(r, *own)
}

// makeLogged returns the mesh's settings with another access log.
func (j *join) makeLogged(r *graph.Reader, log mesh.AccessLog) *mesh.Settings {
	settings := *j.mustSettings(r)
	settings.Sealed, settings.AccessLog = mesh.Sealed{}, log
	return mesh.Seal(&settings)
}

func (j *join) hasProxy(r *graph.Reader, w *fact.Workload) bool {
	return j.member(r, w.Namespace) && w.Class != "" && !w.Ended
}

// hasSidecar reports whether the workload has a proxy that serves an application: it is not a gateway's.
func (j *join) hasSidecar(r *graph.Reader, w *fact.Workload) bool {
	_, isGateway := j.gatewayOf(r, w)
	return !isGateway && j.hasProxy(r, w)
}

func (j *join) makeProxy(r *graph.Reader, key mesh.Name) *mesh.Proxy {
	w, _ := j.workloads.Get(r, key)
	settings := j.mustSettings(r)
	_, isGateway := j.gatewayOf(r, w)
	return mesh.Seal(&mesh.Proxy{
		Name: w.Name, UID: w.UID, Class: w.Class, Zone: w.Zone, Addresses: w.Addresses,
		Identity:  identityOf(settings, accountOf(w)),
		Plaintext: slices.Contains(settings.PlaintextClasses, w.Class), Gateway: isGateway,
	})
}
