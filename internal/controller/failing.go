package controller

import (
	"context"
	"log/slog"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// failures passes on what agents say of proxies that do not stay up: to the registry, for
// lists and metrics, and as Events to whoever looks at the pod.
type failures struct {
	from    origin
	proxies *registry.Registry
	log     *slog.Logger
}

// take takes one report of an agent. It may be called from many goroutines.
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
		f.log.Warn("a proxy does not stay up", "namespace", w.Namespace, "pod", w.Pod, "how", r.How, "lastWords", r.LastWords)
	}
	// Each report tries again: an Event that is there already is not written anew.
	if err := f.from.warnPod(ctx, w.Namespace, w.Pod, w.PodUID, failure.Text()); err != nil {
		f.log.Warn("no Event was recorded for a proxy that keeps ending", "namespace", w.Namespace, "pod", w.Pod, "error", err)
	}
}
