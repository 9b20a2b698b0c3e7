//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// restrictedNamespaces are the bookstore's namespaces, with Pod Security's strictest level.
var restrictedNamespaces = strings.ReplaceAll(namespaces, "openservicemesh.io/monitored-by: osm", "openservicemesh.io/monitored-by: osm, pod-security.kubernetes.io/enforce: restricted")

// restrictedContainer is the security context of a container for that level.
const restrictedContainer = `
        securityContext:
          runAsNonRoot: true
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
          seccompProfile: {type: RuntimeDefault}
`

// bookstoreImage is the image in the sample's manifests.
const bookstoreImage = "        image: outriggermesh/bookstore:0.2.0\n"

// plainPod is a pod outside the mesh.
const plainPod = `
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: default}
spec:
  containers: [{name: plain, image: "docker.io/outriggermesh/bookstore:0.2.0", args: [bookwarehouse]}]
`

// testCNI redirects traffic on the node: the bookstore runs in namespaces that enforce
// restricted, also if its pods start before the plug-in is installed, while the DaemonSet is
// replaced, and without the DaemonSet. Afterwards the node must be unchanged.
func (c *cluster) testCNI(t *testing.T) {
	confDir, binDir := os.Getenv("E2E_CNI_CONF"), os.Getenv("E2E_CNI_BIN")
	if confDir == "" || binDir == "" {
		t.Skip("SKIPPED: E2E_CNI_CONF and E2E_CNI_BIN do not name the CNI folders of a node that is this machine")
	}
	before := files(t, confDir)
	background := context.Background()
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range []string{"logs -n osm-system -l app=outrigger-cni --tail=50 --prefix", "get pods -n bookbuyer -o yaml"} {
				out, _ := c.output(background, "", c.kubectl, strings.Fields(args)...)
				t.Logf("kubectl %s:\n%s", args, out)
			}
		}
		_, err := c.output(background, plainPod+"---"+badPod+"---"+restrictedNamespaces, c.kubectl, "delete", "--ignore-not-found", "-f", "-", "--wait", "--timeout=120s")
		if err != nil {
			t.Error(err)
		}
	})
	values := []string{"--set", "cni.enabled=true", "--set", "cni.confDir=" + confDir, "--set", "cni.binDir=" + binDir}
	chart := append([]string{"--set", `cni.nodeSelector.kubernetes\.io/arch=` + runtime.GOARCH}, values...)
	nowhere := append([]string{"--set", `cni.nodeSelector.kubernetes\.io/arch=nowhere`}, values...)

	defer func() {
		if t.Failed() {
			c.upgrade(t, "--set", "cni.enabled=false")
		}
	}()
	began := time.Now()
	step := func(what string) { t.Logf("after %4.1f s: %s", time.Since(began).Seconds(), what) }
	c.must(t, restrictedNamespaces, c.kubectl, "apply", "-f", "-")
	step("a namespace with Pod Security restricted refuses a sidecar without the plug-in")
	if out, err := c.output(t.Context(), restrictedPod, c.kubectl, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Fatalf("the pod is accepted: %s, %v", out, err)
	}

	step("pods that start before the plug-in wait, and are repaired")
	c.upgrade(t, nowhere...)
	c.eventually(t, time.Minute, "the injector uses the plug-in", func(ctx context.Context) error {
		_, err := c.output(ctx, restrictedPod, c.kubectl, "apply", "--dry-run=server", "-f", "-")
		return err
	})
	for _, file := range []string{"bookstore", "bookwarehouse", "clients", "policies"} {
		text, err := os.ReadFile(filepath.Join(c.root, "samples", "bookstore-smi", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		restricted := strings.ReplaceAll(string(text), bookstoreImage, strings.TrimSuffix(bookstoreImage, "\n")+restrictedContainer)
		c.must(t, restricted, c.kubectl, "apply", "--server-side", "-f", "-")
	}
	waiting := `jsonpath={range .items[*]}{.status.initContainerStatuses[?(@.name=="outrigger-init")].state.running.startedAt} {.status.containerStatuses[*].state.running.startedAt};{end}`
	c.eventually(t, time.Minute, "the buyers wait for the plug-in", func(ctx context.Context) error {
		out, err := c.output(ctx, "", c.kubectl, "get", "pods", "-n", "bookbuyer", "-o", waiting)
		if err != nil {
			return err
		}
		for pod := range strings.SplitSeq(strings.TrimSuffix(out, ";"), ";") {
			if len(strings.Fields(pod)) != 1 {
				return fmt.Errorf("a pod is at %q, want a waiting init container and no other", pod)
			}
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	if out := c.must(t, "", c.kubectl, "get", "pods", "-n", "bookbuyer", "-o", "jsonpath={.items[*].status.containerStatuses[*].started}"); strings.Contains(out, "true") {
		t.Fatalf("a buyer has started without redirection: %s", out)
	}
	installed := time.Now()
	c.upgrade(t, chart...)
	c.daemonSetReady(t)
	t.Logf("the plug-in is installed within %s", time.Since(installed).Round(100*time.Millisecond))
	deployments := []string{"bookstore/bookstore-v1", "bookstore/bookstore-v2", "bookwarehouse/bookwarehouse", "bookbuyer/bookbuyer", "bookthief/bookthief"}
	for _, name := range deployments {
		c.rolledOut(t, name)
	}
	t.Logf("all pods are ready within %s", time.Since(installed).Round(100*time.Millisecond))
	if log := c.must(t, "", c.kubectl, "logs", "-n", "osm-system", "-l", "app=outrigger-cni", "--tail=-1"); strings.Count(log, "repaired a pod") < len(deployments) {
		t.Errorf("the DaemonSet repaired fewer pods than waited:\n%s", log)
	}
	c.eventually(t, time.Minute, "the buyer buys", func(ctx context.Context) error { return c.gets(ctx, "bookbuyer", 200) })
	c.eventually(t, time.Minute, "the thief is denied", func(ctx context.Context) error { return c.gets(ctx, "bookthief", denied) })
	if changed := files(t, confDir); equal(changed, before) {
		t.Error("the node's configuration is unchanged")
	}

	// replace replaces the calling pods, one with and one without access.
	replace := func() {
		for _, name := range deployments[3:] {
			namespace, deployment, _ := strings.Cut(name, "/")
			c.must(t, "", c.kubectl, "rollout", "restart", "-n", namespace, "deployment/"+deployment)
		}
		for _, name := range deployments[3:] {
			c.rolledOut(t, name)
		}
		c.eventually(t, time.Minute, "the new buyer buys", func(ctx context.Context) error { return c.gets(ctx, "bookbuyer", 200) })
		c.eventually(t, time.Minute, "the new thief is denied", func(ctx context.Context) error { return c.gets(ctx, "bookthief", denied) })
	}
	step("pods start while the DaemonSet is replaced")
	c.must(t, "", c.kubectl, "rollout", "restart", "-n", "osm-system", "daemonset/outrigger-cni")
	replace()
	c.daemonSetReady(t)

	step("pods start while the DaemonSet is away, and one that asks for what is unknown does not")
	c.runOn(t, "nowhere")
	c.eventually(t, time.Minute, "the DaemonSet has no pod", func(ctx context.Context) error {
		out, err := c.output(ctx, "", c.kubectl, "get", "pods", "-n", "osm-system", "-l", "app=outrigger-cni", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
	c.must(t, plainPod+"---"+badPod, c.kubectl, "apply", "-f", "-")
	replace()
	c.must(t, "", c.kubectl, "wait", "-n", "default", "pod/plain", "--for=condition=Ready", "--timeout=60s")
	c.eventually(t, time.Minute, "an event reports the bad annotation", func(ctx context.Context) error {
		out, err := c.output(ctx, "", c.kubectl, "get", "events", "-n", "default", "--field-selector", "involvedObject.name=bad", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "only the injector may set it") {
			err = fmt.Errorf("the events are: %s", out)
		}
		return err
	})
	c.runOn(t, runtime.GOARCH)
	c.daemonSetReady(t)
	// The pods take a while to end.
	c.must(t, restrictedNamespaces, c.kubectl, "delete", "-f", "-", "--wait=false")

	step("the node is as it was once the plug-in is uninstalled")
	c.upgrade(t, "--set", "cni.enabled=false")
	c.eventually(t, time.Minute, "the node is restored", func(context.Context) error {
		if now := files(t, confDir); !equal(now, before) {
			return fmt.Errorf("its configuration is %v, want %v", now, before)
		}
		if _, err := os.Stat(filepath.Join(binDir, "outrigger-cni")); !os.IsNotExist(err) {
			return fmt.Errorf("the program still exists: %v", err)
		}
		return nil
	})
}

// restrictedPod is accepted by a namespace with Pod Security restricted, if its sidecar is.
const restrictedPod = `
apiVersion: v1
kind: Pod
metadata: {name: fits, namespace: bookbuyer}
spec:
  containers:
      - name: app
        image: docker.io/outriggermesh/bookstore:0.2.0
        args: [-help]` + restrictedContainer

// badPod has an annotation that the plug-in refuses.
const badPod = `
apiVersion: v1
kind: Pod
metadata: {name: bad, namespace: default, annotations: {openservicemesh.io/redirection: '{"all": true}'}}
spec:
  containers: [{name: bad, image: "docker.io/outriggermesh/bookstore:0.2.0", args: [bookwarehouse]}]
`

// runOn restricts the plug-in's DaemonSet to nodes of that architecture.
func (c *cluster) runOn(t *testing.T, arch string) {
	t.Helper()
	c.must(t, "", c.kubectl, "patch", "-n", "osm-system", "daemonset/outrigger-cni", "--type=merge",
		"-p", `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/arch":"`+arch+`"}}}}}`)
}

// daemonSetReady waits for the pods of the plug-in's DaemonSet.
func (c *cluster) daemonSetReady(t *testing.T) {
	t.Helper()
	c.must(t, "", c.kubectl, "rollout", "status", "-n", "osm-system", "daemonset/outrigger-cni", "--timeout=60s")
}

// files returns the contents of a folder's files.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name, text := range a {
		if other, ok := b[name]; !ok || other != text {
			return false
		}
	}
	return true
}
