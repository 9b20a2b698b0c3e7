package controller

import (
	"context"
	"log/slog"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// failures records the agents' reports about proxies that keep crashing: in the registry, for
// lists and metrics, and as Events of their pods.
type failures struct {
	from    origin
	proxies *registry.Registry
	log     *slog.Logger
}

// take records a report of an agent. It is safe for concurrent use.
func (f failures) take(ctx context.Context, w identity.Workload, r identity.ProxyReport) {
	if !r.Failing {
		f.proxies.Recovered(w.PodUID)
		return
	}
	failure := registry.Failure{
		Pod: mesh.Name{Namespace: w.Namespace, Name: w.Pod}, UID: w.PodUID,
		Identity: mesh.Identity{TrustDomain: f.from.settings().GetTrustDomain(), Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}.String(),
		Starts:   r.Starts, How: r.How, LastWords: r.LastWords,
	}
	if f.proxies.Failed(failure) {
		f.log.Warn("a proxy keeps crashing", "namespace", w.Namespace, "pod", w.Pod, "how", r.How, "lastWords", r.LastWords)
	}
	// This is repeated for each report, in case it failed before; an existing Event is not
	// written again.
	if err := f.from.warnPod(ctx, w.Namespace, w.Pod, w.PodUID, failure.Text()); err != nil {
		f.log.Warn("no Event was recorded for a proxy that keeps crashing", "namespace", w.Namespace, "pod", w.Pod, "error", err)
	}
}
