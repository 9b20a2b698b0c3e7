//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/template"
	"time"
)

// appImage is the image of test/e2e/app.
func appImage() string {
	if image := os.Getenv("E2E_APP"); image != "" {
		return image
	}
	return "docker.io/outriggermesh/e2e-app:0.2.0"
}

// manifests are templates of the tests' objects. Namespaces of the mesh have the label and
// annotation that 'outrigger namespace add' sets.
var manifests = template.Must(template.New("").Funcs(template.FuncMap{"image": appImage}).Parse(`
{{define "namespace"}}
apiVersion: v1
kind: Namespace
metadata:
  name: {{.Namespace}}
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled{{with .Class}}, openservicemesh.io/sidecar-class: {{.}}{{end}}}
{{end}}
{{define "service"}}
apiVersion: v1
kind: Service
metadata: {name: web, namespace: {{.Namespace}}}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
{{end}}
{{define "server"}}
apiVersion: apps/v1
kind: {{or .Kind "Deployment"}}
metadata: {name: web, namespace: {{.Namespace}}}
spec:
  replicas: {{or .Replicas 1}}
  {{if eq .Kind "StatefulSet"}}serviceName: web{{else}}strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 0}}{{end}}
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {openservicemesh.io/sidecar-resource-requests-cpu: 1m, openservicemesh.io/sidecar-resource-requests-memory: 1Mi}
    spec:
      terminationGracePeriodSeconds: 30
      containers:
      - name: app
        image: {{image}}
        args: [serve]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 2}
{{end}}
{{define "load"}}
apiVersion: v1
kind: Pod
metadata: {name: load, namespace: {{.Namespace}}, labels: {app: load}}
spec:
  restartPolicy: Never
  dnsConfig: {options: [{name: ndots, value: "1"}]}
  containers:
  - {name: app, image: {{image}}, args: [load, -url, "{{.URL}}"]}
{{end}}
`))

// values are the data of a manifest's template.
type values struct {
	Namespace, Class, Kind, URL string
	Replicas                    int
}

// manifest returns one of the manifests above.
func manifest(t *testing.T, v values, names ...string) string {
	t.Helper()
	var all bytes.Buffer
	for _, name := range names {
		all.WriteString("---")
		if err := manifests.ExecuteTemplate(&all, name, v); err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// apply creates objects, and deletes them when the test ends.
func (c *cluster) apply(t *testing.T, objects string) {
	t.Helper()
	c.must(t, objects, c.kubectl, "apply", "-f", "-")
	t.Cleanup(func() {
		if os.Getenv("KEEP") != "" && t.Failed() {
			return
		}
		// The test's context has ended.
		if _, err := c.output(context.Background(), objects, c.kubectl, "delete", "-f", "-", "--ignore-not-found", "--wait", "--timeout=180s"); err != nil {
			t.Error(err)
		}
	})
}

// wait waits until the pods of a namespace that match a selector are ready.
func (c *cluster) waitReady(t *testing.T, namespace, selector string) {
	t.Helper()
	c.must(t, "", c.kubectl, "wait", "-n", namespace, "pod", "-l", selector, "--for=condition=Ready", "--timeout=180s")
}

// outputLine is a line of output of test/e2e/app.
type outputLine struct {
	Time               time.Time
	Status             int
	Error              string
	Requests, Failures int
}

// logs returns the output of a container of test/e2e/app so far.
func (c *cluster) logs(ctx context.Context, namespace, pod string) ([]outputLine, error) {
	text, err := c.output(ctx, "", c.kubectl, "logs", "-n", namespace, pod, "-c", "app")
	if err != nil {
		return nil, err
	}
	return lines(text)
}

func lines(text string) ([]outputLine, error) {
	var all []outputLine
	for line := range strings.Lines(text) {
		var l outputLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return nil, fmt.Errorf("the test's program wrote %q: %w", line, err)
		}
		all = append(all, l)
	}
	return all, nil
}

// load starts a pod that sends requests to the namespace's service web until the test ends,
// and fails the test if one of them fails. The returned function waits until at least that
// many requests were made, and returns their number.
func (c *cluster) load(t *testing.T, namespace string) (requests func(atLeast int) int) {
	t.Helper()
	// The full name needs only one query to the cluster's DNS, which is not part of the test.
	return c.loadFrom(t, namespace, "http://web."+namespace+".svc.cluster.local/")
}

// loadFrom is load for a URL.
func (c *cluster) loadFrom(t *testing.T, namespace, url string) (requests func(atLeast int) int) {
	t.Helper()
	c.apply(t, manifest(t, values{Namespace: namespace, URL: url}, "load"))
	c.waitReady(t, namespace, "app=load")
	counted := func(ctx context.Context, atLeast int) (last outputLine, err error) {
		all, err := c.logs(ctx, namespace, "load")
		if err != nil {
			return outputLine{}, err
		}
		for _, l := range all {
			if l.Requests > 0 {
				last = l
			}
		}
		if last.Requests < atLeast {
			return last, fmt.Errorf("the load in namespace %s has made %d requests, want %d", namespace, last.Requests, atLeast)
		}
		return last, nil
	}
	// The first requests may come before the mesh knows the service.
	c.eventually(t, time.Minute, "requests are answered", func(ctx context.Context) error {
		_, err := counted(ctx, 10)
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		all, err := c.logs(ctx, namespace, "load")
		if err != nil {
			t.Error(err)
			return
		}
		failures := 0
		for _, l := range all {
			if failures < 5 && (l.Error != "" || l.Status != 0 && l.Status != 200) {
				t.Errorf("load in namespace %s: at %s a request got %d %s", namespace, l.Time.Format(time.RFC3339Nano), l.Status, l.Error)
				failures++
			}
		}
		if len(all) > 0 && failures > 0 {
			last := all[len(all)-1]
			t.Errorf("load in namespace %s: %d of %d requests failed", namespace, last.Failures, last.Requests)
			t.Logf("what the sidecars logged about failures:\n%s", c.failuresLogged(ctx, namespace))
		}
	})
	return func(atLeast int) int {
		t.Helper()
		var last outputLine
		c.eventually(t, 2*time.Minute, "requests are made", func(ctx context.Context) (err error) {
			last, err = counted(ctx, atLeast)
			return err
		})
		return last.Requests
	}
}

// failuresLogged returns the latest lines in the access logs of a namespace's pods about
// requests that failed, each after its pod's name.
func (c *cluster) failuresLogged(ctx context.Context, namespace string) string {
	text, err := c.output(ctx, "", c.kubectl, "logs", "-n", namespace, "-l", "app in (load, web)", "-c", "outrigger-proxy", "--prefix", "--tail=-1")
	if err != nil {
		return err.Error()
	}
	var failures []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, `"reason":`) {
			failures = append(failures, line)
		}
	}
	return strings.Join(failures[max(len(failures)-50, 0):], "")
}

// permissive turns the permissive mode on or off.
func (c *cluster) permissive(t *testing.T, on bool) {
	t.Helper()
	c.must(t, "", c.kubectl, "patch", "meshconfig", "-n", "osm-system", "osm-mesh-config", "--type=merge",
		"-p", fmt.Sprintf(`{"spec": {"traffic": {"enablePermissiveTrafficPolicyMode": %v}}}`, on))
}

// node runs a command of the program that runs the test's own cluster. Other clusters have
// no such program.
func (c *cluster) node(t *testing.T, args ...string) {
	t.Helper()
	c.needsNode(t)
	c.must(t, "", os.Getenv("E2E_NODE"), append([]string{"-name", os.Getenv("CLUSTER")}, args...)...)
}

// needsNode skips a test on a cluster other than the test's own.
func (c *cluster) needsNode(t *testing.T) {
	t.Helper()
	if os.Getenv("E2E_NODE") == "" {
		t.Skip("this needs a cluster of 'make cluster'")
	}
}
