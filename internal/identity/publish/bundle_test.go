package publish

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outrigger-mesh/outrigger/certificate"
)

// known is a certificate.Manager that only has a trust bundle.
type known struct {
	certificate.Manager
	bundle string
}

func (k known) TrustBundle() []byte { return []byte(k.bundle) }

// TestBundleIsNotTakenOver tests an attacker who may change a namespace's ConfigMaps: he adds
// his own root and makes the ConfigMap look like a foreign one.
func TestBundleIsNotTakenOver(t *testing.T) {
	for what, attack := range map[string]func(*corev1.ConfigMap){
		"nothing else":        func(*corev1.ConfigMap) {},
		"without our label":   func(m *corev1.ConfigMap) { delete(m.Labels, managedByLabel) },
		"somebody else's":     func(m *corev1.ConfigMap) { m.Labels[managedByLabel] = "Helm" },
		"of another mesh":     func(m *corev1.ConfigMap) { m.Labels["openservicemesh.io/monitored-by"] = "other" },
		"without labels":      func(m *corev1.ConfigMap) { m.Labels = nil },
		"immutable":           func(m *corev1.ConfigMap) { m.Immutable = new(true) },
		"immutable, no label": func(m *corev1.ConfigMap) { m.Immutable, m.Labels = new(true), nil },
	} {
		t.Run(what, func(t *testing.T) {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"openservicemesh.io/monitored-by": "osm"}}}
			set := fake.NewClientset()
			b := &bundles{
				namespaces: ctrlfake.NewClientBuilder().WithObjects(namespace).Build(), client: set, roots: known{bundle: "good"}, meshName: "osm",
				log: slog.New(slog.DiscardHandler), informer: coreinformers.NewConfigMapInformer(set, "", 0, cache.Indexers{}),
			}
			look := func() {
				t.Helper()
				// It is checked again after each change.
				for range 3 {
					if _, err := b.Reconcile(t.Context(), request("shop")); err != nil {
						t.Fatal(err)
					}
				}
			}
			get := func() *corev1.ConfigMap {
				t.Helper()
				found, err := set.CoreV1().ConfigMaps("shop").Get(t.Context(), bundleName, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return found
			}
			look()
			want := get()
			taken := want.DeepCopy()
			taken.Data = map[string]string{bundleKey: "good evil"}
			attack(taken)
			if _, err := set.CoreV1().ConfigMaps("shop").Update(t.Context(), taken, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			look()
			got := get()
			if diff := cmp.Diff(want.Data, got.Data); diff != "" {
				t.Errorf("the trust bundle (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.Labels, got.Labels); diff != "" {
				t.Errorf("the labels (-want +got):\n%s", diff)
			}
		})
	}
}
