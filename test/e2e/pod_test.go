//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testProbes runs pods with every kind of probe, each as all three probes.
func (c *cluster) testProbes(t *testing.T) {
	const namespace = "probes"
	objects := manifest(t, values{Namespace: namespace}, "namespace")
	kinds := map[string]string{
		"http":  `httpGet: {path: /, port: 8080}`,
		"https": `httpGet: {path: /, port: 8443, scheme: HTTPS}`,
		"tcp":   `tcpSocket: {port: 7000}`,
		"grpc":  `grpc: {port: 9000}`,
		"exec":  `exec: {command: [/app, once, -url, "http://127.0.0.1:8080/"]}`,
	}
	for kind, probe := range kinds {
		objects += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {probed: "true"}}
spec:
  containers:
  - name: app
    image: %s
    args: [serve, -begin-after, 2s]
    ports: [{containerPort: 8080}]
    startupProbe: {%[4]s, periodSeconds: 1, failureThreshold: 60}
    readinessProbe: {%[4]s, periodSeconds: 1}
    livenessProbe: {%[4]s, periodSeconds: 1, failureThreshold: 2}
`, kind, namespace, appImage(), probe)
	}
	// The probe's port is wrong, so it must fail: the agent reports the real result.
	objects += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: failing, namespace: %s}
spec:
  containers:
  - name: app
    image: %s
    args: [serve]
    ports: [{containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: 7001}, periodSeconds: 1}
`, namespace, appImage())
	c.apply(t, objects)
	c.waitReady(t, namespace, "probed=true")
	// By then two failed liveness probes would have restarted a container.
	time.Sleep(5 * time.Second)
	for kind := range kinds {
		restarts := c.must(t, "", c.kubectl, "get", "pod", "-n", namespace, kind, "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
		if restarts != "0 true" {
			t.Errorf("restarts and readiness of the pod with probes of kind %s are %q, want 0 true", kind, restarts)
		}
	}
	if ready := c.must(t, "", c.kubectl, "get", "pod", "-n", namespace, "failing", "-o", "jsonpath={.status.containerStatuses[0].ready}"); ready != "false" {
		t.Errorf("a pod whose probe goes to a port that nothing serves is ready: %s", ready)
	}
}

// testTools uses kubectl's tools on a pod with a sidecar.
func (c *cluster) testTools(t *testing.T) {
	const namespace = "tools"
	c.apply(t, manifest(t, values{Namespace: namespace}, "namespace", "service", "server"))
	c.rolledOut(t, namespace+"/web")
	pod := strings.TrimSpace(c.must(t, "", c.kubectl, "get", "pods", "-n", namespace, "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"))

	t.Run("exec", func(t *testing.T) {
		// Without -c kubectl chooses the application's container.
		out := c.must(t, "", c.kubectl, "exec", "-n", namespace, pod, "--", "/app", "once", "-url", "http://web."+namespace+"/")
		if !strings.Contains(out, `"status":200`) {
			t.Errorf("a request from the pod got %s", out)
		}
	})
	t.Run("cp", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, []byte("there and back\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		c.must(t, "", c.kubectl, "cp", "-n", namespace, file, pod+":/tmp/file")
		c.must(t, "", c.kubectl, "cp", "-n", namespace, pod+":/tmp/file", filepath.Join(dir, "back"))
		if text, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || string(text) != "there and back\n" {
			t.Errorf("the file came back as %q: %v", text, err)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, c.kubectl, "port-forward", "-n", namespace, pod, ":8080")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { cancel(); _ = cmd.Wait() }()
		var port int
		if _, err := fmt.Fscanf(out, "Forwarding from 127.0.0.1:%d", &port); err != nil {
			t.Fatal(err)
		}
		client := http.Client{Timeout: 10 * time.Second}
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, _ := io.ReadAll(response.Body); response.StatusCode != 200 || strings.TrimSpace(string(body)) != pod {
			t.Errorf("the forwarded port answered %d %q, want 200 and the pod's name %s", response.StatusCode, body, pod)
		}
	})
	t.Run("debug", func(t *testing.T) {
		// An ephemeral container uses the mesh like the others.
		c.must(t, "", c.kubectl, "debug", "-n", namespace, pod, "--image="+appImage(), "--container=beside", "--", "/app", "once", "-url", "http://web."+namespace+"/")
		c.eventually(t, time.Minute, "an ephemeral container makes a request", func(ctx context.Context) error {
			out, err := c.output(ctx, "", c.kubectl, "logs", "-n", namespace, pod, "-c", "beside")
			if err == nil && !strings.Contains(out, `"status":200`) {
				err = fmt.Errorf("it wrote %q", out)
			}
			return err
		})
		// A copy has the sidecar's containers and volumes, but not its labels.
		c.must(t, "", c.kubectl, "debug", "-n", namespace, pod, "--copy-to=copy", "--container=app", "--image="+appImage(), "--", "/app", "serve")
		c.must(t, "", c.kubectl, "wait", "-n", namespace, "pod/copy", "--for=condition=Ready", "--timeout=120s")
	})
}

// testOrder checks that a sidecar of either form serves the application from its first moment
// to its last, also if the application ends slowly.
func (c *cluster) testOrder(t *testing.T) {
	const namespace = "order"
	c.apply(t, manifest(t, values{Namespace: namespace}, "namespace", "service", "server"))
	c.rolledOut(t, namespace+"/web")
	for _, native := range []string{"true", "false"} {
		t.Run("native="+native, func(t *testing.T) {
			t.Parallel()
			name := "native-" + native
			c.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  annotations: {openservicemesh.io/native-sidecar: "%s", openservicemesh.io/sidecar-pre-stop-seconds: "10"}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 30
  containers:
  - {name: app, image: %s, args: [lifecycle, -url, "http://web.%[2]s/", -end-after, 6s]}
`, name, namespace, native, appImage()))
			c.must(t, "", c.kubectl, "wait", "-n", namespace, "pod/"+name, "--for=condition=Ready", "--timeout=120s")
			c.eventually(t, time.Minute, "the first request is made", func(ctx context.Context) error {
				all, err := c.logs(ctx, namespace, name)
				if err == nil && len(all) == 0 {
					err = fmt.Errorf("it has no output yet")
				}
				return err
			})
			following := exec.CommandContext(t.Context(), c.kubectl, "logs", "-f", "-n", namespace, name, "-c", "app")
			var out strings.Builder
			following.Stdout = &out
			if err := following.Start(); err != nil {
				t.Fatal(err)
			}
			c.must(t, "", c.kubectl, "delete", "pod", "-n", namespace, name, "--timeout=90s")
			if err := following.Wait(); err != nil {
				t.Errorf("following the log: %v", err)
			}
			all, err := lines(out.String())
			if err != nil {
				t.Fatal(err)
			}
			if len(all) != 2 {
				t.Fatalf("the application made %d requests, want one at its start and one at its end: %s", len(all), out.String())
			}
			for i, when := range []string{"first", "last"} {
				if all[i].Status != 200 {
					t.Errorf("the application's %s request got %d %s", when, all[i].Status, all[i].Error)
				}
			}
		})
	}
}

// testCronJob waits for a Job of a CronJob, with a sidecar of either form.
func (c *cluster) testCronJob(t *testing.T) {
	const namespace = "cron"
	c.apply(t, manifest(t, values{Namespace: namespace}, "namespace", "service", "server")+fmt.Sprintf(`
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick, namespace: %s}
spec:
  schedule: "* * * * *"
  jobTemplate:
    spec:
      backoffLimit: 3
      template:
        spec:
          restartPolicy: Never
          containers:
          - {name: app, image: %s, args: [once, -url, "http://web.%[1]s/"]}
`, namespace, appImage()))
	c.rolledOut(t, namespace+"/web")
	c.eventually(t, 2*time.Minute, "a Job of the CronJob is complete", func(ctx context.Context) error {
		text, err := c.output(ctx, "", c.kubectl, "get", "jobs", "-n", namespace, "-o", "json")
		if err != nil {
			return err
		}
		var jobs struct {
			Items []struct {
				Status struct{ Succeeded, Failed int }
			}
		}
		if err := json.Unmarshal([]byte(text), &jobs); err != nil {
			return err
		}
		for _, job := range jobs.Items {
			if job.Status.Succeeded > 0 {
				return nil
			}
		}
		return fmt.Errorf("of %d Jobs none has succeeded", len(jobs.Items))
	})
}
