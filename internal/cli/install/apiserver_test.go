package install_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/cli/install"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// stage is an API server without the mesh. The test plays the kubelet.
type stage struct {
	server     *apiserver.Server
	kubeconfig string
	kube       kubernetes.Interface
	objects    dynamic.Interface
}

func newStage(t *testing.T) *stage {
	t.Helper()
	apiserver.Require(t)
	server, err := apiserver.Run()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	text, err := server.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{server: server, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(s.kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.kube = kubernetes.NewForConfigOrDie(server.Config)
	s.objects = dynamic.NewForConfigOrDie(server.Config)
	return s
}

// run runs the program against the stage.
func (s *stage) run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := cli.NewRootCommand(install.Commands()...)
	var out, errs bytes.Buffer
	root.SetIn(strings.NewReader(""))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append(args, "--kubeconfig", s.kubeconfig))
	err = root.ExecuteContext(t.Context())
	t.Logf("outrigger %s: %v\n%s", strings.Join(args, " "), err, &errs)
	return out.String(), errs.String(), err
}

// must is run for commands that must succeed.
func (s *stage) must(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := s.run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr
}

// refused is run for commands that must be refused with a message.
func (s *stage) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	_, _, err := s.run(t, args...)
	if !errors.As(err, &usage.Refusal{}) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal with %q", err, want)
	}
}

// play makes Deployments of one or two replicas ready, and removes namespaces that are being
// deleted, until the returned function is called.
func (s *stage) play(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			list, err := s.kube.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
			if err == nil {
				for _, d := range list.Items {
					if d.Status.ObservedGeneration == d.Generation {
						continue
					}
					replicas := *d.Spec.Replicas
					if replicas > 2 {
						continue // There is no room for more.
					}
					d.Status = appsv1.DeploymentStatus{
						ObservedGeneration: d.Generation, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas,
						Conditions: []appsv1.DeploymentCondition{
							{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
							{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
						},
					}
					// A conflict is retried in the next round.
					_, _ = s.kube.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, &d, metav1.UpdateOptions{})
				}
			}
			namespaces, err := s.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			if err == nil {
				for _, n := range namespaces.Items {
					if n.DeletionTimestamp != nil {
						n.Spec.Finalizers = nil
						_, _ = s.kube.CoreV1().Namespaces().Finalize(ctx, &n, metav1.UpdateOptions{})
					}
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

var meshConfigs = schema.GroupVersionResource{Group: "config.openservicemesh.io", Version: "v1alpha2", Resource: "meshconfigs"}

func (s *stage) meshConfig(t *testing.T, field ...string) any {
	t.Helper()
	obj, err := s.objects.Resource(meshConfigs).Namespace("osm-system").Get(t.Context(), "osm-mesh-config", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	value, _, _ := unstructured.NestedFieldNoCopy(obj.Object, field...)
	return value
}

// TestOnAPIServer is one test, since it starts one API server. Its parts depend on the parts
// before.
func TestOnAPIServer(t *testing.T) {
	s := newStage(t)
	t.Run("install", s.testInstall)
	t.Run("upgrade", s.testUpgrade)
	t.Run("rollback", s.testRollback)
	t.Run("tags", s.testTags)
	t.Run("uninstall", s.testUninstall)
	t.Run("Open Service Mesh", s.testOSM)
	t.Run("manifests", s.testManifests)
}

func (s *stage) testInstall(t *testing.T) {
	stdout, stderr := s.must(t, "install", "--dry-run")
	for _, want := range []string{"Deployment osm-system/outrigger-controller: created", "MeshConfig osm-system/osm-mesh-config: created"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the dry run does not say %q:\n%s", want, stdout)
		}
	}
	if !strings.Contains(stderr, "12 created") {
		t.Errorf("the dry run does not mention the CRDs:\n%s", stderr)
	}
	if _, err := s.kube.CoreV1().Namespaces().Get(t.Context(), "osm-system", metav1.GetOptions{}); err == nil {
		t.Fatal("the dry run has made a namespace")
	}

	s.refused(t, "run 'outrigger install'", "upgrade")
	s.refused(t, "run 'outrigger install' without --revision first", "install", "--revision", "canary")

	// The Deployments never become ready: the command reports what it waits for, and their state.
	_, stderr, err := s.run(t, "install", "--timeout", "3s")
	if err == nil || !strings.Contains(err.Error(), "Deployment outrigger-controller: 0 of 1 pods are ready") || !strings.Contains(err.Error(), "with the status failed") {
		t.Errorf("an installation that does not become ready ends with: %v", err)
	}
	if !strings.Contains(stderr, "Deployment outrigger-injector: 0 of 1 pods are ready") {
		t.Errorf("the output does not name what it waits for:\n%s", stderr)
	}
	// The same command repairs it.
	stop := s.play(t)
	defer stop()
	stdout, _ = s.must(t, "install", "-o", "name")
	if !strings.Contains(stdout, "deployment.apps/outrigger-controller\n") {
		t.Errorf("-o name prints:\n%s", stdout)
	}
	s.refused(t, "outrigger upgrade", "install")
}

func (s *stage) testUpgrade(t *testing.T) {
	defer s.play(t)()
	stdout, _ := s.must(t, "upgrade", "--dry-run", "--set", "osm.sidecarClass=haproxy")
	if want := `spec.sidecar.sidecarClass: "envoy" -> "haproxy"`; !strings.Contains(stdout, want) {
		t.Errorf("the dry run does not say %q:\n%s", want, stdout)
	}
	if got := s.meshConfig(t, "spec", "sidecar", "sidecarClass"); got != "envoy" {
		t.Fatalf("the dry run has changed the class to %v", got)
	}
	s.must(t, "upgrade", "--set", "osm.sidecarClass=haproxy")
	if got := s.meshConfig(t, "spec", "sidecar", "sidecarClass"); got != "haproxy" {
		t.Errorf("the class is %v after the upgrade", got)
	}

	// Changes of users in the MeshConfig stay, and so do the values.
	patch := `{"spec":{"traffic":{"enableEgress":false}}}`
	_, err := s.objects.Resource(meshConfigs).Namespace("osm-system").Patch(t.Context(), "osm-mesh-config", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-patch"})
	if err != nil {
		t.Fatal(err)
	}
	_, stderr := s.must(t, "upgrade", "--set", "osm.injector.replicaCount=2")
	if !strings.Contains(stderr, "spec.traffic.enableEgress keeps the value false") {
		t.Errorf("the output does not mention the change that stays:\n%s", stderr)
	}
	if egress, class := s.meshConfig(t, "spec", "traffic", "enableEgress"), s.meshConfig(t, "spec", "sidecar", "sidecarClass"); egress != false || class != "haproxy" {
		t.Errorf("after an upgrade egress is %v and the class %v, want false and haproxy", egress, class)
	}
	// If an upgrade changes such a field too, the user must decide which change wins.
	patch = `{"spec":{"sidecar":{"logLevel":"debug"}}}`
	_, err = s.objects.Resource(meshConfigs).Namespace("osm-system").Patch(t.Context(), "osm-mesh-config", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-patch"})
	if err != nil {
		t.Fatal(err)
	}
	s.refused(t, ".spec.sidecar.logLevel", "upgrade", "--set", "osm.sidecarLogLevel=info")
	s.must(t, "upgrade", "--reset-values", "--force-conflicts")
	if egress, class := s.meshConfig(t, "spec", "traffic", "enableEgress"), s.meshConfig(t, "spec", "sidecar", "sidecarClass"); egress != true || class != "envoy" {
		t.Errorf("with --reset-values --force-conflicts egress is %v and the class %v, want true and envoy", egress, class)
	}
}

// everything returns all objects of the server by kind, namespace and name, without Events and
// the server's own objects.
func (s *stage) everything(t *testing.T) map[string]bool {
	t.Helper()
	lists, err := s.kube.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]bool)
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range list.APIResources {
			if !slices.Contains(kind.Verbs, "list") || kind.Kind == "Event" || kind.Kind == "ComponentStatus" {
				continue
			}
			found, err := s.objects.Resource(version.WithResource(kind.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // A kind whose CRD has just been deleted.
			}
			if err != nil {
				t.Fatalf("listing %s: %v", kind.Name, err)
			}
			for _, obj := range found.Items {
				if kind.Kind == "Lease" && obj.GetNamespace() == "kube-system" {
					continue
				}
				all[fmt.Sprintf("%s.%s %s/%s", kind.Name, version.Group, obj.GetNamespace(), obj.GetName())] = true
			}
		}
	}
	return all
}

// process runs the program with the rights of a service account until the returned
// function is called, and waits until it is ready.
func (s *stage) process(t *testing.T, account string, args ...string) (stop func()) {
	t.Helper()
	text, err := s.server.Kubeconfig("system:serviceaccount:osm-system:"+account, "system:serviceaccounts", "system:serviceaccounts:osm-system", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	health := freeAddress(t)
	root := cli.NewRootCommand()
	var log bytes.Buffer
	root.SetErr(&log)
	root.SetArgs(append(args, "--kubeconfig", kubeconfig, "--health-listen", health))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended with %v", args[0], err)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", args[0], &log)
		}
	})
	t.Cleanup(stop)
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		response, err := http.Get("http://" + health + "/health/ready")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return stop
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %v", args[0], err)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// testUninstall compares the server's objects before an installation and after uninstalling. A
// controller and an injector run in between.
func (s *stage) testUninstall(t *testing.T) {
	defer s.play(t)()
	s.must(t, "uninstall", "--purge", "--yes")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"openservicemesh.io/monitored-by": "osm"}}}
	if _, err := s.kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{"openservicemesh.io/sidecar-status": "{}"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	if _, err := s.kube.CoreV1().Pods("shop").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := s.everything(t)

	s.must(t, "install", "--set", "injector.mode=both")
	stops := []func(){
		s.process(t, "outrigger-controller", "controller", "--injection-policies", "both", "--bind-address", "127.0.41.7", "--identity-listen", ":0", "--debug-listen", ":0", "--leader-elect"),
		s.process(t, "outrigger-injector", "injector", "--listen", freeAddress(t), "--shutdown-delay", "0s", "--template-dir", ""),
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := s.kube.CoreV1().ConfigMaps("shop").Get(t.Context(), "outrigger-ca", metav1.GetOptions{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the controller has not published the trust bundle: %v", err)
		}
	}
	made := func() int {
		list, err := s.kube.AdmissionregistrationV1().MutatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	for deadline := time.Now().Add(30 * time.Second); made() == 0 && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
	}
	if made() == 0 {
		t.Error("the controller has made no admission policies")
	}
	for _, stop := range stops {
		stop()
	}
	labels := map[string]string{"app.kubernetes.io/managed-by": "outrigger-controller", "openservicemesh.io/monitored-by": "osm"}
	learned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "outrigger-learned-services", Labels: labels}}
	if _, err := s.kube.CoreV1().ConfigMaps("shop").Create(t.Context(), learned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	source, port := map[string]any{"kind": "ServiceAccount", "name": "a", "namespace": "shop"}, map[string]any{"number": int64(80), "protocol": "http"}
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.openservicemesh.io/v1alpha1", "kind": "Egress", "metadata": map[string]any{"name": "out", "namespace": "shop"},
		"spec": map[string]any{"sources": []any{source}, "hosts": []any{"example.com"}, "ports": []any{port}},
	}}
	egresses := s.objects.Resource(schema.GroupVersionResource{Group: "policy.openservicemesh.io", Version: "v1alpha1", Resource: "egresses"}).Namespace("shop")
	if _, err := egresses.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	if _, _, err := s.run(t, "uninstall"); !errors.As(err, &usage.Error{}) {
		t.Errorf("without a terminal and without --yes: %v", err)
	}
	stdout, _ := s.must(t, "uninstall", "--dry-run", "--purge")
	for _, want := range []string{"egresses.policy.openservicemesh.io with 1 objects", "ConfigMap shop/outrigger-ca", "ConfigMap shop/outrigger-learned-services", "Secret osm-system/outrigger-ca-bundle", "MutatingAdmissionPolicy outrigger-injector.", "1 pods in 1 namespaces have a sidecar"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("'uninstall --dry-run --purge' does not list %q:\n%s", want, stdout)
		}
	}

	// Without --purge the user's policies and the CA stay, and a new installation uses them.
	stdout, _ = s.must(t, "uninstall", "--yes")
	for _, want := range []string{"12 CRDs, and all objects", "Secret osm-system/outrigger-ca-bundle", "MeshConfig osm-system/osm-mesh-config"} {
		if _, kept, _ := strings.Cut(stdout, "Kept:"); !strings.Contains(kept, want) {
			t.Errorf("'uninstall' does not say that it keeps %q:\n%s", want, stdout)
		}
	}
	if _, err := egresses.Get(t.Context(), "out", metav1.GetOptions{}); err != nil {
		t.Errorf("the policy: %v", err)
	}
	ca, err := s.kube.CoreV1().Secrets("osm-system").Get(t.Context(), "outrigger-ca-bundle", metav1.GetOptions{})
	if err != nil || len(ca.Data) == 0 {
		t.Fatalf("the CA after an uninstallation: %v", err)
	}
	s.must(t, "install")
	again, err := s.kube.CoreV1().Secrets("osm-system").Get(t.Context(), "outrigger-ca-bundle", metav1.GetOptions{})
	if err != nil || !cmp.Equal(ca.Data, again.Data) {
		t.Errorf("the CA after it was installed again is another: %v", err)
	}

	s.must(t, "uninstall", "--purge", "--yes")
	after := s.everything(t)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("objects (-before the installation +after its end):\n%s", diff)
	}
	s.must(t, "uninstall", "--purge", "--yes")
}

// testTags moves a namespace from the default revision to another with a tag, and checks the
// configurations and webhooks of both injectors.
func (s *stage) testTags(t *testing.T) {
	defer s.play(t)()
	s.must(t, "install", "--revision", "canary")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tagged", Labels: map[string]string{"openservicemesh.io/rev": "prod"}}}
	if _, err := s.kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	takes := func(want map[string]bool) {
		t.Helper()
		for name, has := range want {
			config, err := s.kube.CoreV1().ConfigMaps("osm-system").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			webhook, err := s.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(config.Data["config"], "revisionTags:\n- prod\n"); got != has {
				t.Errorf("the config of %s has the tag: %t, want %t", name, got, has)
			}
			if got := strings.Contains(webhook.String(), "prod"); got != has {
				t.Errorf("the webhook %s has the tag: %t, want %t", name, got, has)
			}
		}
	}
	s.refused(t, "revision green does not exist", "tag", "set", "prod", "--revision", "green")
	s.refused(t, "the name of a revision", "tag", "set", "canary")
	s.must(t, "tag", "set", "prod")
	takes(map[string]bool{"outrigger-injector": true, "outrigger-injector-canary": false})
	s.refused(t, "--overwrite", "tag", "set", "prod", "--revision", "canary")
	s.must(t, "tag", "set", "prod", "--revision", "canary", "--overwrite")
	takes(map[string]bool{"outrigger-injector": false, "outrigger-injector-canary": true})
	stdout, _ := s.must(t, "tag", "list")
	if want := "prod   canary     0.2.0     tagged\n"; !strings.Contains(stdout, want) {
		t.Errorf("'tag list' prints no line %q:\n%s", want, stdout)
	}
	s.refused(t, "namespaces tagged have the label", "tag", "remove", "prod")
	s.refused(t, "namespaces tagged use revision canary", "uninstall", "--revision", "canary", "--yes")
	// An upgrade keeps the tag.
	s.must(t, "upgrade", "--revision", "canary")
	takes(map[string]bool{"outrigger-injector-canary": true})

	namespace.Labels = nil
	if _, err := s.kube.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.must(t, "tag", "remove", "prod")
	takes(map[string]bool{"outrigger-injector-canary": false})
	before := s.everything(t)
	s.must(t, "uninstall", "--revision", "canary", "--yes")
	after := s.everything(t)
	for name := range before {
		// The name of an IPAddress is an address.
		if !strings.HasPrefix(name, "ipaddresses.") && strings.Contains(name, "canary") == after[name] {
			t.Errorf("%s: it is there: %t", name, after[name])
		}
	}
}
