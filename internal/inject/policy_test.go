package inject_test

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
)

// policies makes the policies of the environment's injector.
func policies(t testing.TB, w *environment, mode policy.Mode, classes ...string) *policy.Policies {
	t.Helper()
	p, err := policy.New(t.Context(), w.injector(t).Model(), policy.Options{Mode: mode, Name: "outrigger-injector", Classes: classes})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// usePolicies creates the policies, waits until the API server uses them, and removes them when the
// test ends.
func (c *cluster) usePolicies(t *testing.T, p *policy.Policies) {
	t.Helper()
	api := c.client.AdmissionregistrationV1()
	for _, object := range p.Objects {
		var err error
		// The API server says so if an expression has the wrong type.
		switch o := object.(type) {
		case *admission.MutatingAdmissionPolicy:
			_, err = api.MutatingAdmissionPolicies().Create(t.Context(), o, metav1.CreateOptions{})
		case *admission.MutatingAdmissionPolicyBinding:
			_, err = api.MutatingAdmissionPolicyBindings().Create(t.Context(), o, metav1.CreateOptions{})
		case *admission.ValidatingAdmissionPolicy:
			_, err = api.ValidatingAdmissionPolicies().Create(t.Context(), o, metav1.CreateOptions{})
		case *admission.ValidatingAdmissionPolicyBinding:
			_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), o, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, err := range []error{
			api.MutatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			api.MutatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			api.ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			api.ValidatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		for _, pod := range []string{ordinaryPod, undecidedPod} {
			c.await(t, pod, func(status string, err error) bool {
				return !strings.Contains(status, `"policy":"`) && (err == nil || !strings.Contains(err.Error(), "AdmissionPolicy"))
			})
		}
	})
	for _, object := range p.Objects {
		switch object.(type) {
		case *admission.MutatingAdmissionPolicy:
			c.await(t, ordinaryPod, func(status string, _ error) bool { return strings.Contains(status, `"policy":"`) })
		case *admission.ValidatingAdmissionPolicy:
			c.await(t, undecidedPod, func(_ string, err error) bool {
				return err != nil && strings.Contains(err.Error(), "outrigger: the value of")
			})
		}
	}
}

const (
	ordinaryPod  = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"await"},"spec":{"containers":[{"name":"app","image":"app"}]}}`
	undecidedPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"await","annotations":{"openservicemesh.io/sidecar-injection":"perhaps"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`
)

// await waits for what the API server does with a pod, by its status annotation or the error.
func (c *cluster) await(t *testing.T, pod string, done func(status string, err error) bool) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		var taken []byte
		status := ""
		if taken, last = c.dryRun(t, []byte(pod)); last == nil {
			status = decode(t, taken).Annotations[inject.StatusAnnotation]
		}
		return done(status, last), nil
	})
	if err != nil {
		t.Fatalf("waiting for the policies: %v; the last answer was: %v", err, last)
	}
}

// setNamespace sets the labels and annotations of the namespace shop.
func (c *cluster) setNamespace(t *testing.T, w *environment) {
	t.Helper()
	patch := encode(t, []map[string]any{
		{"op": "add", "path": "/metadata/labels", "value": w.namespace.Labels},
		{"op": "add", "path": "/metadata/annotations", "value": w.namespace.Annotations},
	})
	if _, err := c.client.CoreV1().Namespaces().Patch(context.WithoutCancel(t.Context()), "shop", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hookHandle is the part of a hook's path by which policies and the webhook differ.
var hookHandle = regexp.MustCompile(`/app-lifecycle/([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/)?`)

// admitted returns the pod without what is different in each request and what a policy does
// otherwise than the webhook, as docs/injection.md lists it.
func admitted(t *testing.T, raw []byte) any {
	t.Helper()
	pod := decode(t, hookHandle.ReplaceAll(raw, []byte("/app-lifecycle/")))
	status := map[string]any{}
	if text, ok := pod.Annotations[inject.StatusAnnotation]; ok {
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			t.Fatalf("the status is no JSON: %v\n%s", err, text)
		}
		delete(status, "policy")
		if replaced, ok := status["replacedLabels"].(map[string]any); ok {
			delete(replaced, inject.ProxyUUIDLabel)
		}
		if labels, ok := status["labels"].([]any); ok {
			status["labels"] = slices.DeleteFunc(labels, func(label any) bool { return label == inject.ProxyUUIDLabel })
		}
		pod.Annotations[inject.StatusAnnotation] = ""
	}
	return map[string]any{"pod": comparable(t, encode(t, pod)), "status": generic(t, encode(t, status))}
}

// leftByPolicies are the samples that policies do not inject, with the Limit.
var leftByPolicies = map[string]string{
	"own-proxy-container": "own_container", "own-proxy-init": "own_container", "own-init-init": "own_container",
	"own-init-container": "own_container", "own-both": "own_container", "own-volume": "own_volume",
	"windows": "windows", "windows-selector": "windows", "windows-affinity": "windows",
	"pod-resources": "pod_resources", "annotations": "settings",
	"settings-not-redirected": "settings", "settings-short-grace": "settings", "settings-no-grace": "settings",
	"initial-sidecar-image-only": "own_container",
}

// TestPolicies runs the tests of admission policies, which need an API server.
func TestPolicies(t *testing.T) {
	c := newCluster(t)
	t.Run("injects", c.injectsByPolicy)
	t.Run("random pods", c.injectsRandomPods)
	t.Run("MeshConfig", c.injectsByMeshConfig)
	t.Run("hostile settings", c.injectsHostileSettings)
	t.Run("decides", c.decidesByPolicy)
	t.Run("both", c.injectsOnce)
	t.Run("alone", c.injectsAlone)
}

// injectsByPolicy compares the pods that the API server injects by a policy with those that it gets
// from the webhook.
func (c *cluster) injectsByPolicy(t *testing.T) {
	for _, class := range []string{"envoy", "haproxy", "pipy", "null"} {
		t.Run(class, func(t *testing.T) {
			w := shape{class, false}.environment()
			pods := append(samples(t), sample{"log-level", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"loud","annotations":{"openservicemesh.io/sidecar-log-level":"Warn"}},"spec":{"containers":[{"name":"app","image":"app","readinessProbe":{"grpc":{"port":80}}}]}}`)})
			if made := c.sameByPolicy(t, w, pods, leftByPolicies); made < 15 {
				t.Errorf("policies have injected only %d samples", made)
			}
		})
	}
}

// sameByPolicy fails unless the API server injects the pods by policies as by the webhook, but for
// those that are left, with the Limit. It returns the number of pods that policies have injected.
func (c *cluster) sameByPolicy(t *testing.T, w *environment, pods []sample, left map[string]string) (made int) {
	t.Helper()
	want := c.fromWebhook(t, w, pods)
	c.setNamespace(t, w)
	t.Cleanup(func() { c.setNamespace(t, &environment{}) })
	c.usePolicies(t, policies(t, w, policy.ModePolicy, w.configurator.class))
	for _, s := range pods {
		if want[s.name] == nil {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			taken, err := c.dryRun(t, s.raw)
			if limit := left[s.name]; limit != "" {
				if err == nil || !strings.Contains(err.Error(), "an admission policy cannot add: "+limit+";") {
					t.Errorf("the API server says %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if by := inject.PolicyOf(decode(t, taken)); !strings.HasPrefix(by, "outrigger-injector."+w.configurator.class+".") {
				t.Errorf("the pod names the policy %q", by)
			}
			if d := cmp.Diff(want[s.name], admitted(t, taken)); d != "" {
				t.Errorf("the pods of the webhook (-) and of the policy (+) differ:\n%s", d)
			}
			made++
		})
	}
	return made
}

// fromWebhook returns the pods as they are after the webhook's patch, without those that the API
// server refuses.
func (c *cluster) fromWebhook(t *testing.T, w *environment, list []sample) map[string]any {
	t.Helper()
	i := w.injector(t)
	pods := make(map[string]any)
	for _, s := range list {
		asked, err := c.dryRun(t, s.raw)
		if err != nil {
			continue
		}
		defaulted := decode(t, asked)
		defaulted.Status = corev1.PodStatus{}
		if decode(t, s.raw).Name == "" {
			// When a webhook is called, a pod has no generated name.
			defaulted.Name = ""
		}
		asked = encode(t, defaulted)
		r := w.request(string(asked))
		// When a policy is called, a pod has no UID.
		r.UID = ""
		result := i.Inject(t.Context(), r)
		if result.Decision.Outcome != inject.Inject {
			t.Fatalf("%s: %+v", s.name, result.Decision)
		}
		taken, err := c.dryRun(t, patched(t, asked, result.Patch))
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		pods[s.name] = admitted(t, taken)
	}
	return pods
}
