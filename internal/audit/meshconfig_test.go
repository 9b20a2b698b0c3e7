package audit

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// readyCatalog is a ReadyCatalog.
type readyCatalog struct {
	found
	ready chan struct{}
}

func (r readyCatalog) Ready() <-chan struct{} { return r.ready }

// newest is the MeshConfig of an API server.
type newest struct{ client.Client }

func (n newest) MeshConfig() *v1alpha2.MeshConfig {
	var obj v1alpha2.MeshConfig
	if err := n.Get(context.Background(), client.ObjectKey{Namespace: "osm-system", Name: "config"}, &obj); err != nil {
		return nil
	}
	return &obj
}

// TestMeshConfigOfProxies checks that features which the MeshConfig requires and proxies
// lack are reported, and that a starting controller, which knows nothing yet, does not
// remove what the former one reported.
func TestMeshConfigOfProxies(t *testing.T) {
	const reason = "NotSupportedByProxy"
	obj := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: "config", UID: "1"}}
	ref, _ := source.Ref(obj)
	var writes []string
	api := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(obj).WithStatusSubresource(obj).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			writes = append(writes, fmt.Sprintf("create %T", obj))
			return c.Create(ctx, obj, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, subresource string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			writes = append(writes, "update "+subresource)
			return c.SubResource(subresource).Update(ctx, obj, opts...)
		},
	}).Build()
	catalog := readyCatalog{found: found{}, ready: make(chan struct{})}
	begin := func() *meshConfigs {
		return &meshConfigs{
			client: api, facts: newest{api}, catalog: catalog, reasons: []string{reason}, metrics: NewMetrics(prometheus.NewRegistry()),
			resolver: source.NewResolver(source.ConfigOptions{Classes: []string{"envoy"}, BuiltinImage: func(string, string) string { return "image" }, Env: func(string) string { return "" }, InitImage: "image"}),
		}
	}
	look := func(m *meshConfigs, what string, want ...string) {
		t.Helper()
		writes = []string{}
		if _, err := m.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		expect(t, what, append([]string{}, want...), writes)
	}
	lacks := mesh.Problem{Object: ref, Reason: reason, Field: "spec.observability.tracing", Message: "it is not there"}

	m := begin()
	look(m, "nothing wrong, before the catalog is ready", "update status")
	close(catalog.ready)
	catalog.found[ref] = []mesh.Problem{lacks, {Object: ref, Reason: "Invalid", Field: "spec", Message: "it was so before"}}
	look(m, "what proxies lack", "create *v1.Event", "update status")
	if now := (newest{api}).MeshConfig(); !source.Reported(now.Status.Conditions, lacks) || source.Reported(now.Status.Conditions, catalog.found[ref][1]) {
		t.Errorf("the conditions are %+v, want them to name that, and of the rest what the newest MeshConfig has", now.Status.Conditions)
	}
	look(m, "the same again")

	catalog = readyCatalog{found: found{}, ready: make(chan struct{})}
	m = begin()
	look(m, "another controller, before its catalog is ready")
	close(catalog.ready)
	look(m, "the proxies are gone", "update status")
}
