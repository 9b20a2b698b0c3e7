package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

const (
	system = "osm-system"
	// soon is the time limit for things that should take no time.
	soon = 30 * time.Second
)

// TestSource is one test, since it starts one API server.
func TestSource(t *testing.T) {
	ctrllog.SetLogger(logr.Discard())
	server := apiserver.StartServer(t)
	scheme := kube.Scheme()
	for _, add := range []func() error{
		func() error { return apiextensionsv1.AddToScheme(scheme) },
		func() error { return rbacv1.AddToScheme(scheme) },
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Client: admin, config: server.Config, reader: reader(t, server, admin)}
	t.Run("MeshConfig", c.testMeshConfig)
	t.Run("ConfigMap", c.testConfigMap)
	t.Run("Namespace", c.testNamespace)
	t.Run("NativeSidecars", c.testNativeSidecars)
	t.Run("not allowed", c.testNotAllowed)
	t.Run("facts", c.testFeed)
	t.Run("facts of a directory", c.testSameAsDirectory)
	t.Run("facts without rights", c.testFeedNotAllowed)
	t.Run("memory of pods", c.testPodMemory)
	t.Run("no CRD yet", c.testNoCRD)
	t.Run("facts without CRDs", c.testFeedNoCRD)
}

type cluster struct {
	client.Client
	config *rest.Config
	// reader has exactly the rights that a Source needs.
	reader *rest.Config
}

// reader creates the control plane's namespace, and a user with the minimum of rights.
func reader(t *testing.T, server *apiserver.Server, admin client.Client) *rest.Config {
	t.Helper()
	kubeconfig, err := server.Kubeconfig("reader", "outrigger:readers")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	verbs := []string{"get", "list", "watch"}
	subjects := []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "outrigger:readers"}}
	for _, obj := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			Rules:      []rbacv1.PolicyRule{{Verbs: verbs, APIGroups: []string{""}, Resources: []string{"namespaces"}}},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		},
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "reader"},
			Rules: []rbacv1.PolicyRule{
				{Verbs: verbs, APIGroups: []string{""}, Resources: []string{"configmaps"}},
				{Verbs: verbs, APIGroups: []string{v1alpha2.GroupName}, Resources: []string{"meshconfigs"}, ResourceNames: []string{"mesh"}},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "reader"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		},
	} {
		if err := admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	return config
}

// start runs a Source until the test ends.
func start(t *testing.T, source *kube.Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- source.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
}

func newSource(t *testing.T, config *rest.Config, log *slog.Logger) *kube.Source {
	t.Helper()
	source, err := kube.New(config, kube.Options{Namespace: system, MeshConfigName: "mesh", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func synced(t *testing.T, source *kube.Source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := source.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
}

// expect receives a call and compares its argument.
func expect(t *testing.T, what string, calls <-chan string, want string) {
	t.Helper()
	select {
	case got := <-calls:
		if got != want {
			t.Fatalf("%s: called with %q, want %q", what, got, want)
		}
	case <-time.After(soon):
		t.Fatalf("%s: not called with %q", what, want)
	}
}

func quiet(t *testing.T, what string, calls <-chan string) {
	t.Helper()
	select {
	case got := <-calls:
		t.Errorf("%s: called with %q", what, got)
	case <-time.After(200 * time.Millisecond):
	}
}

// classes sends the class of each MeshConfig from OnMeshConfig, or "none".
func classes(source *kube.Source) <-chan string {
	calls := make(chan string, 100)
	source.OnMeshConfig(func(obj *v1alpha2.MeshConfig) {
		if obj == nil {
			calls <- "none"
			return
		}
		calls <- obj.Spec.Sidecar.SidecarClass
	})
	return calls
}

func meshConfig(name, class string) *v1alpha2.MeshConfig {
	return &v1alpha2.MeshConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name},
		Spec:       v1alpha2.MeshConfigSpec{Sidecar: v1alpha2.SidecarSpec{SidecarClass: class}},
	}
}

func (c *cluster) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.IgnoreNotFound(c.Delete(context.Background(), obj)) })
}

func (c *cluster) update(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) delete(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) testMeshConfig(t *testing.T) {
	source := newSource(t, c.reader, slog.New(slog.DiscardHandler))
	before := classes(source)
	start(t, source)
	synced(t, source)
	expect(t, "without one", before, "none")
	if source.MeshConfig() != nil {
		t.Error("there is a MeshConfig")
	}

	c.create(t, meshConfig("another", "envoy"))
	obj := meshConfig("mesh", "pipy")
	c.create(t, obj)
	expect(t, "created", before, "pipy")
	if got := source.MeshConfig(); got == nil || got.Name != "mesh" || len(got.ManagedFields) > 0 {
		t.Errorf("MeshConfig() = %v", got)
	}
	after := classes(source)
	expect(t, "subscribed later", after, "pipy")

	obj.Spec.Sidecar.SidecarClass = "null"
	c.update(t, obj)
	expect(t, "changed", before, "null")
	expect(t, "changed", after, "null")
	c.delete(t, obj)
	expect(t, "deleted", before, "none")
	if source.MeshConfig() != nil {
		t.Error("there still is a MeshConfig")
	}
	quiet(t, "nothing more", before)
}

func (c *cluster) testConfigMap(t *testing.T) {
	source := newSource(t, c.reader, slog.New(slog.DiscardHandler))
	values := func(name string) <-chan string {
		calls := make(chan string, 100)
		source.OnConfigMap(name, func(obj *corev1.ConfigMap) {
			if obj == nil {
				calls <- "none"
				return
			}
			calls <- obj.Data["key"]
		})
		return calls
	}
	configMap := func(namespace, name, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{"key": value}}
	}
	c.create(t, configMap(system, "first", "1"))
	first, second := values("first"), values("second")
	start(t, source)
	synced(t, source)
	expect(t, "first", first, "1")
	expect(t, "second", second, "none")
	expect(t, "unknown and subscribed late", values("third"), "none")

	c.create(t, configMap("default", "second", "elsewhere"))
	obj := configMap(system, "second", "2")
	c.create(t, obj)
	expect(t, "second created", second, "2")
	expect(t, "known and subscribed late", values("second"), "2")
	obj.Data["key"] = "3"
	c.update(t, obj)
	expect(t, "second changed", second, "3")
	c.delete(t, obj)
	expect(t, "second deleted", second, "none")
	quiet(t, "first", first)

	// With -race this checks that the methods may be called concurrently.
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			name := fmt.Sprintf("parallel-%d", i)
			calls := values(name)
			expect(t, name, calls, "none")
			source.OnMeshConfig(func(*v1alpha2.MeshConfig) {})
			_ = source.MeshConfig()
			_, _ = source.Namespace(t.Context(), system)
		})
	}
	group.Wait()
}

func (c *cluster) testNamespace(t *testing.T) {
	source := newSource(t, c.reader, slog.New(slog.DiscardHandler))
	// Before Start there is no cache, so the API server is queried.
	if got, err := source.Namespace(t.Context(), system); err != nil || got.Name != system {
		t.Errorf("before Start: %v, %v", got, err)
	}
	start(t, source)
	synced(t, source)

	// Right after its creation a namespace may not be in the cache.
	for i := range 20 {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("new-%d", i), Labels: map[string]string{"openservicemesh.io/monitored-by": "osm"},
		}}
		c.create(t, namespace)
		got, err := source.Namespace(t.Context(), namespace.Name)
		if err != nil || got.Labels["openservicemesh.io/monitored-by"] != "osm" {
			t.Fatalf("a new namespace: %v, %v", got, err)
		}
		got.Labels["openservicemesh.io/monitored-by"] = "changed by the caller"
		if again, err := source.Namespace(t.Context(), namespace.Name); err != nil || again.Labels["openservicemesh.io/monitored-by"] != "osm" {
			t.Fatalf("a namespace that a caller changed: %v, %v", again, err)
		}
	}

	_, err := source.Namespace(t.Context(), "nowhere")
	if !apierrors.IsNotFound(err) || !strings.HasPrefix(err.Error(), `namespace "nowhere": `) {
		t.Errorf("an unknown namespace: error %v", err)
	}
}

func (c *cluster) testNativeSidecars(t *testing.T) {
	source := newSource(t, c.reader, slog.New(slog.DiscardHandler))
	native, err := source.NativeSidecars(t.Context())
	if err != nil || !native {
		t.Errorf("NativeSidecars() = %v, %v", native, err)
	}
}

// testNotAllowed has a user without rights: waiting must end with the reason.
func (c *cluster) testNotAllowed(t *testing.T) {
	config := rest.CopyConfig(c.config)
	config.Impersonate.UserName = "nobody"
	var log syncBuffer
	source := newSource(t, config, slog.New(slog.NewTextHandler(&log, nil)))
	start(t, source)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := source.WaitForSync(ctx); err == nil || !strings.Contains(err.Error(), "waiting to read the Namespaces") {
		t.Errorf("WaitForSync: %v", err)
	}
	if _, err := source.Namespace(t.Context(), system); !apierrors.IsForbidden(err) {
		t.Errorf("Namespace: %v", err)
	}
}

func (c *cluster) testNoCRD(t *testing.T) {
	c.deleteCRD(t, "meshconfigs."+v1alpha2.GroupName)
	var log syncBuffer
	requests := newCounter(c.reader)
	source := newSource(t, requests.config, slog.New(slog.NewTextHandler(&log, nil)))
	calls := classes(source)
	start(t, source)
	synced(t, source)
	expect(t, "without the CRD", calls, "none")
	if source.ServesMeshConfigs() {
		t.Error("ServesMeshConfigs() without the CRD")
	}
	requests.reset()
	time.Sleep(3 * time.Second)
	if n := requests.count(); n > 20 {
		t.Errorf("%d requests in 3 seconds of waiting", n)
	}

	crds := filepath.Join("..", "..", "..", "charts", "outrigger", "crds")
	if _, err := envtest.InstallCRDs(c.config, envtest.CRDInstallOptions{Paths: []string{crds}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	c.create(t, meshConfig("mesh", "pipy"))
	expect(t, "after the CRD is there", calls, "pipy")
	if !source.ServesMeshConfigs() {
		t.Error("not ServesMeshConfigs() with the CRD")
	}
	if n := strings.Count(log.String(), "has no MeshConfig objects yet"); n != 1 {
		t.Errorf("the log says %d times that there are no MeshConfigs:\n%s", n, log.String())
	}
}

// syncBuffer is a log that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
