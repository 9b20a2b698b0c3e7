//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testSoak rolls and scales workloads and changes policies for the duration E2E_SOAK, by
// default a minute. No request may fail, and the controller's memory must not grow.
func (c *cluster) testSoak(t *testing.T) {
	c.permissive(t, true)
	length := time.Minute
	if text := os.Getenv("E2E_SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	var namespaces []string
	for _, class := range c.classes(t) {
		namespace := "soak-" + class
		namespaces = append(namespaces, namespace)
		c.apply(t, manifest(t, values{Namespace: namespace, Class: class, Replicas: 2}, "namespace", "service", "server"))
		// With everything in the logs, the kubelet would rotate away what a failure was.
		c.must(t, "", c.kubectl, "annotate", "namespace", namespace, "openservicemesh.io/access-log=errors")
	}
	for _, namespace := range namespaces {
		c.rolledOut(t, namespace+"/web")
		c.load(t, namespace)
	}
	var heap []float64
	changes := map[string]int{}
	for began := time.Now(); time.Since(began) < length; {
		namespace := namespaces[rand.IntN(len(namespaces))]
		switch what := rand.IntN(4); what {
		case 0:
			changes["rollouts"]++
			c.must(t, "", c.kubectl, "rollout", "restart", "-n", namespace, "deployment/web")
			c.rolledOut(t, namespace+"/web")
		case 1:
			changes["scalings"]++
			c.must(t, "", c.kubectl, "scale", "-n", namespace, "deployment/web", fmt.Sprintf("--replicas=%d", 2+rand.IntN(3)))
			c.rolledOut(t, namespace+"/web")
		default:
			changes["policies"]++
			// A policy that allows nothing new comes and goes.
			policy := fmt.Sprintf(soakPolicy, namespace, rand.IntN(1000))
			c.must(t, policy, c.kubectl, "apply", "-f", "-")
			time.Sleep(time.Second)
			c.must(t, policy, c.kubectl, "delete", "-f", "-")
		}
		heap = append(heap, c.controllerMetric(t, "go_memstats_heap_inuse_bytes"))
	}
	t.Logf("%v in %s", changes, length)
	// The heap grows until a collection; the minimum shows what is kept.
	third := max(len(heap)/3, 1)
	first, last := slices.Min(heap[:third]), slices.Min(heap[len(heap)-third:])
	t.Logf("the controller's heap was at least %.1f MiB in the first third and %.1f MiB in the last", first/(1<<20), last/(1<<20))
	if last > first*1.2+8*(1<<20) {
		t.Errorf("the controller's heap grew from %.0f to %.0f bytes", first, last)
	}
}

const soakPolicy = `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: soak, namespace: %[1]s}
spec:
  matches: [{name: some, pathRegex: "/path-%[2]d", methods: [GET]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: soak, namespace: %[1]s}
spec:
  destination: {kind: ServiceAccount, name: default, namespace: %[1]s}
  sources: [{kind: ServiceAccount, name: default, namespace: %[1]s}]
  rules: [{kind: HTTPRouteGroup, name: soak, matches: [some]}]
`

// controllerMetric returns a metric without labels of the controller.
func (c *cluster) controllerMetric(t *testing.T, name string) float64 {
	t.Helper()
	var value float64
	c.eventually(t, time.Minute, "the controller's metrics can be read", func(ctx context.Context) error {
		pod, err := c.output(ctx, "", c.kubectl, "get", "pods", "-n", "osm-system", "-l", "app=outrigger-controller", "-o", "jsonpath={.items[0].metadata.name}")
		if err != nil {
			return err
		}
		text, err := c.output(ctx, "", c.kubectl, "get", "--raw", "/api/v1/namespaces/osm-system/pods/"+strings.TrimSpace(pod)+":9091/proxy/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if number, found := strings.CutPrefix(strings.TrimSpace(line), name+" "); found {
				value, err = strconv.ParseFloat(number, 64)
				return err
			}
		}
		return fmt.Errorf("the controller has no metric %s", name)
	})
	return value
}
