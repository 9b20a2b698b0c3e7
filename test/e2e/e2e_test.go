//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMesh installs the mesh on an empty cluster, runs the bookstore with each sidecar
// class, and uninstalls everything. The steps build on each other.
func TestMesh(t *testing.T) {
	c := newCluster(t)
	t.Run("install", c.testInstall)
	t.Run("operate", c.testOperate)
	t.Run("cni", c.testCNI)
	classes := c.classes(t)
	for _, class := range classes {
		if len(classes) > 1 && os.Getenv("E2E_SHORT") != "" {
			break // All of them are in the mixed one.
		}
		t.Run("bookstore/"+class, func(t *testing.T) { c.testBookstore(t, []string{class}) })
	}
	if len(classes) > 1 {
		t.Run("bookstore/mixed", func(t *testing.T) { c.testBookstore(t, classes) })
	}
	t.Run("gateway", c.testGateway)
	t.Run("pods", func(t *testing.T) {
		c.permissive(t, true)
		// These mostly wait.
		for name, test := range map[string]func(*testing.T){"probes": c.testProbes, "tools": c.testTools, "order": c.testOrder, "cronjob": c.testCronJob} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("kubelet", c.testKubelet)
	t.Run("upgrade", c.testUpgrade)
	t.Run("full node", c.testFullNode)
	t.Run("killed", c.testKilled)
	t.Run("silent node", c.testSilentNode)
	t.Run("away", c.testAway)
	t.Run("soak", c.testSoak)
	// Last, since it uninstalls the mesh.
	t.Run("lifecycle", c.testLifecycle)
	// These need a cluster without the mesh.
	t.Run("quick start", c.testQuickStart)
	t.Run("migration", c.testMigration)
}

// cluster is the cluster of KUBECONFIG, used with kubectl and outrigger.
type cluster struct {
	root, outrigger, kubectl string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Fatal("KUBECONFIG names no cluster; run 'make e2e', which starts one, or name one that may be changed")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{root: root, outrigger: filepath.Join(root, "bin", "outrigger"), kubectl: os.Getenv("KUBECTL")}
	if c.kubectl == "" {
		c.kubectl = "kubectl"
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range []string{"get pods -A -o wide", "get events -A --field-selector type=Warning", "logs -n osm-system -l app=outrigger-controller --tail=50", "logs -n osm-system -l app=outrigger-injector --tail=50"} {
				out, _ := exec.Command(c.kubectl, strings.Fields(args)...).CombinedOutput()
				t.Logf("kubectl %s:\n%s", args, out)
			}
		}
	})
	return c
}

// classes are the sidecar classes whose images the cluster has, from E2E_CLASSES.
func (c *cluster) classes(t *testing.T) []string {
	t.Helper()
	classes := strings.Split(os.Getenv("E2E_CLASSES"), ",")
	if classes[0] == "" {
		classes = []string{"envoy"}
	}
	return classes
}

// output runs a program and returns its standard output.
func (c *cluster) output(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// must is like output, but fails the test if the program fails.
func (c *cluster) must(t *testing.T, stdin, program string, args ...string) string {
	t.Helper()
	out, err := c.output(t.Context(), stdin, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// testInstall installs the mesh like the README, and checks the running version.
func (c *cluster) testInstall(t *testing.T) {
	began := time.Now()
	c.must(t, "", c.outrigger, "install", "--set", "osm.enablePermissiveTrafficPolicy=false", "--set", "osm.enableDebugServer=true")
	t.Logf("installed and ready after %s", time.Since(began).Round(100*time.Millisecond))

	var found struct{ Client, ControlPlane any }
	if err := json.Unmarshal([]byte(c.must(t, "", c.outrigger, "version", "-o", "json")), &found); err != nil {
		t.Fatal(err)
	}
	if pods, _ := found.ControlPlane.([]any); len(pods) < 2 {
		t.Errorf("'outrigger version' lists the control plane's pods %v, want those of controller and injector", found.ControlPlane)
	}
}

// upgrade changes values of the chart.
func (c *cluster) upgrade(t *testing.T, flags ...string) {
	t.Helper()
	c.must(t, "", c.outrigger, append([]string{"upgrade"}, flags...)...)
}

// testBookstore runs the sample with sidecars of the classes, a different one in each
// namespace: the buyer buys, the thief is denied, and a policy that kubectl applies and
// deletes changes that. Then everything is replaced under the buyer's load, and Jobs end.
func (c *cluster) testBookstore(t *testing.T, classes []string) {
	c.startBookstore(t, classes)
	c.eventually(t, time.Minute, "the thief is denied", func(ctx context.Context) error { return c.gets(ctx, "bookthief", denied) })

	began := time.Now()
	c.must(t, thiefMayBuy, c.kubectl, "apply", "-f", "-")
	c.eventually(t, 30*time.Second, "the thief buys once it may", func(ctx context.Context) error { return c.gets(ctx, "bookthief", 200) })
	t.Logf("three purchases of the thief %s after its TrafficTarget was applied", time.Since(began).Round(100*time.Millisecond))
	began = time.Now()
	c.must(t, thiefMayBuy, c.kubectl, "delete", "-f", "-")
	c.eventually(t, 30*time.Second, "the thief is denied again", func(ctx context.Context) error { return c.gets(ctx, "bookthief", denied) })
	t.Logf("three refusals %s after its deletion", time.Since(began).Round(100*time.Millisecond))

	t.Run("observe", c.testObserve)
	t.Run("rollout", c.testRollout)
	t.Run("jobs", c.testJobs)
}

// testObserve asks the mesh what has happened: the buyer's calls with mTLS, and those of the
// thief. No rule lets it call the stores, and the chart allows egress, so its sidecar sends them
// as those to a destination outside of the mesh, in plaintext, which the servers refuse.
func (c *cluster) testObserve(t *testing.T) {
	c.expectLine(t, []string{"edges", "-A"}, "bookbuyer/bookbuyer", "bookstore/bookstore-v1", "100%")
	c.expectLine(t, []string{"edges", "-A"}, "(outside)", "bookstore/bookstore-v1", "(plaintext)")
	c.expectLine(t, []string{"stat", "deploy", "-n", "bookstore", "--window", "5s"}, "bookstore-v1", "3/3", "100%")
	c.expectLine(t, []string{"tap", "-n", "bookstore", "--since", "10m", "--follow=false", "--from", "bookbuyer/bookbuyer"}, "bookstore/bookstore-", "<- bookbuyer/bookbuyer GET", "200")
	c.expectLine(t, []string{"tap", "deploy/bookstore-v1", "-n", "bookstore", "--since", "10m", "--follow=false", "--refused"}, "bookstore/bookstore-v1-", "<- ", "refused: plaintext")
	// It ends with an error, because connections have failed.
	out, _ := c.output(t.Context(), "", c.outrigger, "why", "deploy/bookstore-v1", "-n", "bookstore")
	if !strings.Contains(out, "has refused it: the caller used no TLS of the mesh at a port that requires it.") {
		t.Errorf("'outrigger why' says of the store:\n%s", out)
	}
}

// expectLine waits until a command of outrigger prints a line with all the texts.
func (c *cluster) expectLine(t *testing.T, args []string, texts ...string) {
	t.Helper()
	c.eventually(t, time.Minute, strings.Join(args, " "), func(ctx context.Context) error {
		out, err := c.output(ctx, "", c.outrigger, args...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				t.Logf("outrigger %s: %s", strings.Join(args, " "), strings.TrimSpace(line))
				return nil
			}
		}
		return fmt.Errorf("no line with %q in\n%s", texts, out)
	})
}

// startBookstore starts the sample with sidecars of the classes, a different one in each
// namespace, and waits until the buyer buys. The end of the test removes the sample.
func (c *cluster) startBookstore(t *testing.T, classes []string) {
	t.Helper()
	c.must(t, namespaces, c.kubectl, "apply", "-f", "-")
	t.Cleanup(func() {
		// The test's context has ended.
		_, err := c.output(context.Background(), namespaces, c.kubectl, "delete", "-f", "-", "--ignore-not-found", "--wait", "--timeout=120s")
		if err != nil {
			t.Error(err)
		}
	})
	of := make(map[string]string)
	for i, namespace := range []string{"bookbuyer", "bookstore", "bookwarehouse", "bookthief"} {
		of[namespace] = classes[i%len(classes)]
		c.must(t, "", c.kubectl, "annotate", "namespace", namespace, "openservicemesh.io/sidecar-class="+of[namespace])
	}
	manifests := []string{"apply", "--server-side"}
	for _, file := range []string{"bookstore", "bookwarehouse", "clients", "policies"} {
		manifests = append(manifests, "-f", filepath.Join(c.root, "samples", "bookstore-smi", file+".yaml"))
	}
	began := time.Now()
	c.must(t, "", c.kubectl, manifests...)
	for _, name := range []string{"bookstore/bookstore-v1", "bookstore/bookstore-v2", "bookwarehouse/bookwarehouse", "bookbuyer/bookbuyer", "bookthief/bookthief"} {
		c.rolledOut(t, name)
	}
	t.Logf("all pods are ready after %s", time.Since(began).Round(100*time.Millisecond))
	for namespace, class := range of {
		image := c.must(t, "", c.kubectl, "get", "pods", "-n", namespace, "-o", `jsonpath={.items[0].spec.initContainers[?(@.name=="outrigger-proxy")].image}`)
		if !strings.Contains(image, "/"+class+":") {
			t.Fatalf("a sidecar of namespace %s is %q, want one of class %s", namespace, image, class)
		}
	}
	c.eventually(t, time.Minute, "the buyer buys", func(ctx context.Context) error { return c.gets(ctx, "bookbuyer", 200) })
}

// rolledOut waits until the rollout of a Deployment, NAMESPACE/NAME, is complete.
func (c *cluster) rolledOut(t *testing.T, name string) {
	t.Helper()
	namespace, deployment, _ := strings.Cut(name, "/")
	c.must(t, "", c.kubectl, "rollout", "status", "-n", namespace, "deployment/"+deployment, "--timeout=180s")
}

// testRollout replaces the stores, the warehouse and the control plane, one after the
// other, while the buyer buys five books a second.
func (c *cluster) testRollout(t *testing.T) {
	since := time.Now().UTC()
	for _, name := range []string{"bookstore/bookstore-v1", "bookstore/bookstore-v2", "bookwarehouse/bookwarehouse", "osm-system/outrigger-controller", "osm-system/outrigger-injector"} {
		c.restart(t, name)
	}
	c.noneFailed(t, since, 20)
}

// testJobs runs a Job that succeeds and one that fails, each with a sidecar.
func (c *cluster) testJobs(t *testing.T) {
	c.must(t, jobs, c.kubectl, "apply", "-f", "-")
	for _, want := range []struct{ job, condition string }{{"succeeds", "complete"}, {"fails", "failed"}} {
		c.must(t, "", c.kubectl, "wait", "-n", "bookbuyer", "job/"+want.job, "--for=condition="+want.condition, "--timeout=90s")
		containers := c.must(t, "", c.kubectl, "get", "pods", "-n", "bookbuyer", "-l", "job-name="+want.job, "-o", "jsonpath={.items[0].spec.initContainers[*].name}")
		if !strings.Contains(containers, "outrigger-proxy") {
			t.Errorf("the pod of Job %s has no sidecar, but %s", want.job, containers)
		}
	}
}

// purchase is a client's log line about a request to the bookstore.
type purchase struct {
	Status int
	Error  string
}

// purchases parses the log of a client.
func (c *cluster) purchases(ctx context.Context, namespace, of string, which ...string) ([]purchase, error) {
	text, err := c.output(ctx, "", c.kubectl, append([]string{"logs", "-n", namespace, of, "-c", namespace}, which...)...)
	if err != nil {
		return nil, err
	}
	var all []purchase
	for line := range strings.Lines(text) {
		var p purchase
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			return nil, fmt.Errorf("%s wrote %q: %w", of, line, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// denied is the status of a client without access: its connection is closed, or an existing
// one gets a refusal.
const denied = 0

// gets reports whether a client's last three answers had a status.
func (c *cluster) gets(ctx context.Context, who string, status int) error {
	last, err := c.purchases(ctx, who, "deployment/"+who, "--tail=3")
	if err != nil {
		return err
	}
	for _, p := range last {
		refused := p.Status == 0 || p.Status == 403 || p.Status == 503
		if p.Status != status && (status != denied || !refused) {
			return fmt.Errorf("%s got %d %s, want %d", who, p.Status, p.Error, status)
		}
	}
	if len(last) < 3 {
		return fmt.Errorf("%s has made %d requests", who, len(last))
	}
	return nil
}

// eventually retries until try succeeds, or fails the test when the time is over.
func (c *cluster) eventually(t *testing.T, within time.Duration, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, within, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
