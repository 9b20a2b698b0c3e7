package audit

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// AddRejections makes a manager that is not the leader write Events for Problems with the
// reason: rejections by proxies are known only to the replica that serves them. On the
// leader, AddPolicies reports them.
func AddRejections(mgr manager.Manager, catalog Catalog, mapper *source.Mapper, reason string) error {
	err := mgr.Add(&rejections{mgr: mgr, client: mgr.GetClient(), catalog: catalog, mapper: mapper, reason: reason})
	if err != nil {
		return fmt.Errorf("adding the reporter of rejections: %w", err)
	}
	return nil
}

// rejections runs on every replica.
type rejections struct {
	mgr     manager.Manager
	client  client.Client
	catalog Catalog
	mapper  *source.Mapper
	reason  string
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *rejections) NeedLeaderElection() bool { return false }

// Start writes Events until ctx ends or the manager becomes the leader. Failed writes are
// logged, and retried when the proxies report the rejection again.
func (r *rejections) Start(ctx context.Context) error {
	stop := make(chan struct{})
	defer close(stop)
	changed := r.catalog.SubscribeObjects(stop)
	reported := make(map[mesh.ObjectRef]map[string]bool)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.mgr.Elected():
			return nil
		case object, ok := <-changed:
			if !ok {
				return nil
			}
			now := make(map[string]bool)
			for _, p := range r.catalog.Problems(object) {
				if p.Reason != r.reason {
					continue
				}
				if now[p.Message] = true; reported[object][p.Message] {
					continue
				}
				if err := r.write(ctx, p); err != nil {
					r.mgr.GetLogger().Error(err, "reporting a rejection failed", "object", object.String())
					delete(now, p.Message)
				}
			}
			if reported[object] = now; len(now) == 0 {
				delete(reported, object)
			}
		}
	}
}

func (r *rejections) write(ctx context.Context, p mesh.Problem) error {
	kind, ok := r.mapper.KindOf(p.Object)
	if !ok {
		return fmt.Errorf("%s of %s has a kind that the mesh does not read", p.Object, p.Object.APIVersion)
	}
	obj := kind.New()
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: p.Object.Namespace, Name: p.Object.Name}, obj); err != nil {
		return client.IgnoreNotFound(err)
	}
	return Warn(ctx, r.client, referenceTo(p.Object, obj.GetUID()), p.Reason, p.Message, textOf(p))
}
