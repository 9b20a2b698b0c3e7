package audit

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// AddRejections has a manager that does not lead write an Event for each Problem with
// the reason: of what the proxies of this replica refuse nobody else knows. Once it
// leads, AddPolicies tells of them.
func AddRejections(mgr manager.Manager, catalog Catalog, reason string) error {
	err := mgr.Add(&rejections{mgr: mgr, client: mgr.GetClient(), catalog: catalog, reason: reason})
	if err != nil {
		return fmt.Errorf("adding what tells of rejections: %w", err)
	}
	return nil
}

// rejections runs on every replica.
type rejections struct {
	mgr     manager.Manager
	client  client.Client
	catalog Catalog
	reason  string
}

// NeedLeaderElection is for manager.LeaderElectionRunnable.
func (r *rejections) NeedLeaderElection() bool { return false }

// Start tells until ctx ends or the manager leads. What cannot be told is logged, and
// told when the proxies say it again.
func (r *rejections) Start(ctx context.Context) error {
	stop := make(chan struct{})
	defer close(stop)
	changed := r.catalog.SubscribeObjects(stop)
	told := make(map[mesh.ObjectRef]map[string]bool)
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
				if now[p.Message] = true; told[object][p.Message] {
					continue
				}
				if err := r.tell(ctx, p); err != nil {
					r.mgr.GetLogger().Error(err, "what proxies refuse is not told", "object", object.String())
					delete(now, p.Message)
				}
			}
			if told[object] = now; len(now) == 0 {
				delete(told, object)
			}
		}
	}
}

func (r *rejections) tell(ctx context.Context, p mesh.Problem) error {
	obj, err := newObject(r.client.Scheme(), p.Object)
	if err != nil {
		return err
	}
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: p.Object.Namespace, Name: p.Object.Name}, obj); err != nil {
		return client.IgnoreNotFound(err)
	}
	return Warn(ctx, r.client, referenceTo(obj), p.Reason, p.Message, textOf(p))
}
