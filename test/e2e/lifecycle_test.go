//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testLifecycle uninstalls the mesh, and then goes through its life while the bookstore's
// buyers buy: the former release is installed, upgraded, rolled back and upgraded again, its
// namespaces move to a canary and back with a tag, and it is uninstalled. No request may
// fail, and nothing may be left.
func (c *cluster) testLifecycle(t *testing.T) {
	before := filepath.Join(c.root, "bin", "outrigger-before")
	if _, err := os.Stat(before); err != nil {
		t.Skip("SKIPPED: the former release is missing; test/e2e/run.sh builds it")
	}
	c.must(t, "", c.outrigger, "uninstall", "--purge", "--yes")
	empty := c.everything(t)
	c.timed(t, "install the release before", func() {
		c.must(t, "", before, "install", "--set", "osm.enablePermissiveTrafficPolicy=false")
	})
	c.startBookstore(t, c.classes(t)[:1])

	t.Run("upgrade", func(t *testing.T) {
		since := time.Now().UTC()
		for _, step := range []struct{ program, version string }{{c.outrigger, "0.2.0"}, {before, "0.1.0"}, {c.outrigger, "0.2.0"}} {
			c.timed(t, "upgrade to "+step.version, func() { c.must(t, "", step.program, "upgrade") })
			// The old pods are still ending.
			c.eventually(t, time.Minute, "the control plane has the version", func(ctx context.Context) error { return c.runs(ctx, step.version) })
			// Pods of both versions call each other.
			c.restart(t, "bookstore/bookstore-v1")
		}
		c.noneFailed(t, since, 200)
	})
	t.Run("tag", func(t *testing.T) {
		since := time.Now().UTC()
		c.timed(t, "install a canary", func() { c.must(t, "", c.outrigger, "install", "--revision", "canary") })
		c.must(t, "", c.outrigger, "tag", "set", "prod", "--revision", "default")
		c.must(t, "", c.kubectl, "label", "namespace", "bookstore", "openservicemesh.io/rev=prod")
		for _, revision := range []string{"default", "canary", "default"} {
			c.must(t, "", c.outrigger, "tag", "set", "prod", "--revision", revision, "--overwrite")
			c.restart(t, "bookstore/bookstore-v1")
			status := c.must(t, "", c.kubectl, "get", "pods", "-n", "bookstore", "-l", "app=bookstore,version=v1", "-o", `jsonpath={.items[*].metadata.annotations.openservicemesh\.io/sidecar-status}`)
			if !strings.Contains(status, `"revision":"`+revision+`"`) {
				t.Errorf("with the tag at revision %s the pods say %s", revision, status)
			}
		}
		c.must(t, "", c.outrigger, "uninstall", "--revision", "canary", "--yes")
		c.restart(t, "bookstore/bookstore-v1")
		c.noneFailed(t, since, 200)
	})
	t.Run("uninstall", func(t *testing.T) {
		since := time.Now().UTC()
		c.timed(t, "uninstall", func() { t.Log(c.must(t, "", c.outrigger, "uninstall", "--purge", "--yes")) })
		// Proxies that lose their policies would have lost them by now.
		time.Sleep(5 * time.Second)
		c.noneFailed(t, since, 10)
		c.must(t, namespaces, c.kubectl, "delete", "-f", "-", "--wait", "--timeout=120s")
		c.eventually(t, 30*time.Second, "nothing is left", func(context.Context) error {
			left := c.everything(t)
			var differ []string
			for _, name := range slices.Sorted(maps.Keys(left)) {
				if !empty[name] {
					differ = append(differ, "+ "+name)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(empty)) {
				if !left[name] {
					differ = append(differ, "- "+name)
				}
			}
			if len(differ) > 0 {
				return fmt.Errorf("objects before the installation (-) and after its end (+):\n%s", strings.Join(differ, "\n"))
			}
			return nil
		})
	})
}

// timed calls a function and logs its duration.
func (c *cluster) timed(t *testing.T, what string, do func()) {
	t.Helper()
	began := time.Now()
	do()
	t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
}

// runs reports whether all pods of the control plane report the version.
func (c *cluster) runs(ctx context.Context, version string) error {
	out, err := c.output(ctx, "", c.outrigger, "version", "-o", "json")
	if err != nil {
		return err
	}
	var found struct {
		ControlPlane []struct{ Pod, Version string }
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return err
	}
	for _, pod := range found.ControlPlane {
		if pod.Version != version {
			return fmt.Errorf("pod %s is of version %s, want %s", pod.Pod, pod.Version, version)
		}
	}
	return nil
}

// restart replaces the pods of a Deployment, NAMESPACE/NAME.
func (c *cluster) restart(t *testing.T, name string) {
	t.Helper()
	namespace, deployment, _ := strings.Cut(name, "/")
	c.must(t, "", c.kubectl, "rollout", "restart", "-n", namespace, "deployment/"+deployment)
	c.rolledOut(t, name)
	// Later steps must not use old pods that are still ending.
	c.eventually(t, time.Minute, "the old pods are gone", func(ctx context.Context) error {
		out, err := c.output(ctx, "", c.kubectl, "get", "pods", "-n", namespace, "-o", "jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}")
		if err == nil && out != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// noneFailed fails the test if a buyer's request has failed since then, or if there were too
// few.
func (c *cluster) noneFailed(t *testing.T, since time.Time, least int) {
	t.Helper()
	requests := 0
	for pod := range strings.FieldsSeq(c.must(t, "", c.kubectl, "get", "pods", "-n", "bookbuyer", "-o", "name")) {
		tried, err := c.purchases(t.Context(), "bookbuyer", pod, "--since-time="+since.Format(time.RFC3339))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range tried {
			requests++
			if p.Status != 200 {
				t.Errorf("%s got %d %s", pod, p.Status, p.Error)
			}
		}
	}
	t.Logf("%d requests in %s", requests, time.Since(since).Round(time.Second))
	if requests < least {
		t.Errorf("the buyers made only %d requests", requests)
	}
}

// everything returns the objects of the cluster, without those that Kubernetes itself
// creates and deletes all the time.
func (c *cluster) everything(t *testing.T) map[string]bool {
	t.Helper()
	kinds := slices.DeleteFunc(strings.Fields(c.must(t, "", c.kubectl, "api-resources", "--verbs=list", "-o", "name")), func(name string) bool {
		kind, _, _ := strings.Cut(name, ".")
		return slices.Contains([]string{"events", "componentstatuses", "endpoints", "endpointslices", "ipaddresses", "certificatesigningrequests", "nodes", "pods"}, kind)
	})
	out := c.must(t, "", c.kubectl, "get", strings.Join(kinds, ","), "-A", "--no-headers", "-o", "custom-columns=V:.apiVersion,K:.kind,NS:.metadata.namespace,N:.metadata.name")
	all := make(map[string]bool)
	for line := range strings.Lines(out) {
		all[strings.Join(strings.Fields(line), " ")] = true
	}
	return all
}
