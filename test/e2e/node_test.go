//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// testFullNode runs 60 pods on one node, and rolls a Deployment of 50 and a StatefulSet of 9 at
// once, under load. The proxies of a node share a user, which may have 128 inotify instances.
func (c *cluster) testFullNode(t *testing.T) {
	c.permissive(t, true)
	const replicas = 50
	class := c.classes(t)[0]
	c.apply(t, manifest(t, values{Namespace: "many", Class: class, Replicas: replicas}, "namespace", "service", "server"))
	c.apply(t, manifest(t, values{Namespace: "stateful", Class: class, Replicas: 9, Kind: "StatefulSet"}, "namespace", "service", "server"))
	began := time.Now()
	c.must(t, "", c.kubectl, "rollout", "status", "-n", "many", "deployment/web", "--timeout=300s")
	c.must(t, "", c.kubectl, "rollout", "status", "-n", "stateful", "statefulset/web", "--timeout=300s")
	t.Logf("59 pods with sidecars of class %s were ready after %s", class, time.Since(began).Round(time.Second))
	many, stateful := c.load(t, "many"), c.load(t, "stateful")
	nodes := strings.Fields(c.must(t, "", c.kubectl, "get", "pods", "-A", "-l", "osm-proxy-uuid", "-o", `jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}`))
	if text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances"); err == nil {
		t.Logf("%d pods with sidecars; one user of this machine may have %s inotify instances", len(nodes), strings.TrimSpace(string(text)))
	}
	if len(nodes) < replicas+11 {
		t.Errorf("%d pods have a sidecar, want at least %d", len(nodes), replicas+11)
	}

	began = time.Now()
	c.must(t, "", c.kubectl, "rollout", "restart", "-n", "many", "deployment/web")
	c.must(t, "", c.kubectl, "rollout", "restart", "-n", "stateful", "statefulset/web")
	c.must(t, "", c.kubectl, "rollout", "status", "-n", "many", "deployment/web", "--timeout=400s")
	c.must(t, "", c.kubectl, "rollout", "status", "-n", "stateful", "statefulset/web", "--timeout=400s")
	t.Logf("50 pods of a Deployment and 9 of a StatefulSet, one by one, were replaced in %s", time.Since(began).Round(time.Second))
	// The last old pods end a few seconds later.
	time.Sleep(8 * time.Second)
	t.Logf("%d and %d requests meanwhile", many(100), stateful(100))
	for _, pod := range strings.Split(strings.TrimSpace(c.must(t, "", c.kubectl, "get", "pods", "-n", "many", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.initContainerStatuses[*].restartCount}{"\n"}{end}`)), "\n") {
		for _, count := range strings.Fields(pod)[1:] {
			if n, err := strconv.Atoi(count); err == nil && n > 0 {
				t.Errorf("a container of pod %s was started %s more times", strings.Fields(pod)[0], count)
			}
		}
	}
}

// testKilled kills the proxy, then the agent, of a client and of a server, and the controller,
// like a kernel without memory. Each must recover by itself.
func (c *cluster) testKilled(t *testing.T) {
	c.needsNode(t)
	c.permissive(t, true)
	for _, class := range c.classes(t) {
		t.Run(class, func(t *testing.T) {
			namespace := "killed-" + class
			c.apply(t, manifest(t, values{Namespace: namespace, Class: class}, "namespace", "service", "server"))
			c.rolledOut(t, namespace+"/web")
			pod := strings.TrimSpace(c.must(t, "", c.kubectl, "get", "pods", "-n", namespace, "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"))
			status := func(what string) string {
				return strings.TrimSpace(c.must(t, "", c.kubectl, "get", "pod", "-n", namespace, pod, "-o",
					`jsonpath={.status.initContainerStatuses[?(@.name=="outrigger-proxy")].`+what+`}`))
			}
			answers := func(ctx context.Context) error {
				out, err := c.output(ctx, "", c.kubectl, "exec", "-n", namespace, pod, "--", "/app", "once", "-url", "http://web."+namespace+"/")
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			}
			for _, program := range []string{class, "agent"} {
				_, id, _ := strings.Cut(status("containerID"), "://")
				c.node(t, "kill", id, processOf(program))
				c.eventually(t, time.Minute, "requests are answered after "+program+" was killed", answers)
			}
			if restarts := status("restartCount"); restarts == "0" {
				t.Error("the sidecar's container was not started again, though its first process was killed")
			}
		})
	}
	t.Run("controller", func(t *testing.T) {
		pod := "jsonpath={.items[0].metadata.name} {.items[0].status.containerStatuses[0].containerID}"
		name, id, _ := strings.Cut(strings.TrimSpace(c.must(t, "", c.kubectl, "get", "pods", "-n", "osm-system", "-l", "app=outrigger-controller", "-o", pod)), " ")
		_, id, _ = strings.Cut(id, "://")
		c.node(t, "kill", id, "outrigger")
		c.eventually(t, time.Minute, "the controller has started again", func(ctx context.Context) error {
			text, err := c.output(ctx, "", c.kubectl, "get", "pod", "-n", "osm-system", name, "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
			if err == nil && (strings.HasPrefix(text, "0 ") || !strings.HasSuffix(text, " true")) {
				err = fmt.Errorf("restarts and readiness: %s", text)
			}
			return err
		})
	})
}

// processOf returns the kernel's name of a program of the sidecar.
func processOf(program string) string {
	if program == "agent" {
		return "outrigger-agent"[:15]
	}
	return program
}

// testAway stops parts of Kubernetes and of the control plane under load.
func (c *cluster) testAway(t *testing.T) {
	c.permissive(t, true)
	var requests []func(int) int
	for _, class := range c.classes(t) {
		namespace := "away-" + class
		c.apply(t, manifest(t, values{Namespace: namespace, Class: class, Replicas: 2}, "namespace", "service", "server"))
		c.rolledOut(t, namespace+"/web")
		requests = append(requests, c.load(t, namespace))
	}
	first := "away-" + c.classes(t)[0]
	made := func(t *testing.T) {
		t.Helper()
		for _, r := range requests {
			r(r(1) + 100)
		}
	}

	t.Run("control plane", func(t *testing.T) {
		for _, name := range []string{"controller", "injector"} {
			c.must(t, "", c.kubectl, "scale", "-n", "osm-system", "deployment/outrigger-"+name, "--replicas=0")
			c.must(t, "", c.kubectl, "wait", "-n", "osm-system", "pod", "-l", "app=outrigger-"+name, "--for=delete", "--timeout=60s")
		}
		began := time.Now()
		// Without an injector a pod of the mesh must not start without a sidecar.
		if out, err := c.output(t.Context(), "", c.kubectl, "run", "-n", first, "naked", "--image="+appImage(), "--", "serve"); err == nil {
			t.Errorf("a pod was created while the injector was away: %s", out)
		}
		made(t)
		time.Sleep(c.long(15*time.Second, time.Minute) - time.Since(began))
		for _, name := range []string{"controller", "injector"} {
			c.must(t, "", c.kubectl, "scale", "-n", "osm-system", "deployment/outrigger-"+name, "--replicas=1")
		}
		for _, name := range []string{"controller", "injector"} {
			c.rolledOut(t, "osm-system/outrigger-"+name)
		}
		// Changes during the outage and new ones must be served.
		c.must(t, "", c.kubectl, "rollout", "restart", "-n", first, "deployment/web")
		c.rolledOut(t, first+"/web")
	})
	t.Run("replicas", func(t *testing.T) {
		for _, name := range []string{"controller", "injector"} {
			c.must(t, "", c.kubectl, "scale", "-n", "osm-system", "deployment/outrigger-"+name, "--replicas=2")
			c.rolledOut(t, "osm-system/outrigger-"+name)
		}
		holder := func() string {
			return strings.TrimSpace(c.must(t, "", c.kubectl, "get", "lease", "-n", "osm-system", "outrigger-controller", "-o", "jsonpath={.spec.holderIdentity}"))
		}
		leader := holder()
		pod, _, _ := strings.Cut(leader, "_")
		// The leader stops; the other one continues to serve, and writes once it has the lease.
		c.must(t, "", c.kubectl, "delete", "pod", "-n", "osm-system", pod, "--wait=false")
		injector := strings.TrimSpace(c.must(t, "", c.kubectl, "get", "pods", "-n", "osm-system", "-l", "app=outrigger-injector", "-o", "jsonpath={.items[0].metadata.name}"))
		c.must(t, "", c.kubectl, "delete", "pod", "-n", "osm-system", injector, "--wait=false")
		c.must(t, "", c.kubectl, "rollout", "restart", "-n", first, "deployment/web")
		c.rolledOut(t, first+"/web")
		c.eventually(t, time.Minute, "another controller writes", func(context.Context) error {
			if now := holder(); now == leader || now == "" {
				return fmt.Errorf("the lease is still held by %q", now)
			}
			return nil
		})
		for _, name := range []string{"controller", "injector"} {
			c.must(t, "", c.kubectl, "scale", "-n", "osm-system", "deployment/outrigger-"+name, "--replicas=1")
			c.rolledOut(t, "osm-system/outrigger-"+name)
		}
		made(t)
	})
	t.Run("kubelet and containerd", func(t *testing.T) {
		for _, program := range []string{"kubelet", "containerd"} {
			c.node(t, "restart", program)
			made(t)
		}
		c.eventually(t, time.Minute, "the node is ready", func(ctx context.Context) error {
			_, err := c.output(ctx, "", c.kubectl, "wait", "node", "--all", "--for=condition=Ready", "--timeout=10s")
			return err
		})
	})
	t.Run("API server", func(t *testing.T) {
		c.node(t, "stop", "kube-apiserver")
		time.Sleep(c.long(30*time.Second, 3*time.Minute))
		c.node(t, "start", "kube-apiserver")
		c.eventually(t, 2*time.Minute, "the API server answers", func(ctx context.Context) error {
			_, err := c.output(ctx, "", c.kubectl, "get", "--raw", "/readyz")
			return err
		})
		made(t)
		c.must(t, "", c.kubectl, "rollout", "restart", "-n", first, "deployment/web")
		c.rolledOut(t, first+"/web")
		made(t)
	})
}

// testSilentNode suspends the kubelet until Kubernetes counts all pods as not ready,
// because their node does not report. They still serve, and no request fails.
func (c *cluster) testSilentNode(t *testing.T) {
	c.needsNode(t)
	c.permissive(t, true)
	var requests []func(int) int
	for _, class := range c.classes(t) {
		namespace := "silent-" + class
		c.apply(t, manifest(t, values{Namespace: namespace, Class: class, Replicas: 2}, "namespace", "service", "server"))
		c.rolledOut(t, namespace+"/web")
		// The cluster's DNS counts as not ready either.
		address := c.must(t, "", c.kubectl, "get", "service", "-n", namespace, "web", "-o", "jsonpath={.spec.clusterIP}")
		requests = append(requests, c.loadFrom(t, namespace, "http://"+address+"/"))
	}
	made := func() {
		t.Helper()
		for _, r := range requests {
			r(r(1) + 100)
		}
	}
	made()
	began := time.Now()
	c.node(t, "pause", "kubelet")
	resume := sync.OnceFunc(func() { c.node(t, "resume", "kubelet") })
	t.Cleanup(resume)
	c.eventually(t, 3*time.Minute, "all pods count as not ready", func(ctx context.Context) error {
		ready, err := c.output(ctx, "", c.kubectl, "get", "pods", "-A", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && strings.Contains(ready, "True") {
			err = errors.New("some are ready")
		}
		return err
	})
	t.Logf("all pods count as not ready %s after the kubelet was suspended", time.Since(began).Round(time.Second))
	// How many requests are made now is in the log, which is read through the kubelet.
	time.Sleep(15 * time.Second)
	resume()
	c.eventually(t, 2*time.Minute, "the pods are ready", func(ctx context.Context) error {
		_, err := c.output(ctx, "", c.kubectl, "wait", "pods", "-n", "silent-"+c.classes(t)[0], "--all", "--for=condition=Ready", "--timeout=10s")
		return err
	})
	made()
}

// long returns the full duration, or the short one if E2E_SHORT is set.
func (c *cluster) long(short, long time.Duration) time.Duration {
	if os.Getenv("E2E_SHORT") != "" {
		return short
	}
	return long
}
