package audit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// AddMeshConfig has a manager keep the status of the MeshConfig right, write an
// Event for each Problem that the status did not name before, and count Problems.
func AddMeshConfig(mgr manager.Manager, facts *kube.Source, opts source.ConfigOptions, metrics *Metrics) error {
	// One place is enough, because what is looked at is the newest MeshConfig.
	changes := make(chan event.GenericEvent, 1)
	facts.OnMeshConfig(func(*v1alpha2.MeshConfig) {
		select {
		case changes <- event.GenericEvent{Object: &v1alpha2.MeshConfig{}}:
		default:
		}
	})
	err := builder.ControllerManagedBy(mgr).
		Named("meshconfig").
		WatchesRawSource(crsource.Channel(changes, &handler.EnqueueRequestForObject{})).
		Complete(&meshConfigs{client: mgr.GetClient(), facts: facts, opts: opts, metrics: metrics})
	if err != nil {
		return fmt.Errorf("adding the controller of the MeshConfig: %w", err)
	}
	return nil
}

type meshConfigs struct {
	client  client.Client
	facts   *kube.Source
	opts    source.ConfigOptions
	metrics *Metrics
}

// Reconcile tells what is wrong with the MeshConfig as it is now, whatever the
// request says.
func (m *meshConfigs) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	obj := m.facts.MeshConfig()
	config, problems := source.NewConfig(obj, m.opts)
	m.metrics.meshConfig(problems, config.MTLSDisabledClasses())
	if obj == nil {
		return reconcile.Result{}, nil
	}
	if err := m.writeEvents(ctx, obj, problems); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, m.writeStatus(ctx, obj, problems)
}

// writeEvents comes before the status, which is the memory of what has been told.
func (m *meshConfigs) writeEvents(ctx context.Context, obj *v1alpha2.MeshConfig, problems []mesh.Problem) error {
	for _, p := range problems {
		if source.Told(obj.Status.Conditions, p) {
			continue
		}
		// A Problem that was solved and comes back is a new one.
		key := fmt.Sprintf("%d %s %s", obj.Generation, p.Field, p.Message)
		message := p.Message
		if p.Field != "" {
			message = p.Field + ": " + message
		}
		if err := Warn(ctx, m.client, meshConfigReference(obj), p.Reason, key, message); err != nil {
			return err
		}
	}
	return nil
}

func (m *meshConfigs) writeStatus(ctx context.Context, obj *v1alpha2.MeshConfig, problems []mesh.Problem) error {
	updated := obj.DeepCopy()
	updated.Status.ObservedGeneration = obj.Generation
	updated.Status.Conditions = source.Conditions(obj.Status.Conditions, problems, obj.Generation, metav1.Now())
	if equality.Semantic.DeepEqual(obj.Status, updated.Status) {
		return nil
	}
	err := m.client.Status().Update(ctx, updated)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // A newer MeshConfig is on its way here.
	}
	if err != nil {
		return fmt.Errorf("writing the status of MeshConfig %s/%s: %w", obj.Namespace, obj.Name, err)
	}
	return nil
}

func meshConfigReference(obj *v1alpha2.MeshConfig) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: v1alpha2.SchemeGroupVersion.String(),
		Kind:       "MeshConfig",
		Namespace:  obj.Namespace,
		Name:       obj.Name,
		UID:        obj.UID,
	}
}
