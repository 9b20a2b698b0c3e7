package cli

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/classmove"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// TestClassMoveUsage runs the command with mistakes that users make.
func TestClassMoveUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                           "give the class with --from",
		"--from envoy":                               "give the class with --to",
		"--from envoy --to haprxy":                   `did you mean "haproxy"?`,
		"--from envoy --to Envoy":                    "--from and --to are both envoy",
		"--from envoy --to haproxy now":              `unknown command or argument "now"`,
		"--from envoy --to haproxy --pace 0":         "--pace 0",
		"--from envoy --to haproxy --window 5":       "missing unit",
		"--from envoy --to haproxy --window 1h":      "--window 1h0m0s",
		"--from envoy --to haproxy -o name":          `-o "name"`,
		"--from envoy --to haproxy -n kube-system":   "cannot be in a mesh",
		"--from envoy --to haproxy --max-slower 0":   "--max-slower 0",
		"--from envoy --to haproxy --max-failed -1":  "--max-failed -1",
		"--from envoy --to haproxy --no-progress 0s": "--no-progress 0s",
	} {
		cmd := NewRootCommand()
		cmd.SetArgs(append([]string{"class", "move"}, strings.Fields(args)...))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); !errors.As(err, &usage.Error{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
}

// TestClassMovePlan plans a move with an API server, which nobody changes.
func TestClassMovePlan(t *testing.T) {
	server := apiserver.StartServer(t)
	admin, err := client.New(server.Config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	config, err := server.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: controlPlane}})
	create(t, admin, &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Name: "osm-mesh-config", Namespace: controlPlane}})
	for _, name := range []string{"shop", "bank"} {
		create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{metadata.MonitoredBy: "osm"}, Annotations: map[string]string{metadata.Injection: "enabled"},
		}})
		create(t, admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}})
	}
	web := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
	web.Labels = map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}
	d.Spec.Template, d.Spec.Selector = web, &metav1.LabelSelector{MatchLabels: web.Labels}
	apps, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apps.AppsV1().Deployments("shop").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: *web.ObjectMeta.DeepCopy(), Spec: web.Spec}
	pod.Name, pod.Namespace = "web-1-a", "shop"
	pod.Labels["pod-template-hash"] = "1"
	pod.Annotations = map[string]string{inject.StatusAnnotation: `{"version":1,"class":"envoy"}`, metadata.ProxyProtocolPorts: "8080"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "a", Controller: new(true)}}
	create(t, admin, pod)

	move := func(args ...string) (classmove.Result, error) {
		var stdout strings.Builder
		cmd := NewRootCommand()
		cmd.SetArgs(append([]string{"class", "move", "--from", "envoy", "--kubeconfig", kubeconfig, "-o", "json"}, args...))
		cmd.SetOut(&stdout)
		cmd.SetErr(t.Output())
		failed := cmd.ExecuteContext(t.Context())
		var result classmove.Result
		if err := json.Unmarshal([]byte(stdout.String()), &result); err != nil {
			t.Fatalf("%v, and then %v: %s", failed, err, stdout.String())
		}
		return result, failed
	}
	want := classmove.Key{Namespace: "shop", Kind: "deployment", Name: "web"}
	result, err := move("--to", "haproxy", "--dry-run")
	if err != nil || result.Outcome != classmove.Planned || len(result.Workloads) != 1 || result.Workloads[0].Key != want || !strings.Contains(result.Workloads[0].Image, "haproxy") {
		t.Errorf("the plan is %+v, %v", result, err)
	}
	if len(result.Changes) != 1 || result.Changes[0].Field != "spec.sidecar.sidecarClass" || result.Changes[0].After != "haproxy" {
		t.Errorf("it changes %+v", result.Changes)
	}
	if result, err = move("--to", "haproxy", "--dry-run", "-n", "bank"); err != nil || len(result.Workloads) != 0 || len(result.Changes) != 1 || result.Changes[0].Object != "namespace bank" {
		t.Errorf("for the namespace bank it plans %+v, %v", result, err)
	}
	// Pipy does not send the header of the PROXY protocol.
	for _, args := range [][]string{{"--to", "pipy"}, {"--to", "pipy", "--dry-run"}} {
		result, err := move(args...)
		if !errors.Is(err, errRefused) || len(result.Lacks) != 1 || !strings.Contains(result.Lacks[0].Message, "ProxyProtocol") {
			t.Errorf("%q: %+v, %v", args, result, err)
		}
	}
	if result, err := move("--to", "pipy", "--dry-run", "--accept-lacks"); err != nil || len(result.Lacks) != 1 {
		t.Errorf("accepted: %+v, %v", result, err)
	}
	// No controller answers, so nothing may change.
	if result, err := move("--to", "haproxy"); err == nil || result.Outcome != classmove.Interrupted {
		t.Errorf("without a controller: %+v, %v", result, err)
	}
	var obj v1alpha2.MeshConfig
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: controlPlane, Name: "osm-mesh-config"}, &obj); err != nil || !slices.Contains([]string{"", "envoy"}, obj.Spec.Sidecar.SidecarClass) {
		t.Errorf("the default class is %q, %v", obj.Spec.Sidecar.SidecarClass, err)
	}
}
