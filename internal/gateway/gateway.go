// Package gateway makes the pods and Services of the Gateways of the mesh, and repairs them.
//
// What the pods do follows from their Views, which internal/catalog makes: this package knows of a Gateway
// only its class and ports. A Gateway with the annotation openservicemesh.io/gateway-pods: own is left
// alone, since its user has pods for it.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	kindGateway = "Gateway"
	// owner is the field manager of the objects.
	owner = "outrigger-controller"
)

// Warn writes an Event about a Gateway.
type Warn func(ctx context.Context, g corev1.ObjectReference, reason, message string) error

// reasonNotMade is the reason of Events about objects that could not be made.
const reasonNotMade = "NotMade"

// Catalog knows the Gateways of the mesh.
type Catalog interface {
	// Ready is closed once the Catalog knows the mesh. Before, it finds no Gateway.
	Ready() <-chan struct{}
	// SubscribeObjects returns a channel of the objects that were processed or of which something
	// else has been found, until stop is closed.
	SubscribeObjects(stop <-chan struct{}) <-chan mesh.ObjectRef
	// Found returns what has been found of an object. For a Gateway of the mesh it has the Gateway.
	Found(object mesh.ObjectRef) *fact.Problems
}

// Add adds a controller to the manager that makes the objects of Gateways, until ctx ends, and a
// GatewayClass for each of the classes of proxies. It waits until Gateway API's CRDs are installed.
//
// Its user needs get, list, watch, create, patch and delete on ServiceAccounts, Services, Deployments and
// PodDisruptionBudgets of the namespaces with Gateways, get, list and watch on Gateways, and get and
// create on GatewayClasses.
func Add(ctx context.Context, mgr manager.Manager, catalog Catalog, classes []string, warn Warn, log *slog.Logger) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), gateway.Install(scheme)); err != nil {
		return err
	}
	writer, err := client.New(mgr.GetConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("creating a client for the objects of gateways: %w", err)
	}
	ours := labels.SelectorFromSet(labels.Set{managedByLabel: managedBy})
	objects, err := cache.New(mgr.GetConfig(), cache.Options{Scheme: scheme, DefaultLabelSelector: ours})
	if err != nil {
		return fmt.Errorf("making a cache of the objects of gateways: %w", err)
	}
	r := &gateways{client: writer, catalog: catalog, changed: catalog.SubscribeObjects(ctx.Done()), warn: warn}
	b := builder.ControllerManagedBy(mgr).Named("gateway").WatchesRawSource(crsource.Func(r.begin))
	for _, kind := range made {
		b = b.WatchesRawSource(crsource.Kind(objects, metadataOf(kind), handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, o *metav1.PartialObjectMetadata) []reconcile.Request {
				if name := o.Labels[fact.GatewayLabel]; name != "" {
					return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: name}}}
				}
				return nil
			})))
	}
	makes := manager.RunnableFunc(func(ctx context.Context) error { makeClasses(ctx, writer, classes, log); return nil })
	if err := errors.Join(mgr.Add(objects), mgr.Add(makes), b.Complete(r)); err != nil {
		return fmt.Errorf("adding the controller of gateways: %w", err)
	}
	return nil
}

// made are the kinds of the objects that are made.
var made = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	appsv1.SchemeGroupVersion.WithKind("Deployment"),
	corev1.SchemeGroupVersion.WithKind("Service"),
	policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := new(metav1.PartialObjectMetadata)
	o.SetGroupVersionKind(kind)
	return o
}

// gateways handles one Gateway at a time.
type gateways struct {
	client  client.Client
	catalog Catalog
	changed <-chan mesh.ObjectRef
	warn    Warn
}

func (r *gateways) begin(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for object := range r.changed {
			if object.Kind == kindGateway {
				queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.Namespace, Name: object.Name}})
			}
		}
	}()
	return nil
}

// Reconcile makes and repairs the objects of a Gateway, and deletes those that it no longer needs. The
// objects of a deleted Gateway are deleted by Kubernetes, and those of one whose class is gone, or whose
// listeners cannot be used, stay: as a rule these come back, and the address of a deleted Service does not.
func (r *gateways) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case <-r.catalog.Ready():
	default:
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	g := new(gateway.Gateway)
	if err := r.client.Get(ctx, request.NamespacedName, g); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() || len(g.Name) > MaxName {
		return reconcile.Result{}, nil
	}
	ref := mesh.ObjectRef{APIVersion: gateway.GroupVersion.String(), Kind: kindGateway, Namespace: g.Namespace, Name: g.Name}
	var wanted []client.Object
	state := r.catalog.Found(ref).Gateway
	if state == nil {
		class := new(gateway.GatewayClass)
		if err := r.client.Get(ctx, client.ObjectKey{Name: string(g.Spec.GatewayClassName)}, class); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	switch {
	case state == nil, HasOwnPods(g):
	case len(state.Ports) == 0:
		return reconcile.Result{}, nil
	default:
		wanted = Objects(g, state)
	}
	var errs []error
	for _, object := range wanted {
		err := r.apply(ctx, g, object)
		errs = append(errs, err)
		if _, isAccount := object.(*corev1.ServiceAccount); isAccount && err != nil {
			// Pods would run as an account that is not the gateway's.
			break
		}
	}
	serves, err := r.serve(ctx, wanted)
	errs = append(errs, err)
	waits := false
	for _, kind := range made {
		unwanted, err := r.unwanted(ctx, g, kind, wanted)
		errs = append(errs, err)
		// Two budgets of one pod would forbid all evictions.
		if !serves && len(unwanted) > 0 && kind.Kind != "PodDisruptionBudget" {
			waits = true
			continue
		}
		errs = append(errs, r.remove(ctx, g, unwanted))
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, errors.Join(err, r.warn(ctx, referenceTo(g), reasonNotMade, err.Error()))
	}
	if waits {
		return reconcile.Result{RequeueAfter: retryInterval}, nil
	}
	return reconcile.Result{}, nil
}

// retryInterval is how often the controller looks whether new pods serve.
const retryInterval = 2 * time.Second

// serve reports whether the Deployments have pods that serve, so that those of a former class may go.
// Without a Deployment the user has pods, or another controller does.
func (r *gateways) serve(ctx context.Context, wanted []client.Object) (bool, error) {
	for _, object := range wanted {
		if _, isDeployment := object.(*appsv1.Deployment); !isDeployment {
			continue
		}
		d := new(appsv1.Deployment)
		if err := r.client.Get(ctx, client.ObjectKeyFromObject(object), d); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("reading Deployment %s/%s: %w", object.GetNamespace(), object.GetName(), err)
		}
		if d.Status.ObservedGeneration < d.Generation || d.Status.AvailableReplicas < replicasOf(d) {
			return false, nil
		}
	}
	return true, nil
}

func replicasOf(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func referenceTo(g *gateway.Gateway) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: gateway.GroupVersion.String(), Kind: kindGateway, Namespace: g.Namespace, Name: g.Name, UID: g.UID}
}

// HasOwnPods reports whether the user of a Gateway has pods for it.
func HasOwnPods(g *gateway.Gateway) bool {
	return strings.EqualFold(g.Annotations[metadata.GatewayPods], "own")
}

// apply makes or repairs an object. One of that name that is not the Gateway's is left alone.
func (r *gateways) apply(ctx context.Context, g *gateway.Gateway, object client.Object) error {
	kind := object.GetObjectKind().GroupVersionKind()
	what := fmt.Sprintf("%s %s/%s of Gateway %s", kind.Kind, object.GetNamespace(), object.GetName(), g.Name)
	existing := metadataOf(kind)
	switch err := r.client.Get(ctx, client.ObjectKeyFromObject(object), existing); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case !isOwned(existing, g):
		return fmt.Errorf("%s: an object of that name exists, which is not the gateway's; delete or rename it, or give the gateway pods of your own with the annotation %s: own", what, metadata.GatewayPods)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	delete(fields, "status")
	wanted := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(fields, "spec", "template", "metadata", "creationTimestamp")
	err = r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(wanted), client.FieldOwner(owner), client.ForceOwnership)
	if svc, isService := object.(*corev1.Service); isService && apierrors.IsInvalid(err) {
		// Server-side apply keeps ports that others have set, also one with the same name.
		err = r.replacePorts(ctx, svc)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// replacePorts sets the ports of a Service, and removes all others.
func (r *gateways) replacePorts(ctx context.Context, svc *corev1.Service) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ports": svc.Spec.Ports}})
	if err != nil {
		return err
	}
	existing := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name}}
	return r.client.Patch(ctx, existing, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(owner))
}

// unwanted returns the Gateway's objects of a kind that are not wanted, such as those of a former class.
func (r *gateways) unwanted(ctx context.Context, g *gateway.Gateway, kind schema.GroupVersionKind, wanted []client.Object) ([]metav1.PartialObjectMetadata, error) {
	list := new(metav1.PartialObjectMetadataList)
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := r.client.List(ctx, list, client.InNamespace(g.Namespace), client.MatchingLabels{fact.GatewayLabel: g.Name, managedByLabel: managedBy}); err != nil {
		return nil, fmt.Errorf("listing the %ss of Gateway %s/%s: %w", kind.Kind, g.Namespace, g.Name, err)
	}
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(kind)
	}
	return slices.DeleteFunc(list.Items, func(o metav1.PartialObjectMetadata) bool {
		return !isOwned(&o, g) || slices.ContainsFunc(wanted, func(w client.Object) bool {
			return w.GetObjectKind().GroupVersionKind() == kind && w.GetName() == o.Name
		})
	}), nil
}

// remove deletes objects of the Gateway.
func (r *gateways) remove(ctx context.Context, g *gateway.Gateway, objects []metav1.PartialObjectMetadata) error {
	var errs []error
	for i := range objects {
		o := &objects[i]
		if err := r.client.Delete(ctx, o, client.Preconditions{UID: &o.UID}); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("deleting %s %s/%s, which Gateway %s no longer needs: %w", o.Kind, o.Namespace, o.Name, g.Name, err))
		}
	}
	return errors.Join(errs...)
}

// isOwned reports whether the controller has made an object for the Gateway.
func isOwned(o *metav1.PartialObjectMetadata, g *gateway.Gateway) bool {
	return metav1.IsControlledBy(o, g)
}
