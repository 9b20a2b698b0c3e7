package controller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/upgrade"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// reasonUpgradeStopped is the reason of the MeshConfig's Problem about pods that do not get another
// version of their proxy, because one of them could not be upgraded.
const reasonUpgradeStopped = "UpgradeStopped"

// newRollout returns the stage that upgrades the proxies of running pods while this replica is
// the leader.
func (c *cluster) newRollout(reader client.Client, cat *catalog.Catalog) *upgrade.Rollout {
	return upgrade.New(upgrade.Options{
		Client: c.client, AtOnce: c.options.UpgradeProxies, Log: c.options.Log,
		Namespaces: func(ctx context.Context) ([]string, error) {
			var list corev1.NamespaceList
			if err := reader.List(ctx, &list, client.MatchingLabels{metadata.MonitoredBy: c.options.Mesh.Name}); err != nil {
				return nil, fmt.Errorf("listing the namespaces of the mesh: %w", err)
			}
			var names []string
			for i := range list.Items {
				names = append(names, list.Items[i].Name)
			}
			return names, nil
		},
		Desired: c.desired,
		Changed: c.changes,
		Stopped: func(stops []upgrade.Stop) { c.reportStops(cat, stops) },
	}, c.upgrades)
}

// desired returns the image that an injected pod's sidecar would get if the pod were injected now.
// There is none if it would get another class, or is another revision's.
func (c *cluster) desired(ctx context.Context, pod *corev1.Pod) upgrade.Target {
	t := upgrade.Target{Class: inject.ClassOf(pod), Injected: inject.ImageOf(pod)}
	if t.Class == "" {
		return t
	}
	if result, err := c.dryRun(ctx, pod); err == nil && result.Class == t.Class {
		t.Image = result.Image
	}
	return t
}

// configChanges returns a function whose channel is closed when the MeshConfig changes.
func configChanges(live *source.Live) func() <-chan struct{} {
	var mu sync.Mutex
	changed := make(chan struct{})
	live.OnChange(func(*source.Config) {
		mu.Lock()
		defer mu.Unlock()
		close(changed)
		changed = make(chan struct{})
	})
	return func() <-chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		return changed
	}
}

// reportStops makes stopped rollouts Problems of the MeshConfig, and writes Events about the
// pods.
func (c *cluster) reportStops(cat *catalog.Catalog, stops []upgrade.Stop) {
	ref, ok := source.Ref(c.live.GetMeshConfig())
	if !ok {
		return
	}
	var problems []mesh.Problem
	for _, s := range stops {
		where := ""
		if s.Only != "" {
			where = " of namespace " + s.Only
		}
		problems = append(problems, mesh.Problem{
			Object: ref, Reason: reasonUpgradeStopped,
			Message: fmt.Sprintf("the proxies of class %s in running pods%s are not upgraded to %s any further: pod %s/%s: %s; delete the pod or set another image, and the upgrade goes on",
				s.Class, where, s.Image, s.Namespace, s.Pod, s.Reason),
		})
		message := fmt.Sprintf("the proxy was not upgraded to %s: %s", s.Image, s.Reason)
		// An Event that exists is not written again.
		if err := c.podWarn(context.Background(), s.Namespace, s.Pod, s.UID, audit.ReasonProxyNotUpgraded, s.Image, message); err != nil {
			c.options.Log.Warn("no Event was recorded for a proxy that was not upgraded", "namespace", s.Namespace, "pod", s.Pod, "error", err)
		}
	}
	cat.Report(ref, problems)
}
