package install_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// testOSM installs where Open Service Mesh has left objects: CRDs that kubectl has applied, one
// of them with an unknown stored version and a conversion webhook, and a MeshConfig.
func (s *stage) testOSM(t *testing.T) {
	defer s.play(t)()
	crds := s.objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	version := func(name string, storage bool) map[string]any {
		return map[string]any{"name": name, "served": true, "storage": storage,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}
	}
	crd := func(group, kind, plural, scope string, versions ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + group},
			"spec": map[string]any{"group": group, "scope": scope, "versions": versions,
				"names": map[string]any{"kind": kind, "plural": plural, "singular": strings.ToLower(kind), "listKind": kind + "List"}},
		}}
	}
	create := func(obj *unstructured.Unstructured) {
		t.Helper()
		if _, err := crds.Create(t.Context(), obj, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"}); err != nil {
			t.Fatal(err)
		}
	}
	// Another project's CRD of the same name.
	create(crd("split.smi-spec.io", "TrafficSplit", "trafficsplits", "Cluster", version("v1alpha4", true)))
	s.refused(t, "trafficsplits.split.smi-spec.io: its spec.scope", "install")
	if list, err := crds.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("after a refusal there are %d CRDs, want the one that was there: %v", len(list.Items), err)
	}
	if err := crds.Delete(t.Context(), "trafficsplits.split.smi-spec.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err := crds.Get(t.Context(), "trafficsplits.split.smi-spec.io", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the CRD stays")
		}
	}

	create(crd("access.smi-spec.io", "TrafficTarget", "traffictargets", "Namespaced", version("v1alpha2", true), version("v1alpha3", false)))
	create(crd("config.openservicemesh.io", "MeshConfig", "meshconfigs", "Namespaced", version("v1alpha2", true)))
	targets := schema.GroupVersionResource{Group: "access.smi-spec.io", Version: "v1alpha2", Resource: "traffictargets"}
	put := func(kind schema.GroupVersionResource, namespace string, obj map[string]any) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			_, err := s.objects.Resource(kind).Namespace(namespace).Create(t.Context(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{})
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	destination := map[string]any{"kind": "ServiceAccount", "name": "a", "namespace": "default"}
	put(targets, "default", map[string]any{"apiVersion": "access.smi-spec.io/v1alpha2", "kind": "TrafficTarget", "metadata": map[string]any{"name": "old"}, "spec": map[string]any{"destination": destination}})
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "osm-system"}}
	if _, err := s.kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	put(meshConfigs, "osm-system", map[string]any{"apiVersion": "config.openservicemesh.io/v1alpha2", "kind": "MeshConfig", "metadata": map[string]any{"name": "osm-mesh-config"},
		"spec": map[string]any{"traffic": map[string]any{"enableEgress": false}}})
	hook := `{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"service":{"namespace":"osm-system","name":"osm-bootstrap","path":"/convert"}}}}}}`
	if _, err := crds.Patch(t.Context(), "traffictargets.access.smi-spec.io", "application/merge-patch+json", []byte(hook), metav1.PatchOptions{FieldManager: "osm-bootstrap"}); err != nil {
		t.Fatal(err)
	}

	_, stderr := s.must(t, "install")
	for _, want := range []string{
		"CRD traffictargets.access.smi-spec.io: taking it over from kubectl-client-side-apply",
		"the webhook osm-bootstrap no longer converts its versions",
		"MeshConfig osm-system/osm-mesh-config exists already and is not changed",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("nothing says %q:\n%s", want, stderr)
		}
	}
	for _, version := range []string{"v1alpha2", "v1alpha3"} {
		targets.Version = version
		old, err := s.objects.Resource(targets).Namespace("default").Get(t.Context(), "old", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedMap(old.Object, "spec", "destination"); !cmp.Equal(got, destination) {
			t.Errorf("the TrafficTarget in version %s is for %v, want %v", version, got, destination)
		}
	}
	if got := s.meshConfig(t, "spec", "traffic", "enableEgress"); got != false {
		t.Errorf("the MeshConfig of the Open Service Mesh has changed: egress is %v", got)
	}
	s.must(t, "upgrade")

	// CRDs of a newer release stay.
	newer := `{"metadata":{"labels":{"app.kubernetes.io/version":"0.2.0"}}}`
	if _, err := crds.Patch(t.Context(), "traffictargets.access.smi-spec.io", "application/merge-patch+json", []byte(newer), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, stderr := s.must(t, "upgrade"); !strings.Contains(stderr, "it has the newer version 0.2.0 and is not changed") {
		t.Errorf("a newer CRD is not left alone:\n%s", stderr)
	}
	_, stderr = s.must(t, "uninstall", "--purge", "--yes")
	if !strings.Contains(stderr, "Namespace osm-system is kept") {
		t.Errorf("the output does not mention that a namespace of others stays:\n%s", stderr)
	}
}

// testManifests uninstalls objects that kubectl has applied, also after making a release of
// them.
func (s *stage) testManifests(t *testing.T) {
	defer s.play(t)()
	before := s.everything(t)
	delete(before, "namespaces. /osm-system")
	client, err := ctrlclient.New(s.server.Config, ctrlclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	apply := func() {
		t.Helper()
		for _, obj := range installed(t, "") {
			if err := apiserver.Apply(t.Context(), client, obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothingLeft := func() {
		t.Helper()
		after := s.everything(t)
		// 'outrigger install' did not create this namespace.
		delete(after, "namespaces. /osm-system")
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("objects (-before the installation +after its end):\n%s", diff)
		}
	}
	apply()
	s.refused(t, "--take-ownership", "install")
	s.refused(t, "--take-ownership", "upgrade")
	// Some objects have been deleted before.
	if err := s.kube.AppsV1().Deployments("osm-system").Delete(t.Context(), "outrigger-injector", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.must(t, "uninstall", "--purge", "--yes")
	nothingLeft()

	apply()
	s.must(t, "install", "--take-ownership")
	s.must(t, "upgrade", "--set", "osm.sidecarClass=haproxy")
	if got := s.meshConfig(t, "spec", "sidecar", "sidecarClass"); got != "haproxy" {
		t.Errorf("the class is %v after the upgrade", got)
	}
	s.must(t, "uninstall", "--purge", "--yes")
	nothingLeft()
}
