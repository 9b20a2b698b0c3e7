package cli

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/check"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// counter counts the requests of a client, and records lists without a limit.
type counter struct {
	next      http.RoundTripper
	mu        sync.Mutex
	requests  int
	unlimited []string
}

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.requests++
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("limit") == "" {
		c.unlimited = append(c.unlimited, r.URL.String())
	}
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

// TestCheckOfManyPods checks a mesh of 3,000 pods. Their number must not change the number of
// requests, except for further pages.
func TestCheckOfManyPods(t *testing.T) {
	c := newControllerTest(t)
	c.allow(t, "")
	c.manyPods(t, 1, 20)
	c.manyPods(t, 10, 148)
	c.manyPods(t, 1, 1500)
	admin, err := c.server.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, admin, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	found, err := findings(t)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	t.Logf("3,000 pods are checked in %s; %d MiB are allocated, and the program has %d MiB", took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, after.Sys>>20)
	if !errors.Is(err, errReported) {
		t.Errorf("the check ends with %v", err)
	}
	expectFinding(t, found, "pods/sidecar", check.Error, "", "and 976 more")
	if limit := 20 * time.Second; took > limit {
		t.Errorf("the check took %s, want at most %s", took, limit)
	}

	f := checkFlags{timeout: time.Minute, mesh: meshFlags{Name: "osm", Namespace: controlPlane, Config: "osm-mesh-config"}}
	config, err := f.kube.burstConfig()
	if err != nil {
		t.Fatal(err)
	}
	requests := new(counter)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		requests.next = next
		return requests
	})
	if _, err := f.once(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Logf("there were %d requests", requests.requests)
	if len(requests.unlimited) > 0 {
		t.Errorf("lists without a limit: %v", requests.unlimited)
	}
	if requests.requests > 120 {
		t.Errorf("there were %d requests for 12 namespaces, want at most 120", requests.requests)
	}
}

// manyPods creates namespaces of the mesh with pods. A third of these has no sidecar.
func (c *controllerTest) manyPods(t *testing.T, namespaces, each int) {
	t.Helper()
	injected := injectedPod(t)
	pods := kubernetes.NewForConfigOrDie(c.server.Config).CoreV1()
	began := time.Now()
	var group sync.WaitGroup
	for n := range namespaces {
		namespace := fmt.Sprintf("city-%d-%d", each, n)
		c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace, Labels: map[string]string{metadata.MonitoredBy: "osm"}, Annotations: map[string]string{metadata.Injection: "enabled"},
		}})
		var next atomic.Int32
		for range 10 / namespaces {
			group.Go(func() {
				for i := next.Add(1) - 1; i < int32(each); i = next.Add(1) - 1 {
					pod := injected.DeepCopy()
					if i%3 == 2 {
						pod = &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "web", Image: "example.com/web:1"}}}}
					}
					pod.Namespace, pod.Name = namespace, fmt.Sprintf("web-%d", i)
					if _, err := pods.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	group.Wait()
	t.Logf("%d pods were created in %s", namespaces*each, time.Since(began).Round(time.Millisecond))
}

// injectedPod returns a pod with a sidecar.
func injectedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	const text = `
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {openservicemesh.io/sidecar-injection: enabled}, labels: {app: web}}
spec:
  serviceAccountName: default
  containers:
  - {name: web, image: example.com/web:1, ports: [{containerPort: 8080}], readinessProbe: {httpGet: {path: /ready, port: 8080}}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(runCommand(t, "inject", "-f", file)), &pod); err != nil {
		t.Fatal(err)
	}
	if !inject.Injected(&pod) {
		t.Fatal("the pod has no sidecar")
	}
	return &pod
}
