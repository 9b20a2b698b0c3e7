package chart_test

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// server is a real API server with RBAC authorization.
type server struct {
	config  *rest.Config
	admin   kubernetes.Interface
	objects dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	// applied are the objects of the release.
	applied map[objectKey]bool
}

type objectKey struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// TestOnAPIServer runs the tests that share one API server.
func TestOnAPIServer(t *testing.T) {
	s := &server{config: apiserver.Start(t)}
	s.admin = kubernetes.NewForConfigOrDie(s.config)
	s.objects = dynamic.NewForConfigOrDie(s.config)
	s.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.admin.Discovery()))
	for _, name := range []string{namespace, "blue", "shop"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := s.admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("applies", func(t *testing.T) { testApplies(t, s) })
	t.Run("secrets", func(t *testing.T) { testSecretsSurvive(t, s) })
	t.Run("caBundle", func(t *testing.T) { testCABundleSurvives(t, s) })
	t.Run("injector", func(t *testing.T) { testInjectorRights(t, s) })
	t.Run("controller", func(t *testing.T) { testControllerRights(t, s) })
	t.Run("policies", func(t *testing.T) { testPolicies(t, s) })
}

// apply upgrades the release to the values: it applies the chart's objects as 'kubectl apply
// --server-side' does, and deletes, as Helm does, those that the release no longer has.
func (s *server) apply(t *testing.T, values string) {
	t.Helper()
	release, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	before := s.applied
	s.applied = map[objectKey]bool{}
	for _, text := range append(release.CRDs, release.Objects...) {
		var object unstructured.Unstructured
		if err := yaml.UnmarshalStrict([]byte(text), &object.Object); err != nil {
			t.Fatal(err)
		}
		kind := object.GroupVersionKind()
		if kind.Group == "monitoring.coreos.com" {
			continue // The CRDs are those of Prometheus' operator, which is not here.
		}
		mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		data, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		options := metav1.PatchOptions{FieldManager: "kubectl", FieldValidation: metav1.FieldValidationStrict}
		_, err = s.objects.Resource(mapping.Resource).Namespace(object.GetNamespace()).
			Patch(t.Context(), object.GetName(), types.ApplyPatchType, data, options)
		if err != nil {
			t.Errorf("%s %s: %v", kind.Kind, object.GetName(), err)
		}
		key := objectKey{mapping.Resource, object.GetNamespace(), object.GetName()}
		delete(before, key)
		if object.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			s.applied[key] = true
		}
	}
	for key := range before {
		err := s.objects.Resource(key.resource).Namespace(key.namespace).Delete(t.Context(), key.name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s %s: %v", key.resource.Resource, key.name, err)
		}
	}
}

// as returns the configuration of a client with a service account of the control plane.
func (s *server) as(name string) *rest.Config {
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return config
}

// testApplies applies all values of testdata one after the other, as upgrades.
func testApplies(t *testing.T, s *server) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s.apply(t, string(archive.Files[0].Data))
		})
	}
}

// testSecretsSurvive applies the chart again after the controller has filled a Secret, and
// over an existing one with another type.
func testSecretsSurvive(t *testing.T, s *server) {
	before := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "gateway"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": nil, "tls.key": nil},
	}
	if _, err := s.admin.CoreV1().Secrets("shop").Create(t.Context(), before, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.apply(t, gatewayValues)
	secrets := kubernetes.NewForConfigOrDie(s.as("outrigger-controller")).CoreV1()
	for namespace, name := range map[string]string{namespace: "outrigger-ca-bundle", "shop": "gateway"} {
		var secret *corev1.Secret
		var err error
		for range 100 { // Rights that were just given take a moment.
			if secret, err = secrets.Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{}); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
		secret.Data = map[string][]byte{"tls.crt": []byte("filled"), "tls.key": []byte("filled")}
		if _, err := secrets.Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.apply(t, gatewayValues)
		if secret, err = secrets.Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil || string(secret.Data["tls.crt"]) != "filled" {
			t.Errorf("Secret %s/%s has %d keys after the chart was applied again: %v", namespace, name, len(secret.Data), err)
		}
	}
}

// testCABundleSurvives upgrades after the injector has patched its configuration.
func testCABundleSurvives(t *testing.T, s *server) {
	s.apply(t, "{}")
	configs := s.admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	const ca = "-----BEGIN CERTIFICATE-----"
	patch := fmt.Sprintf(`[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": %q}]`, base64.StdEncoding.EncodeToString([]byte(ca)))
	_, err := configs.Patch(t.Context(), "outrigger-injector", types.JSONPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "outrigger"})
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, "{osm: {injector: {webhookTimeoutSeconds: 9}}}")
	config, err := configs.Get(t.Context(), "outrigger-injector", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if webhook := config.Webhooks[0]; *webhook.TimeoutSeconds != 9 || string(webhook.ClientConfig.CABundle) != ca {
		t.Errorf("got a timeout of %d s and the caBundle %q, want 9 s and %q", *webhook.TimeoutSeconds, webhook.ClientConfig.CABundle, ca)
	}
}
