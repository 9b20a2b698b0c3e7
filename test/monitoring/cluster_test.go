package monitoring_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// bind is the address of the controller's sockets. Other tests listen on 127.0.0.1.
const bind = "127.0.0.77"

// cluster is an API server with a controller and an injector, whose metrics Prometheus reads.
type cluster struct {
	client     client.Client
	pods       kubernetes.Interface
	controller string
	injector   string
}

// startCluster installs the chart and runs the control plane with the chart's rights. It plants
// a pod without a sidecar and an object with a Problem, and creates pods until the test ends.
func startCluster(t *testing.T, outrigger string) *cluster {
	t.Helper()
	ctrllog.SetLogger(logr.Discard())
	server := apiserver.StartServer(t)
	c := &cluster{controller: free(t), injector: free(t)}
	webhook := free(t)
	var err error
	if c.client, err = client.New(server.Config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(server.Config)
	config.WarningHandler = rest.NoWarnings{}
	if c.pods, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	c.namespace(t, controlPlane, nil)
	c.namespace(t, "shop", map[string]string{"openservicemesh.io/monitored-by": "osm"})
	if _, err := c.pods.CoreV1().Pods("shop").Create(t.Context(), newPod(""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	release, err := chart.Render(t.Context(), controlPlane, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(release.Objects, badObject) {
		c.apply(t, text, "https://"+webhook+"/inject")
	}

	kubeconfig := func(account string) string {
		text, err := server.Kubeconfig("system:serviceaccount:"+controlPlane+":"+account,
			"system:serviceaccounts", "system:serviceaccounts:"+controlPlane, "system:authenticated")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	run(t, outrigger, "controller", "--kubeconfig", kubeconfig("outrigger-controller"), "--bind-address", bind, "--health-listen", c.controller)
	run(t, outrigger, "injector", "--kubeconfig", kubeconfig("outrigger-injector"), "--listen", webhook, "--health-listen", c.injector,
		"--extra-names", "127.0.0.1", "--shutdown-delay", "0s", "--template-dir", "")
	for _, address := range []string{c.controller, c.injector} {
		eventually(t, "the control plane is ready", func() error {
			response, err := http.Get("http://" + address + "/health/ready")
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answers %s", address, response.Status)
			}
			return nil
		})
	}
	c.createPods(t)
	return c
}

// badObject has a Problem: its regular expression is incomplete.
const badObject = `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: bad, namespace: shop}
spec: {matches: [{name: all, pathRegex: "(", methods: [GET]}]}
`

// jobs returns the parts of Prometheus' configuration for the control plane.
func (c *cluster) jobs(t *testing.T, at *lab.Lab) []map[string]any {
	t.Helper()
	all := chartMonitors(t)
	return []map[string]any{
		serviceJob(t, all["outrigger-controller"], 1, forward(t, at, 9991, c.controller)),
		serviceJob(t, all["outrigger-injector"], 0, forward(t, at, 9992, c.injector)),
	}
}

func (c *cluster) namespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: labels, Annotations: map[string]string{"openservicemesh.io/sidecar-injection": "enabled"},
	}}
	if err := c.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// apply applies an object; the API server calls the webhook at the address.
func (c *cluster) apply(t *testing.T, text, webhook string) {
	t.Helper()
	objects, err := apiserver.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.GetKind() == "MutatingWebhookConfiguration" {
			webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range webhooks {
				w.(map[string]any)["clientConfig"] = map[string]any{"url": webhook}
			}
			if err := unstructured.SetNestedSlice(object.Object, webhooks, "webhooks"); err != nil {
				t.Fatal(err)
			}
		}
		if err := apiserver.Apply(t.Context(), c.client, object); err != nil {
			t.Fatal(err)
		}
	}
}

func newPod(injection string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "app-", Namespace: "shop"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
	if injection != "" {
		pod.Annotations = map[string]string{"openservicemesh.io/sidecar-injection": injection}
	}
	return pod
}

// createPods makes the API server ask the injector about pods, which it does not store.
func (c *cluster) createPods(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, injection := range []string{"", "disabled", "perhaps"} {
				// The last one is denied.
				_, _ = c.pods.CoreV1().Pods("shop").Create(ctx, newPod(injection), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
}

// run runs the program until the test ends.
func run(t *testing.T, program string, args ...string) {
	t.Helper()
	var output bytes.Buffer
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		err := command.Wait()
		if t.Failed() {
			lines := strings.Split(strings.TrimSpace(output.String()), "\n")
			t.Logf("outrigger %s ended with %v; its last output:\n%s", args[0], err, strings.Join(lines[max(0, len(lines)-10):], "\n"))
		}
	})
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
