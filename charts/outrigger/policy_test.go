package chart_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	outriggerinjector "github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// meshPod is a pod that a policy can inject.
func meshPod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Annotations: annotations},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
}

// model returns the injection by the chart's configuration, with an image of the init container.
func model(t *testing.T, values, initImage string) *inject.Model {
	t.Helper()
	all := documents(t, values)
	object := find[*corev1.ConfigMap](all, "ConfigMap/outrigger-injector")
	config, err := inject.NewConfig(strings.ReplaceAll(object.Data["config"], "initContainerImage: docker.io", "initContainerImage: "+initImage), object.Data["values"])
	if err != nil {
		t.Fatal(err)
	}
	i := outriggerinjector.New(outriggerinjector.Assembly{
		Mesh: meshconfig.Mesh{Name: "osm", Namespace: namespace, Revision: "default"}, Config: source.NewLive(meshconfig.NewInjectionResolver().Resolve(nil)), Log: slog.New(slog.DiscardHandler),
	})
	i.Use(config)
	return i.Model()
}

// testPolicies keeps policies with the rights of the controller, and creates pods while there is no
// injector.
func testPolicies(t *testing.T, s *server) {
	ctx := t.Context()
	api := s.admin.AdmissionregistrationV1()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "injected", Labels: map[string]string{"openservicemesh.io/monitored-by": "osm"}, Annotations: map[string]string{"openservicemesh.io/sidecar-injection": "enabled"},
	}}
	if _, err := s.admin.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(pod *corev1.Pod) (*corev1.Pod, error) {
		return s.admin.CoreV1().Pods("injected").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	initImage := func(pod *corev1.Pod) string {
		for _, c := range pod.Spec.InitContainers {
			if c.Name == "outrigger-init" {
				return c.Image
			}
		}
		return ""
	}
	await := func(t *testing.T, what string, done func() bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) { return done(), nil }); err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
	client, err := kubernetes.NewForConfig(s.as("outrigger-controller"))
	if err != nil {
		t.Fatal(err)
	}
	keep := func(t *testing.T, mode policy.Mode, image *atomic.Value) (changed chan struct{}) {
		changed = make(chan struct{}, 1)
		keeper := &outriggerinjector.PolicyKeeper{
			Client: client, Mesh: meshconfig.Mesh{Name: "osm", Namespace: namespace, Revision: "default"}, Mode: mode, Changed: changed,
			Owner: outriggerinjector.PolicyOwner("osm"), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Overlap: 3 * time.Second,
			Model: func(context.Context) (*inject.Model, error) {
				return model(t, fmt.Sprintf("{injector: {mode: %s}}", mode), image.Load().(string)), nil
			},
		}
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() { done <- keeper.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return changed
	}
	var image atomic.Value
	image.Store("first")

	t.Run("both", func(t *testing.T) {
		s.apply(t, "{injector: {mode: both}}")
		changed := keep(t, policy.ModeBoth, &image)
		await(t, "the policy", func() bool {
			pod, err := create(meshPod(nil))
			return err == nil && inject.ClassOf(pod) == "envoy"
		})
		// The webhook, which is away, is for what the policy cannot inject.
		_, err := create(meshPod(map[string]string{"openservicemesh.io/sidecar-concurrency": "2"}))
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("a pod with a setting is created with %v", err)
		}
		if _, err := create(meshPod(map[string]string{inject.StatusAnnotation: "{}"})); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("a pod that something else has injected is created with %v", err)
		}
		late := meshPod(nil)
		late.Annotations = map[string]string{inject.StatusAnnotation: `{"version":1,"policy":"a"}`}
		late.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 80}}}
		if _, err := create(late); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("a pod with a probe that the policy has not seen is created with %v", err)
		}

		made, err := policy.New(ctx, model(t, "{injector: {mode: both}}", "first"), outriggerinjector.PolicyOptions(meshconfig.Mesh{Name: "osm", Revision: "default"}, policy.ModeBoth))
		if err != nil {
			t.Fatal(err)
		}
		var before []string
		await(t, "the policies of all classes", func() bool {
			before = policyNames(t, s)
			return len(before) == len(made.Objects)/2
		})
		image.Store("second")
		changed <- struct{}{}
		seen := make(map[string]bool)
		await(t, "the new policies", func() bool {
			// At no time is a pod refused, or created without a sidecar.
			pod, err := create(meshPod(nil))
			if err != nil || !inject.Injected(pod) {
				t.Fatalf("while policies change, a pod is created with %v: %v", err, pod.Annotations)
			}
			seen[initImage(pod)[:5]] = true
			now := policyNames(t, s)
			return seen["secon"] && len(now) == len(before) && !slices.Equal(now, before)
		})
		if !seen["first"] {
			t.Error("the old policies were gone before the new ones were in use")
		}
	})
	t.Run("policy", func(t *testing.T) {
		s.apply(t, "{injector: {mode: policy}}")
		keep(t, policy.ModePolicy, &image)
		await(t, "the guard", func() bool {
			_, err := create(meshPod(map[string]string{"openservicemesh.io/sidecar-concurrency": "2"}))
			return err != nil && strings.Contains(err.Error(), "outrigger: the pod needs a sidecar, which an admission policy cannot add: settings; ")
		})
		if pod, err := create(meshPod(nil)); err != nil || !inject.Injected(pod) {
			t.Errorf("a pod is created with %v", err)
		}
		if _, err := create(meshPod(map[string]string{"openservicemesh.io/sidecar-class": "grpc"})); err == nil || !strings.Contains(err.Error(), "no admission policy for the class grpc") {
			t.Errorf("a pod without a policy for its class is created with %v", err)
		}
		if _, err := create(meshPod(map[string]string{"openservicemesh.io/sidecar-injection": "disabled"})); err != nil {
			t.Errorf("a pod that wants no sidecar is created with %v", err)
		}
		list, err := api.MutatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			t.Fatal(err)
		}
		if owners := list.Items[0].OwnerReferences; len(owners) != 1 || owners[0].Kind != "ClusterRole" || owners[0].Name != "outrigger-controller-policies" {
			t.Errorf("the owners of a policy are %v", owners)
		}
	})
	for _, err := range []error{
		api.MutatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		api.ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		api.MutatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		api.ValidatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// policyNames returns the names of all objects that are policies of admission, sorted.
func policyNames(t *testing.T, s *server) []string {
	t.Helper()
	list, err := s.admin.AdmissionregistrationV1().MutatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// TestPoliciesNeedKubernetes renders the chart for a cluster without MutatingAdmissionPolicies, whose
// pods would come up without sidecars.
func TestPoliciesNeedKubernetes(t *testing.T) {
	for _, mode := range []string{"webhook", "policy", "both"} {
		loaded, err := chart.Load()
		if err != nil {
			t.Fatal(err)
		}
		old := common.DefaultCapabilities.Copy()
		old.KubeVersion = common.KubeVersion{Version: "v1.35.4-gke.1", Major: "1", Minor: "35"}
		values := map[string]any{"injector": map[string]any{"mode": mode}}
		input, err := util.ToRenderValues(loaded, values, common.ReleaseOptions{Name: "outrigger", Namespace: namespace, IsInstall: true}, old)
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.Engine{}.RenderWithContext(t.Context(), loaded, input)
		if refused := err != nil && strings.Contains(err.Error(), "needs Kubernetes 1.36 or newer, and this is v1.35.4"); refused != (mode != "webhook") {
			t.Errorf("with injector.mode: %s the error is %v", mode, err)
		}
	}
}
