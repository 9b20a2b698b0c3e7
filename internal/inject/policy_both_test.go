package inject_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
)

// bothWebhook returns the webhook that the chart installs beside policies, with the hooks' address.
// The condition of the chart says for which pods it is called.
func bothWebhook(t *testing.T, h *hooks, mode string) *admission.MutatingWebhookConfiguration {
	t.Helper()
	release, err := chart.Render(t.Context(), "osm-system", map[string]any{"injector": map[string]any{"mode": mode}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range release.Objects {
		var config admission.MutatingWebhookConfiguration
		if err := yaml.Unmarshal([]byte(text), &config); err != nil || config.Kind != "MutatingWebhookConfiguration" {
			continue
		}
		url := h.URL + "/ours"
		for i := range config.Webhooks {
			config.Webhooks[i].ClientConfig = admission.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})}
		}
		return &config
	}
	t.Fatal("the chart has no webhook")
	return nil
}

// injectsOnce has policies and the webhook. Each pod must be the same as by the webhook alone, and
// the webhook must be called only for pods that the policy leaves.
func (c *cluster) injectsOnce(t *testing.T) {
	w := shape{"envoy", false}.environment()
	want := c.fromWebhook(t, w, samples(t))
	h := newHooks(t)
	h.ours = w.door(t).mux
	c.setNamespace(t, w)
	t.Cleanup(func() { c.setNamespace(t, &environment{}) })
	api := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := api.Create(t.Context(), bothWebhook(t, h, "both"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.DeleteCollection(context.WithoutCancel(t.Context()), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	c.await(t, ordinaryPod, func(status string, _ error) bool { return status != "" })
	c.usePolicies(t, policies(t, w, policy.ModeBoth, "envoy"))
	for _, s := range samples(t) {
		if want[s.name] == nil {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			calls := h.calls()
			taken, err := c.dryRun(t, s.raw)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want[s.name], admitted(t, taken)); d != "" {
				t.Errorf("the pods of the webhook (-) and of both (+) differ:\n%s", d)
			}
			if called := h.calls() - calls; (called > 0) != (leftByPolicies[s.name] != "") {
				t.Errorf("the webhook was called %d times, and the policy leaves the pod because of %q", called, leftByPolicies[s.name])
			}
		})
	}
}

// calls returns how often our webhook was called.
func (h *hooks) calls() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.served
}

// injectsAlone creates 500 pods while nothing of the control plane runs.
func (c *cluster) injectsAlone(t *testing.T) {
	w := ordinary()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "alone", Labels: w.namespace.Labels, Annotations: w.namespace.Annotations}}
	if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(name string) time.Duration {
		pod := decode(t, []byte(smallPod))
		pod.Namespace, pod.Name, pod.GenerateName = "alone", name, ""
		begin := time.Now()
		if _, err := c.client.CoreV1().Pods("alone").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
		return time.Since(begin)
	}
	const n = 500
	measure := func(name string) time.Duration {
		times := make([]time.Duration, n)
		var group sync.WaitGroup
		for worker := range 4 {
			group.Go(func() {
				for i := worker; i < n; i += 4 {
					times[i] = create(fmt.Sprintf("%s-%d", name, i))
				}
			})
		}
		group.Wait()
		slices.Sort(times)
		return times[n/2]
	}
	plain := measure("plain")
	h := newHooks(t)
	h.ours = w.door(t).mux
	webhooks := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := webhooks.Create(t.Context(), bothWebhook(t, h, "webhook"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.setNamespace(t, w)
	c.await(t, ordinaryPod, func(status string, _ error) bool { return status != "" })
	hooked := measure("hooked")
	if err := webhooks.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(t, ordinaryPod, func(status string, err error) bool { return status == "" && err == nil })
	t.Cleanup(func() { c.setNamespace(t, &environment{}) })
	c.usePolicies(t, policies(t, w, policy.ModePolicy, "envoy", "haproxy", "pipy", "null"))
	alone := measure("alone")
	list, err := c.client.CoreV1().Pods("alone").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	injected := 0
	for i := range list.Items {
		if p := &list.Items[i]; strings.HasPrefix(p.Name, "alone-") && inject.Injected(p) {
			injected++
		}
	}
	if injected != n {
		t.Errorf("%d of %d pods have a sidecar", injected, n)
	}
	t.Logf("the creation of a pod takes %v (p50) without injection, %v by the webhook, and %v by four policies", plain, hooked, alone)
}
