package audit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	kindMeshConfig = "MeshConfig"
	kindNamespace  = "Namespace"
)

// Catalog has the Problems of objects.
type Catalog interface {
	// SubscribeObjects returns a channel of the objects that were processed or whose
	// Problems changed, until stop is closed.
	SubscribeObjects(stop <-chan struct{}) <-chan mesh.ObjectRef
	// Problems returns the Problems of an object, in a stable order.
	Problems(object mesh.ObjectRef) []mesh.Problem
	// Found returns the same with all that an object's status says.
	Found(object mesh.ObjectRef) *fact.Problems
}

// AddPolicies adds a controller to the manager that updates the status of traffic
// policies, writes an Event for each new Problem, and counts Problems. It handles only
// namespaces of the mesh, as determined by the mapper; others belong to other
// controllers. Only routes in other namespaces for Services of the mesh get Events. Objects without such a status, such as Services and Pods, get only Events.
//
// The manager's cache must contain the objects that the catalog reads. No change in the
// catalog is missed until ctx ends, even if the manager starts late.
func AddPolicies(ctx context.Context, mgr manager.Manager, catalog Catalog, mapper *source.Mapper, metrics *Metrics) error {
	p := &policies{
		client: mgr.GetClient(), catalog: catalog, mapper: mapper, metrics: metrics,
		changed: catalog.SubscribeObjects(ctx.Done()),
		members: make(map[string]bool), known: make(map[string]map[mesh.ObjectRef]*record),
	}
	err := builder.TypedControllerManagedBy[mesh.ObjectRef](mgr).
		Named("policy").
		WatchesRawSource(crsource.TypedFunc[mesh.ObjectRef](p.begin)).
		Complete(p)
	if err != nil {
		return fmt.Errorf("adding the controller of traffic policies: %w", err)
	}
	return nil
}

// policies handles one object at a time.
type policies struct {
	client  client.Client
	catalog Catalog
	mapper  *source.Mapper
	metrics *Metrics
	changed <-chan mesh.ObjectRef
	queue   workqueue.TypedRateLimitingInterface[mesh.ObjectRef]

	// members are the namespaces of the mesh.
	members map[string]bool
	// known has the objects with a status or Problems by namespace, including namespaces
	// outside the mesh.
	known map[string]map[mesh.ObjectRef]*record
}

// record remembers the reported Problems of an object without a status.
type record struct {
	uid      types.UID
	reported map[topic]bool
}

// topic identifies a Problem. It does not include the message, which may contain changing
// parts such as endpoints.
type topic struct{ reason, field string }

func (p *policies) begin(_ context.Context, queue workqueue.TypedRateLimitingInterface[mesh.ObjectRef]) error {
	p.queue = queue
	go func() {
		for object := range p.changed {
			queue.Add(object)
		}
	}()
	return nil
}

// Reconcile reports the Problems of an object. The MeshConfig has its own controller.
func (p *policies) Reconcile(ctx context.Context, ref mesh.ObjectRef) (reconcile.Result, error) {
	if ref.Kind == kindMeshConfig {
		return reconcile.Result{}, nil
	}
	kind, ok := p.mapper.KindOf(ref)
	switch {
	case !ok && len(p.catalog.Problems(ref)) == 0:
		// It is read in another way, as Secrets and ConfigMaps are, and has no status.
		return reconcile.Result{}, nil
	case !ok:
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("%s of %s has a kind that the mesh does not read", ref, ref.APIVersion))
	}
	found := p.catalog.Found(ref)
	problems := found.List
	obj, err := p.get(ctx, kind, ref, len(problems) > 0)
	if err != nil {
		return reconcile.Result{}, err
	}
	if ref.Kind == kindNamespace {
		p.join(obj, ref.Name)
	}
	if obj == nil {
		p.forget(ref)
		p.metrics.count(ref, nil)
		return reconcile.Result{}, nil
	}
	kept := p.keep(ref, obj.GetUID())
	if in := home(ref); in != "" && !p.members[in] {
		outside := ofOutsiders(problems)
		p.metrics.count(ref, outside)
		return reconcile.Result{}, p.warn(ctx, referenceTo(ref, obj.GetUID()), kept, outside)
	}
	p.metrics.count(ref, problems)
	switch {
	case kind.HasStatus:
		return reconcile.Result{}, writeStatus(ctx, p.client, kind, ref, obj, problems)
	case kind.HasGatewayStatus():
		return reconcile.Result{}, writeGatewayStatus(ctx, p.client, kind, ref, obj, found)
	}
	return reconcile.Result{}, p.warn(ctx, referenceTo(ref, obj.GetUID()), kept, problems)
}

// ofOutsiders returns the Problems that are reported of objects in namespaces outside the mesh:
// that a route for a Service of the mesh has no effect. There is only an Event, since the
// status may be another mesh's, whose controller has the same name.
func ofOutsiders(problems []mesh.Problem) []mesh.Problem {
	var out []mesh.Problem
	for _, p := range problems {
		if p.Reason == fact.ReasonNoMatchingParent {
			out = append(out, p)
		}
	}
	return out
}

// get returns an object, or nil if there is nothing to report: it is gone, or has neither
// a status nor Problems.
func (p *policies) get(ctx context.Context, kind source.Kind, ref mesh.ObjectRef, problems bool) (client.Object, error) {
	if !kind.HasStatus && !kind.HasGatewayStatus() && !problems && ref.Kind != kindNamespace {
		return nil, nil
	}
	obj := kind.New()
	switch err := p.client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, obj); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return obj, nil
}

// join updates whether a namespace belongs to the mesh. After a change, all its objects
// are queued.
func (p *policies) join(obj client.Object, name string) {
	member := false
	if namespace, ok := obj.(*corev1.Namespace); ok {
		f, _ := p.mapper.Fact(namespace)
		content, _ := f.Content.(*fact.Namespace)
		member = content != nil && content.Member
	}
	if member == p.members[name] {
		return
	}
	if p.members[name] = member; !member {
		delete(p.members, name)
	}
	for ref := range p.known[name] {
		p.queue.Add(ref)
	}
}

// keep returns the record of an object, or a new one if an object of that name was
// recreated.
func (p *policies) keep(ref mesh.ObjectRef, uid types.UID) *record {
	objects := p.known[home(ref)]
	if objects == nil {
		objects = make(map[mesh.ObjectRef]*record)
		p.known[home(ref)] = objects
	}
	if kept := objects[ref]; kept != nil && kept.uid == uid {
		return kept
	}
	objects[ref] = &record{uid: uid}
	return objects[ref]
}

func (p *policies) forget(ref mesh.ObjectRef) {
	objects := p.known[home(ref)]
	if delete(objects, ref); len(objects) == 0 {
		delete(p.known, home(ref))
	}
}

// warn writes Events for the new Problems of an object without a status. A Problem that
// disappears and comes back is reported again once its first Event has expired.
func (p *policies) warn(ctx context.Context, object corev1.ObjectReference, kept *record, problems []mesh.Problem) error {
	reported := make(map[topic]bool)
	for _, problem := range problems[:min(len(problems), maxEvents)] {
		about := topic{problem.Reason, problem.Field}
		if !kept.reported[about] {
			if err := Warn(ctx, p.client, object, problem.Reason, problem.Field, textOf(problem)); err != nil {
				return err
			}
		}
		reported[about] = true
	}
	kept.reported = reported
	return nil
}
