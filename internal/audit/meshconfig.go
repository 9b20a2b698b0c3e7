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

// AddMeshConfig adds a controller to the manager that updates the status of the
// MeshConfig, writes an Event for each Problem that the status did not contain before,
// and counts Problems. It reports the Problems of the current object itself, and those
// that the catalog has with one of the given reasons until ctx ends.
func AddMeshConfig(ctx context.Context, mgr manager.Manager, facts *kube.Source, resolver *source.Resolver, catalog ReadyCatalog, reasons []string, metrics *Metrics) error {
	// Capacity 1 is enough, because Reconcile always reads the newest MeshConfig.
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
		Complete(&meshConfigs{client: mgr.GetClient(), facts: facts, resolver: resolver, catalog: catalog, reasons: reasons, metrics: metrics})
	if err != nil {
		return fmt.Errorf("adding the controller of the MeshConfig: %w", err)
	}
	return nil
}

// ReadyCatalog is a Catalog that reports when it is complete.
type ReadyCatalog interface {
	Catalog
	// Ready returns a channel that is closed when the first Snapshot exists. Its objects
	// have been sent to subscribers before.
	Ready() <-chan struct{}
}

// meshConfigs is used by one goroutine at a time.
type meshConfigs struct {
	client client.Client
	// facts has the current MeshConfig.
	facts interface {
		MeshConfig() *v1alpha2.MeshConfig
	}
	resolver *source.Resolver
	catalog  ReadyCatalog
	reasons  []string
	metrics  *Metrics
	// counted is the MeshConfig whose Problems the metrics currently count.
	counted mesh.ObjectRef
}

// Reconcile reports the Problems of the current MeshConfig, regardless of the request.
func (m *meshConfigs) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	obj := m.facts.MeshConfig()
	config := m.resolver.Resolve(obj)
	problems := config.Problems()
	m.metrics.plaintext(config.MTLSDisabledClasses())
	ref, _ := source.Ref(config.GetMeshConfig())
	if obj != nil && !m.ready() && m.hasReason(obj) {
		// Updating the status now would remove the Problem, only to add it again soon.
		return reconcile.Result{}, nil
	}
	for _, problem := range m.catalog.Problems(ref) {
		if slices.Contains(m.reasons, problem.Reason) {
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

// hasReason reports whether the status contains a Problem with one of the catalog's reasons.
func (m *meshConfigs) hasReason(obj *v1alpha2.MeshConfig) bool {
	return slices.ContainsFunc(obj.Status.Conditions, func(c metav1.Condition) bool {
		return slices.ContainsFunc(strings.Split(c.Reason, ","), func(reason string) bool { return slices.Contains(m.reasons, reason) })
	})
}
