package inject_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// strict changes a pod to satisfy Pod Security as far as possible.
func strict(pod *corev1.Pod) {
	pod.Spec.HostNetwork, pod.Spec.HostPID, pod.Spec.HostIPC = false, false, false
	pod.Spec.SecurityContext = nil
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if ours(c) {
				continue
			}
			for j := range c.Ports {
				c.Ports[j].HostPort = 0
			}
			c.SecurityContext = &corev1.SecurityContext{
				RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
		}
	}
}

func ours(c *corev1.Container) bool {
	return c.Name == driver.ProxyContainer || c.Name == driver.InitContainer
}

// apart returns the pod without containers that only set fields of the sidecar, unless
// they set its security context.
func apart(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, list := range []*[]corev1.Container{&pod.Spec.InitContainers, &pod.Spec.Containers} {
		*list = slices.DeleteFunc(*list, func(c corev1.Container) bool { return ours(&c) && c.SecurityContext == nil })
	}
	return pod
}

// TestPodSecurity injects every sample, unchanged and made strict, with the CNI plug-in:
// the injected pod must satisfy the level of Pod Security that the pod satisfied before.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	violates := func(level psaapi.Level, pod *corev1.Pod) string {
		r := policy.AggregateCheckResults(evaluator.EvaluatePod(psaapi.LevelVersion{Level: level, Version: psaapi.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
		if r.Allowed {
			return ""
		}
		return r.ForbiddenReason() + ": " + r.ForbiddenDetail()
	}
	for _, cni := range []bool{true, false} {
		passed, all := make(map[psaapi.Level]int), make(map[psaapi.Level]int)
		for _, shape := range shapes {
			w := shape.environment()
			if cni {
				w.config = "cni: true"
			}
			w.namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
			i := w.injector(t)
			for _, s := range samples(t) {
				own := decode(t, s.raw)
				// Windows rejects fields that Pod Security requires of pods without an OS.
				if s.denied() || s.refused() || strings.HasPrefix(s.name, "windows-") && own.Spec.OS == nil {
					continue
				}
				made := own.DeepCopy()
				strict(made)
				for n, pod := range []*corev1.Pod{own, made} {
					raw := encode(t, pod)
					r := i.Inject(t.Context(), w.request(string(raw)))
					if r.Decision.Outcome != inject.Inject {
						continue
					}
					injected := decode(t, patched(t, raw, r.Patch))
					for _, level := range []psaapi.Level{psaapi.LevelBaseline, psaapi.LevelRestricted} {
						if violates(level, apart(pod)) != "" {
							continue
						}
						all[level]++
						against := violates(level, injected)
						if against == "" {
							passed[level]++
						} else if cni {
							t.Errorf("%s/%s (%d): the pod satisfied %s, and no longer does: %s", shape, s.name, n, level, against)
						}
					}
					warned := slices.ContainsFunc(r.Warnings, func(w inject.Warning) bool { return w.Code == "pod_security" })
					if init := container(injected, driver.InitContainer); init != nil && init.SecurityContext.Capabilities != nil {
						if needs := slices.Contains(init.SecurityContext.Capabilities.Add, "NET_ADMIN"); needs != warned {
							t.Errorf("%s/%s: the init container needs NET_ADMIN: %v; warned of it: %v", shape, s.name, needs, warned)
						}
					}
				}
			}
		}
		t.Logf("CNI %v: of pods that satisfied the level before, these do with a sidecar: baseline %d of %d, restricted %d of %d",
			cni, passed[psaapi.LevelBaseline], all[psaapi.LevelBaseline], passed[psaapi.LevelRestricted], all[psaapi.LevelRestricted])
		if all[psaapi.LevelRestricted] < 100 {
			t.Errorf("only %d pods satisfy restricted, too few for this test", all[psaapi.LevelRestricted])
		}
	}
}

// TestCNI checks the plug-in's annotation and the pod's init container.
func TestCNI(t *testing.T) {
	const pod = `{"metadata":{"annotations":{"openservicemesh.io/outbound-port-exclusion-list":"5432"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`
	w := ordinary()
	w.config = "cni: true"
	i := w.injector(t)
	r := i.Inject(t.Context(), w.request(pod))
	raw := patched(t, []byte(pod), r.Patch)
	injected := decode(t, raw)
	var redirection agentspec.Redirection
	if err := json.Unmarshal([]byte(injected.Annotations[agentspec.RedirectionAnnotation]), &redirection); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(redirection.ExcludeOutboundPorts, []int{5432}) {
		t.Errorf("the plug-in's redirection is %+v", redirection)
	}
	init := container(injected, driver.InitContainer)
	if !slices.Equal(init.Command, []string{"/outrigger-agent", "init", "--verify"}) {
		t.Errorf("the init container runs %q", init.Command)
	}

	if again := i.Inject(t.Context(), w.request(string(raw))); again.Decision.Outcome != inject.Inject || len(again.Patch) > 0 {
		t.Errorf("a second injection: %s %s: %v", again.Decision.Outcome, again.Decision.Message, again.Patch)
	}

	// A copy of the pod has the containers and the annotation, and not the status.
	delete(injected.Annotations, inject.StatusAnnotation)
	if r := i.Inject(t.Context(), w.request(string(encode(t, injected)))); r.Decision.Outcome != inject.Inject {
		t.Errorf("a copy of an injected pod is not injected: %s", r.Decision.Message)
	}

	const own = `{"metadata":{"annotations":{"openservicemesh.io/redirection":"{\"disableInbound\":true}"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`
	if r := i.Inject(t.Context(), w.request(own)); r.Decision.Outcome != inject.Deny || r.Decision.Reason != "invalid_annotation" || !strings.Contains(r.Decision.Message, agentspec.RedirectionAnnotation) {
		t.Errorf("a pod with its own annotation for the plug-in: %s %s: %s", r.Decision.Outcome, r.Decision.Reason, r.Decision.Message)
	}

	for name, pod := range map[string]string{
		"nothing redirected": `{"metadata":{"annotations":{"openservicemesh.io/interception-mode":"none"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`,
		"windows":            `{"metadata":{"annotations":{"openservicemesh.io/sidecar-image":"w"}},"spec":{"os":{"name":"windows"},"containers":[{"name":"app","image":"app"}]}}`,
	} {
		r := i.Inject(t.Context(), w.request(pod))
		if r.Decision.Outcome != inject.Inject {
			t.Fatalf("%s: %s", name, r.Decision.Message)
		}
		injected := decode(t, patched(t, []byte(pod), r.Patch))
		if value, ok := injected.Annotations[agentspec.RedirectionAnnotation]; ok {
			t.Errorf("%s: the plug-in's redirection is %s", name, value)
		}
		if init := container(injected, driver.InitContainer); init != nil && slices.Contains(init.Command, "--verify") {
			t.Errorf("%s: the init container waits for rules", name)
		}
	}
}

// TestRedirectionOfClass checks that the plug-in and the init container get what the class
// asks of the redirection.
func TestRedirectionOfClass(t *testing.T) {
	const pod = `{"spec":{"containers":[{"name":"app","image":"app"}]}}`
	for class, want := range map[string]bool{"envoy": false, "haproxy": true} {
		w := ordinary()
		w.config, w.configurator.class = "cni: true", class
		r := w.injector(t).Inject(t.Context(), w.request(pod))
		injected := decode(t, patched(t, []byte(pod), r.Patch))
		init := container(injected, driver.InitContainer)
		if init == nil {
			t.Fatalf("%s: there is no init container: %s", class, r.Decision.Message)
		}
		for from, text := range map[string]string{"annotation": injected.Annotations[agentspec.RedirectionAnnotation], "init container": init.Env[0].Value} {
			var redirection agentspec.Redirection
			if err := json.Unmarshal([]byte(text), &redirection); err != nil {
				t.Fatal(err)
			}
			if redirection.TranslateIPv6 != want {
				t.Errorf("%s: the redirection of the %s is %s, want that it translates IPv6: %v", class, from, text, want)
			}
		}
		if r.Redirection.TranslateIPv6 != want {
			t.Errorf("%s: the result has the redirection %+v", class, r.Redirection)
		}
	}
}
