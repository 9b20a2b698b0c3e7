package inject_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// withResources is an environment whose sidecars have the chart's resources.
func withResources(class string, classic bool) *environment {
	w := shape{class, classic}.environment()
	w.configurator.mesh.Spec.Sidecar.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("20m"), "memory": resource.MustParse("64Mi"), "ephemeral-storage": resource.MustParse("10Mi")},
		Limits:   corev1.ResourceList{"memory": resource.MustParse("1Gi")},
	}
	return w
}

const sidecarAmounts = `"openservicemesh.io/sidecar-resource-limits-cpu":"100m","openservicemesh.io/sidecar-resource-limits-memory":"128Mi",
"openservicemesh.io/sidecar-resource-requests-cpu":"100m","openservicemesh.io/sidecar-resource-requests-memory":"128Mi"`

// TestPodResources injects pods whose resources are set for the whole pod. What the API server
// would check is checked here.
func TestPodResources(t *testing.T) {
	tests := []struct{ name, resources, annotations, denied string }{
		{"no room", `{"requests":{"cpu":"100m","memory":"128Mi"},"limits":{"cpu":"200m","memory":"256Mi"}}`, ``, ""},
		{"limits only", `{"limits":{"cpu":"200m","memory":"256Mi"}}`, ``, ""},
		{"much room", `{"requests":{"cpu":"2","memory":"4Gi"}}`, ``, ""},
		{"amounts that fit", `{"requests":{"cpu":"200m","memory":"256Mi"},"limits":{"cpu":"1","memory":"1Gi"}}`, sidecarAmounts, ""},
		{"requests that do not fit", `{"requests":{"cpu":"150m","memory":"256Mi"}}`, sidecarAmounts, "sidecar-resource-requests-cpu"},
		{"limits that do not fit", `{"limits":{"memory":"100Mi"}}`, sidecarAmounts, "sidecar-resource-limits-memory"},
	}
	for _, class := range []string{"envoy", "null", "grpc"} {
		for _, classic := range []bool{false, true} {
			for _, test := range tests {
				t.Run(fmt.Sprint(class, classic, test.name), func(t *testing.T) {
					w := withResources(class, classic)
					if class == "grpc" {
						w.configurator.images = map[string]string{"grpc": ""}
					}
					pod := fmt.Sprintf(`{"metadata":{"name":"p","annotations":{%s}},"spec":{"resources":%s,
"initContainers":[{"name":"setup","image":"app","resources":{"requests":{"cpu":"100m"}}}],
"containers":[{"name":"app","image":"app","resources":{"requests":{"cpu":"100m","memory":"128Mi"}}}]}}`, test.annotations, test.resources)
					i := w.injector(t)
					r := i.Inject(t.Context(), w.request(pod))
					if test.denied != "" {
						if r.Decision.Reason != "invalid_annotation" || !strings.Contains(r.Decision.Message, test.denied) {
							t.Errorf("the decision is %+v", r.Decision)
						}
						return
					}
					injected := once(t, i, w, []byte(pod))
					checkAmounts(t, decode(t, injected))
					if test.annotations == "" && proxy(t, decode(t, injected)).Resources.Requests.StorageEphemeral().IsZero() {
						t.Error("the sidecar has lost its request of storage, which pods as a whole do not have")
					}
					unchanged(t, i, w, injected)
				})
			}
		}
	}
}

// checkAmounts checks what an API server checks of a pod's resources.
func checkAmounts(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	sum, most := corev1.ResourceList{}, corev1.ResourceList{}
	plus := func(a, b resource.Quantity) resource.Quantity {
		a.Add(b)
		return a
	}
	each := func(c *corev1.Container, init bool) {
		requests := c.Resources.Requests.DeepCopy()
		for name, limit := range c.Resources.Limits {
			if request, ok := requests[name]; !ok {
				if requests == nil {
					requests = corev1.ResourceList{}
				}
				requests[name] = limit
			} else if request.Cmp(limit) > 0 {
				t.Errorf("container %s requests %s of %s, more than its limit %s", c.Name, request.String(), name, limit.String())
			}
			if pod.Spec.Resources == nil {
				continue
			}
			if budget, ok := pod.Spec.Resources.Limits[name]; ok && limit.Cmp(budget) > 0 {
				t.Errorf("the limit of %s of container %s is %s, and that of the pod %s", name, c.Name, limit.String(), budget.String())
			}
		}
		for name, request := range requests {
			if init && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways) {
				if now := plus(sum[name], request); now.Cmp(most[name]) > 0 {
					most[name] = now
				}
				continue
			}
			sum[name] = plus(sum[name], request)
		}
	}
	for i := range pod.Spec.InitContainers {
		each(&pod.Spec.InitContainers[i], true)
	}
	for i := range pod.Spec.Containers {
		each(&pod.Spec.Containers[i], false)
	}
	if pod.Spec.Resources == nil {
		return
	}
	for name, budget := range pod.Spec.Resources.Requests {
		for _, needed := range []resource.Quantity{sum[name], most[name]} {
			if needed.Cmp(budget) > 0 {
				t.Errorf("the containers request %s of %s, and the pod has %s", needed.String(), name, budget.String())
			}
		}
	}
}

// TestGuaranteedPods checks that a pod of the class Guaranteed stays one if the sidecar's requests
// and limits are equal, and that its owner is told otherwise.
func TestGuaranteedPods(t *testing.T) {
	const pod = `{"metadata":{"name":"p","annotations":{%s}},"spec":{"containers":[{"name":"app","image":"app","resources":{"limits":{"cpu":"1","memory":"1Gi"}%s}}]}}`
	for _, classic := range []bool{false, true} {
		for _, test := range []struct{ annotations, more, warning string }{
			{sidecarAmounts, "", ""},
			{sidecarAmounts, `,"requests":{"cpu":"1","memory":"1Gi"}`, ""},
			{"", "", "not_guaranteed"},
			{"", `,"requests":{"cpu":"500m"}`, ""},
		} {
			w := withResources("envoy", classic)
			text := fmt.Sprintf(pod, test.annotations, test.more)
			r := w.injector(t).Inject(t.Context(), w.request(text))
			var warning string
			for _, w := range r.Warnings {
				warning += string(w.Code)
			}
			if r.Decision.Outcome != inject.Inject || warning != test.warning {
				t.Fatalf("with %q %q the decision is %+v, with the warnings %v", test.annotations, test.more, r.Decision, r.Warnings)
			}
			if test.annotations == "" {
				continue
			}
			injected := decode(t, patched(t, []byte(text), r.Patch))
			for _, name := range []string{driver.InitContainer, driver.ProxyContainer} {
				amounts := container(injected, name).Resources
				if !amounts.Limits.Cpu().Equal(*amounts.Requests.Cpu()) || !amounts.Limits.Memory().Equal(*amounts.Requests.Memory()) ||
					amounts.Limits.Cpu().IsZero() || amounts.Limits.Memory().IsZero() {
					t.Errorf("container %s has the resources %v", name, amounts)
				}
			}
		}
	}
}

// TestNoLimit checks that a limit of zero, in the MeshConfig or an annotation, means no limit: the
// API server rejects a request that is more than zero.
func TestNoLimit(t *testing.T) {
	w := withResources("envoy", false)
	w.configurator.mesh.Spec.Sidecar.Resources.Limits["cpu"] = resource.Quantity{}
	i := w.injector(t)
	for annotations, want := range map[string]corev1.ResourceList{
		``: {"memory": resource.MustParse("1Gi")},
		`"openservicemesh.io/sidecar-resource-limits-memory":"0"`: nil,
		`"openservicemesh.io/sidecar-resource-limits-cpu":"0"`:    {"memory": resource.MustParse("1Gi")},
	} {
		pod := fmt.Sprintf(`{"metadata":{"name":"p","annotations":{%s}},"spec":{"containers":[{"name":"app","image":"app"}]}}`, annotations)
		injected := once(t, i, w, []byte(pod))
		if got := proxy(t, decode(t, injected)).Resources.Limits; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("with %q the limits are %v, want %v", annotations, got, want)
		}
		checkAmounts(t, decode(t, injected))
	}
}
