package inject_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const hooked = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"cart","labels":{"app":"cart"},"annotations":{"note":"mine"}},
"spec":{"serviceAccountName":"cart","volumes":[{"name":"data","emptyDir":{}}],"containers":[{"name":"cart","image":"shop/cart:1","ports":[{"name":"http","containerPort":8080}],
"livenessProbe":{"tcpSocket":{"port":"http"}},"readinessProbe":{"grpc":{"port":9000}},"startupProbe":{"grpc":{"port":9000,"service":"all"},"periodSeconds":2},
"lifecycle":{"preStop":{"httpGet":{"path":"/stop?now","port":"http","host":"127.0.0.1","scheme":"HTTPS","httpHeaders":[{"name":"X","value":"$y"}]}}}}]}}`

// debugCopy copies a pod like kubectl debug --copy-to --profile=general: without labels,
// annotations and probes, and with an additional container.
func debugCopy(pod *corev1.Pod, probes bool) *corev1.Pod {
	copied := &corev1.Pod{TypeMeta: pod.TypeMeta, Spec: *pod.Spec.DeepCopy()}
	copied.Name, copied.Namespace = pod.Name+"-debug", pod.Namespace
	for _, list := range [][]corev1.Container{copied.Spec.InitContainers, copied.Spec.Containers} {
		for i := range list {
			if !probes {
				list[i].LivenessProbe, list[i].ReadinessProbe, list[i].StartupProbe = nil, nil, nil
			}
		}
	}
	copied.Spec.Containers = append(copied.Spec.Containers, corev1.Container{Name: "debugger", Image: "busybox"})
	return copied
}

// TestCopies injects copies of an injected pod that have its containers but not its
// status. The result must be that of injecting the original pod.
func TestCopies(t *testing.T) {
	for _, s := range shapes {
		for name, probes := range map[string]bool{"without probes": false, "with probes": true} {
			t.Run(s.String()+" "+name, func(t *testing.T) {
				w := s.environment()
				i := w.injector(t)
				injected := defaulted(decode(t, once(t, i, w, []byte(hooked))))
				copied := encode(t, debugCopy(injected, probes))
				// Another review, with another handle.
				request := w.request(string(copied))
				request.UID = "0b8f28a6-2c25-4e5a-a4e5-4dd2f7b6f3a7"
				r := i.Inject(t.Context(), request)
				if r.Decision.Outcome != inject.Inject {
					t.Fatalf("the copy is not injected: %+v", r.Decision)
				}
				got := patched(t, copied, r.Patch)
				unchanged(t, i, w, got)

				plain := encode(t, debugCopy(defaulted(decode(t, []byte(hooked))), probes))
				request.Pod = plain
				want := patched(t, plain, i.Inject(t.Context(), request).Patch)
				spec := func(raw []byte) string {
					return strings.ReplaceAll(variable(proxy(t, decode(t, raw)), agentspec.EnvSpec), "\\", "")
				}
				if d := cmp.Diff(spec(want), spec(got)); d != "" {
					t.Errorf("the agent's spec differs from that of the original pod (-want +got):\n%s", d)
				}
				if d := cmp.Diff(container(decode(t, want), "cart").Lifecycle, container(decode(t, got), "cart").Lifecycle); d != "" {
					t.Errorf("the hooks differ (-want +got):\n%s", d)
				}
				back, err := inject.Uninject(got)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range []string{driver.InitContainer, driver.ProxyContainer} {
					if container(decode(t, patched(t, got, back)), c) != nil {
						t.Errorf("uninject leaves the container %s", c)
					}
				}
			})
		}
	}
}

func TestUninjectCopy(t *testing.T) {
	w := ordinary()
	i := w.injector(t)
	copied := debugCopy(decode(t, once(t, i, w, []byte(hooked))), true)
	raw := encode(t, copied)
	back, err := inject.Uninject(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := encode(t, debugCopy(decode(t, []byte(strings.ReplaceAll(hooked, `"port":"http"`, `"port":8080`))), true))
	if d := cmp.Diff(generic(t, want), generic(t, patched(t, raw, back))); d != "" {
		t.Errorf("uninject gives (+):\n%s", d)
	}
}

// TestBrokenCopies checks that copies are denied if the original cannot be restored.
func TestBrokenCopies(t *testing.T) {
	w := ordinary()
	i := w.injector(t)
	for name, change := range map[string]func(pod *corev1.Pod){
		"a variable that is no JSON": func(pod *corev1.Pod) {
			c := proxy(t, pod)
			for e := range c.Env {
				if c.Env[e].Name == agentspec.EnvSpec {
					c.Env[e].Value = "{"
				}
			}
		},
		"a hook that is not known": func(pod *corev1.Pod) {
			container(pod, "cart").Lifecycle.PreStop.HTTPGet.Path = "/app-lifecycle/other/cart/preStop"
		},
		"no sidecar any more": func(pod *corev1.Pod) { pod.Spec.InitContainers = nil },
	} {
		t.Run(name, func(t *testing.T) {
			copied := debugCopy(decode(t, once(t, i, w, []byte(hooked))), true)
			change(copied)
			d := i.Inject(t.Context(), w.request(string(encode(t, copied)))).Decision
			if d.Outcome != inject.Deny || d.Reason != "copy_incomplete" {
				t.Errorf("the decision is %+v", d)
			}
		})
	}
}
