package localmesh_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// hookTakes is how long the hooks take: longer than the sidecar's drain time.
const hookTakes = 7 * time.Second

// ending returns a server with a preStop hook. The sidecar is native or an ordinary container,
// which is told to end while the hook runs.
func ending(name, native, grace string) string {
	return strings.NewReplacer(
		"name: server", "name: "+name,
		"labels: {app: server}}", `labels: {app: `+name+`}, annotations: {openservicemesh.io/native-sidecar: "`+native+`"}}`,
		"serviceAccountName: server", "terminationGracePeriodSeconds: "+grace,
		"containerPort: 8080}]}", "containerPort: 8080}], lifecycle: {preStop: {httpGet: {path: /drain, port: 8080}}}}",
		"app: server", "app: "+name,
	).Replace(server)
}

// beginning is a pod with a postStart hook that reaches nobody.
const beginning = `
apiVersion: v1
kind: Pod
metadata: {name: beginning, namespace: shop}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: machine, command: [sleep, infinity], lifecycle: {postStart: {httpGet: {path: /begin, port: 9}}}}
`

// drainer is an application with a hook.
type drainer struct {
	pod    *lab.Pod
	called chan struct{}
	// drained gets how long the hook ran, and whether it was cut off.
	drained chan time.Duration
	cut     atomic.Bool
}

func drain(t *testing.T, pod *lab.Pod) *drainer {
	t.Helper()
	listener, err := pod.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
	d := &drainer{pod: pod, called: make(chan struct{}), drained: make(chan time.Duration, 1)}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/drain" {
			return
		}
		began := time.Now()
		close(d.called)
		select {
		case <-r.Context().Done():
			d.cut.Store(true)
		case <-time.After(hookTakes):
		}
		d.drained <- time.Since(began)
	})}
	go s.Serve(listener)
	t.Cleanup(func() { s.Close() })
	return d
}

// TestHooks runs HTTP hooks of applications through the agent, as a kubelet runs them: while one
// lasts longer than the sidecar's drain time, the application can still send requests. A hook
// that lasts longer than the pod's grace period is cut off, and one that reaches nobody fails.
func TestHooks(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: its hooks take seconds; run 'make test-all'")
	}
	pods := map[string]string{
		"ordinary": ending("ordinary", "false", "20"),
		"native":   ending("native", "true", "20"),
		"hurried":  ending("hurried", "false", "3"),
	}
	manifests := map[string]string{"mesh.yaml": meshConfig, "client.yaml": client, "server.yaml": server}
	for name, text := range pods {
		manifests[name+".yaml"] = text
	}
	m := newMesh(t, localmesh.Options{Manifests: manifests, Images: map[string]lab.Image{"machine": {HostRoot: true}}})
	serve(t, m.Pod("shop/server"), "hello")
	drainers := map[string]*drainer{}
	for name := range pods {
		drainers[name] = drain(t, m.Pod("shop/"+name))
	}
	if err := m.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, d := range drainers {
		eventually(t, d.pod, "http://server.shop/", "200 hello to 127.0.0.6")
		eventually(t, m.Pod("shop/client"), "http://"+name+".shop/", "200 ")
	}

	deleted := make(chan error, 1)
	go func() {
		deleted <- m.Replace(t.Context(), map[string]string{"mesh.yaml": meshConfig, "client.yaml": client, "server.yaml": server})
	}()
	for name, d := range drainers {
		select {
		case <-d.called:
		case <-time.After(20 * time.Second):
			t.Fatalf("the hook of %s is not called", name)
		}
	}
	time.Sleep(hookTakes - time.Second)
	for _, name := range []string{"ordinary", "native"} {
		if got, err := get(t.Context(), drainers[name].pod, "http://server.shop/"); err != nil || got != "200 hello to 127.0.0.6" {
			t.Errorf("while its hook runs, %s gets %q, %v through its sidecar", name, got, err)
		}
	}
	for name, d := range drainers {
		select {
		case took := <-d.drained:
			if d.cut.Load() != (name == "hurried") {
				t.Errorf("the hook of %s ends after %v, cut off: %t", name, took, d.cut.Load())
			}
		case <-time.After(20 * time.Second):
			t.Errorf("the hook of %s does not end", name)
		}
	}
	if err := <-deleted; err != nil {
		t.Error(err)
	}

	if err := m.Apply(t.Context(), "beginning.yaml", beginning); err == nil || !strings.Contains(err.Error(), "the postStart hook of") {
		t.Errorf("a hook that reaches nobody gives %v", err)
	}
}
