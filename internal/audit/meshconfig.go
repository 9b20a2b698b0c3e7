package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"

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
// Event for each Problem that the status did not name before, and count Problems: those
// of the object by itself, as it is now, and those with the reason, which the catalog
// finds from now on until ctx ends.
func AddMeshConfig(ctx context.Context, mgr manager.Manager, facts *kube.Source, opts source.ConfigOptions, catalog ReadyCatalog, reason string, metrics *Metrics) error {
	// One place is enough, because what is looked at is the newest MeshConfig.
	changes := make(chan event.GenericEvent, 1)
	changed := func() {
		select {
		case changes <- event.GenericEvent{Object: &v1alpha2.MeshConfig{}}:
		default:
		}
	}
	facts.OnMeshConfig(func(*v1alpha2.MeshConfig) { changed() })
	objects := catalog.SubscribeObjects(ctx.Done())
	go func() {
		for object := range objects {
			if object.Kind == kindMeshConfig {
				changed()
			}
		}
	}()
	err := builder.ControllerManagedBy(mgr).
		Named("meshconfig").
		WatchesRawSource(crsource.Channel(changes, &handler.EnqueueRequestForObject{})).
		Complete(&meshConfigs{client: mgr.GetClient(), facts: facts, opts: opts, catalog: catalog, reason: reason, metrics: metrics})
	if err != nil {
		return fmt.Errorf("adding the controller of the MeshConfig: %w", err)
	}
	return nil
}

// ReadyCatalog is a Catalog that says when it knows everything.
type ReadyCatalog interface {
	Catalog
	// Ready returns a channel that is closed when there is the first Snapshot. Its
	// objects have been sent to subscribers then.
	Ready() <-chan struct{}
}

// meshConfigs is used by one goroutine at a time.
type meshConfigs struct {
	client client.Client
	// facts has the newest MeshConfig.
	facts interface {
		MeshConfig() *v1alpha2.MeshConfig
	}
	opts    source.ConfigOptions
	catalog ReadyCatalog
	reason  string
	metrics *Metrics
	// counted is the MeshConfig whose Problems the metrics count.
	counted mesh.ObjectRef
}

// Reconcile reports what is wrong with the MeshConfig as it is now, whatever the
// request says.
func (m *meshConfigs) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	obj := m.facts.MeshConfig()
	config, problems := source.NewConfig(obj, m.opts)
	m.metrics.plaintext(config.MTLSDisabledClasses())
	ref, _ := source.Ref(config.GetMeshConfig())
	if obj != nil && !m.ready() && m.named(obj) {
		// It would be taken away now and reported again in a moment.
		return reconcile.Result{}, nil
	}
	for _, problem := range m.catalog.Problems(ref) {
		if problem.Reason == m.reason {
			problems = append(problems, problem)
		}
	}
	if ref != m.counted {
		m.metrics.count(m.counted, nil)
		m.counted = ref
	}
	m.metrics.count(ref, problems)
	if obj == nil {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, writeStatus(ctx, m.client, source.MeshConfig(), ref, obj, problems)
}

func (m *meshConfigs) ready() bool {
	select {
	case <-m.catalog.Ready():
		return true
	default:
		return false
	}
}

// named reports whether the status names a Problem with the catalog's reason.
func (m *meshConfigs) named(obj *v1alpha2.MeshConfig) bool {
	return slices.ContainsFunc(obj.Status.Conditions, func(c metav1.Condition) bool {
		return slices.Contains(strings.Split(c.Reason, ","), m.reason)
	})
}
