package publish

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// AddStatus makes a manager write the verdicts of a Roots to the status of
// MeshRootCertificates, and a Warning Event for each new Problem. Its user needs get on
// MeshRootCertificates, update on their status and create on Events, in the control plane's
// namespace.
func AddStatus(mgr manager.Manager, roots *root.Roots) error {
	c, err := client.New(mgr.GetConfig(), client.Options{Scheme: kube.Scheme(), Mapper: mapper()})
	if err != nil {
		return fmt.Errorf("creating a client for the status of MeshRootCertificates: %w", err)
	}
	err = builder.ControllerManagedBy(mgr).
		Named("mesh-root-certificate").
		WatchesRawSource(crsource.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			roots.OnReport(func(root.Report) { queue.Add(reconcile.Request{}) })
			return nil
		})).
		Complete(&statuses{client: c, events: mgr.GetClient(), roots: roots})
	if err != nil {
		return fmt.Errorf("adding the controller of MeshRootCertificates: %w", err)
	}
	return nil
}

// mapper maps the kinds that this package reads and writes.
func mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha2.SchemeGroupVersion.WithKind("MeshRootCertificate"), meta.RESTScopeNamespace)
	mapper.Add(v1alpha2.SchemeGroupVersion.WithKind("MeshConfig"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	return mapper
}

// statuses is used by one goroutine at a time.
type statuses struct {
	client, events client.Client
	roots          *root.Roots
}

// Reconcile writes the latest report. It ignores the request.
func (s *statuses) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	report := s.roots.Report()
	for _, v := range report.Verdicts {
		if err := s.write(ctx, v); err != nil {
			return reconcile.Result{}, err
		}
	}
	for _, p := range report.Problems {
		about := corev1.ObjectReference{APIVersion: p.Object.APIVersion, Kind: p.Object.Kind, Namespace: p.Object.Namespace, Name: p.Object.Name}
		if err := audit.Warn(ctx, s.events, about, p.Reason, p.Message, p.Message); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

func (s *statuses) write(ctx context.Context, v root.Verdict) error {
	var object v1alpha2.MeshRootCertificate
	err := s.client.Get(ctx, types.NamespacedName{Namespace: v.Namespace, Name: v.Name}, &object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading MeshRootCertificate %s/%s: %w", v.Namespace, v.Name, err)
	}
	if object.UID != v.UID || object.Generation != v.Generation {
		return nil // The verdict on the newer object will follow.
	}
	for _, p := range v.Problems {
		if source.Reported(object.Status.Conditions, p) {
			continue
		}
		about := corev1.ObjectReference{
			APIVersion: v1alpha2.SchemeGroupVersion.String(), Kind: "MeshRootCertificate", Namespace: v.Namespace, Name: v.Name, UID: v.UID,
		}
		if err := audit.Warn(ctx, s.events, about, p.Reason, fmt.Sprintf("%d %s %s", v.Generation, p.Field, p.Message), problemText(p)); err != nil {
			return err
		}
	}
	updated := object.DeepCopy()
	updated.Status.State, updated.Status.ObservedGeneration = v.State, v.Generation
	updated.Status.Conditions = source.Conditions(updated.Status.Conditions, v.Problems, v.Generation, metav1.Now())
	for _, condition := range v.Conditions {
		meta.SetStatusCondition(&updated.Status.Conditions, condition)
	}
	if equality.Semantic.DeepEqual(object.Status, updated.Status) {
		return nil
	}
	err = s.client.Status().Update(ctx, updated)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the status of MeshRootCertificate %s/%s: %w", v.Namespace, v.Name, err)
	}
	return nil
}

// problemText returns a Problem without its object and reason.
func problemText(p mesh.Problem) string {
	if p.Field == "" {
		return p.Message
	}
	return p.Field + ": " + p.Message
}
