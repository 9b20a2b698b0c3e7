package audit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// Missed reports whether a pod without a sidecar should have one, with a coded reason and
// a sentence. It is called by one goroutine at a time.
type Missed func(ctx context.Context, pod *corev1.Pod) (missed bool, reason, message string)

// AddPods adds a controller to the manager that finds pods that run without the sidecar
// they should have, in the namespaces of the mesh. Each pod gets one Event, and all are
// counted. The manager's cache may have trimmed pods, as long as they keep the injection
// annotation.
func AddPods(mgr manager.Manager, facts *kube.Source, meshName string, missed Missed, metrics *Metrics) error {
	pods := &pods{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), facts: facts,
		meshName: meshName, missed: missed, metrics: metrics,
		missing: make(map[types.NamespacedName]bool), counts: make(map[string]int), reported: make(map[types.NamespacedName]types.UID),
	}
	err := builder.ControllerManagedBy(mgr).
		Named("pod").
		For(&corev1.Pod{}).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(pods.inNamespace), builder.WithPredicates(namespaceChanged())).
		Complete(pods)
	if err != nil {
		return fmt.Errorf("adding the controller of pods: %w", err)
	}
	return nil
}

// namespaceChanged selects changes that may add a namespace to the mesh or remove it.
// Creation is excluded, since the pods of a new namespace cause their own events.
func namespaceChanged() predicate.Predicate {
	return predicate.And(
		predicate.Or(predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}),
		predicate.Funcs{
			CreateFunc: func(event.CreateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		},
	)
}

// pods is used by one goroutine at a time.
type pods struct {
	client   client.Client
	live     client.Reader
	facts    *kube.Source
	meshName string
	missed   Missed
	metrics  *Metrics

	// missing has the pods without their sidecar, and counts their number by namespace.
	missing map[types.NamespacedName]bool
	counts  map[string]int
	// reported has the pods that got their Event.
	reported map[types.NamespacedName]types.UID
}

// Reconcile checks one pod.
func (p *pods) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := p.facts.WaitForSync(ctx); err != nil {
		return reconcile.Result{}, err
	}
	pod, gone, err := p.suspect(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if gone {
		delete(p.reported, req.NamespacedName)
	}
	if pod == nil {
		p.setMissing(req.NamespacedName, false)
		return reconcile.Result{}, nil
	}
	missed, reason, message := p.missed(ctx, pod)
	p.setMissing(req.NamespacedName, missed)
	if !missed || p.reported[req.NamespacedName] == pod.UID {
		return reconcile.Result{}, nil
	}
	text := fmt.Sprintf("the pod runs without the sidecar that it should have: %s: %s; delete the pod, so that it is made anew by way of the injector", reason, message)
	ref, _ := source.Ref(pod)
	if err := Warn(ctx, p.client, referenceTo(ref, pod.UID), ReasonNotInjected, "", text); err != nil {
		return reconcile.Result{}, err
	}
	p.reported[req.NamespacedName] = pod.UID
	return reconcile.Result{}, nil
}

// suspect returns the complete pod if it is in a namespace of the mesh, has no sidecar
// and is still running; otherwise nil, and whether the pod is gone. It calls the API
// server only for suspects.
func (p *pods) suspect(ctx context.Context, name types.NamespacedName) (pod *corev1.Pod, gone bool, err error) {
	var cached corev1.Pod
	if err := p.client.Get(ctx, name, &cached); err != nil {
		return nil, apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	if inject.Injected(&cached) {
		return nil, false, nil
	}
	namespace, err := p.facts.Namespace(ctx, name.Namespace)
	if err != nil {
		return nil, false, client.IgnoreNotFound(err)
	}
	if namespace.Labels[metadata.MonitoredBy] != p.meshName {
		return nil, false, nil
	}
	pod = &corev1.Pod{}
	if err := p.live.Get(ctx, name, pod); err != nil {
		return nil, apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	ended := pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if ended || inject.Injected(pod) {
		return nil, false, nil
	}
	return pod, false, nil
}

func (p *pods) setMissing(name types.NamespacedName, missing bool) {
	switch {
	case missing == p.missing[name]:
		return
	case missing:
		p.missing[name] = true
		p.counts[name.Namespace]++
	default:
		delete(p.missing, name)
		p.counts[name.Namespace]--
	}
	p.metrics.uninjectedPods(name.Namespace, p.counts[name.Namespace])
	if p.counts[name.Namespace] == 0 {
		delete(p.counts, name.Namespace)
	}
}

// inNamespace returns requests for all pods of a namespace.
func (p *pods) inNamespace(ctx context.Context, namespace client.Object) []reconcile.Request {
	var list corev1.PodList
	if err := p.client.List(ctx, &list, client.InNamespace(namespace.GetName())); err != nil {
		log.FromContext(ctx).Error(err, "listing the pods of a changed namespace failed; they are not checked", "namespace", namespace.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
