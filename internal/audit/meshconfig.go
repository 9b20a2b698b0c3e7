package audit

import (
	"context"
	"fmt"

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

// meshConfigs is used by one goroutine at a time.
type meshConfigs struct {
	client  client.Client
	facts   *kube.Source
	opts    source.ConfigOptions
	metrics *Metrics
	// counted is the MeshConfig whose Problems the metrics count.
	counted mesh.ObjectRef
}

// Reconcile tells what is wrong with the MeshConfig as it is now, whatever the
// request says.
func (m *meshConfigs) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	obj := m.facts.MeshConfig()
	config, problems := source.NewConfig(obj, m.opts)
	m.metrics.plaintext(config.MTLSDisabledClasses())
	ref, _ := source.Ref(config.GetMeshConfig())
	if ref != m.counted {
		m.metrics.count(m.counted, nil)
		m.counted = ref
	}
	m.metrics.count(ref, problems)
	if obj == nil {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, tell(ctx, m.client, obj, problems)
}
