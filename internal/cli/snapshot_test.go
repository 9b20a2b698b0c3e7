package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// TestSnapshotScripts runs validate, explain and translate as users do.
func TestSnapshotScripts(t *testing.T) { runScripts(t, "testdata/snapshot") }

// mute is a driver that translates nothing.
type mute struct{}

func (mute) Patch(context.Context) error                  { return nil }
func (mute) Start(context.Context) (health.Probes, error) { return nil, nil }

// teller translates a View into the files and the error of the test or, without files, into a
// description of the View.
type teller struct {
	mute
	files []driver.File
	err   error
}

func (d teller) Translate(view *mesh.View) ([]driver.File, error) {
	if d.files != nil {
		return d.files, d.err
	}
	return []driver.File{
		{Name: "proxy.yaml", Content: []byte("---\nname: " + view.Proxy.Name.String() + "\nclass: " + view.Proxy.Class + "\n")},
		{Name: "scripts/main.js", Content: fmt.Appendf(nil, "plaintext = %t", view.Proxy.Plaintext)},
	}, d.err
}

type checker struct{ teller }

func (d checker) Check(_ context.Context, view *mesh.View) error {
	if view.Proxy.Namespace != "shop" {
		return errors.New("it was given another View")
	}
	return d.err
}

// manifests are a mesh with two proxies, one of them of a class without mesh TLS.
const manifests = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar:
    sidecarClass: envoy
    sidecarDrivers: [{sidecarName: pipy, sidecarDisabledMTLS: true}]
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: shop}
spec: {containers: [{name: cart, image: cart}]}
---
apiVersion: v1
kind: Pod
metadata: {name: desk, namespace: shop, annotations: {openservicemesh.io/sidecar-class: pipy}}
spec: {containers: [{name: desk, image: desk}]}
---
apiVersion: v1
kind: Pod
metadata: {name: bare, namespace: shop, annotations: {openservicemesh.io/sidecar-injection: disabled}}
spec: {containers: [{name: bare, image: bare}]}
`

func TestTranslate(t *testing.T) {
	const proxies = "the proxies are:\n  shop/cart (envoy)\n  shop/desk (pipy)"
	cart := "---\n# proxy.yaml\nname: shop/cart\nclass: envoy\n---\n# scripts/main.js\nplaintext = false\n"
	for _, tt := range []struct {
		name   string
		driver driver.Driver
		args   []string
		stdout string
		// report is the last line of standard error that is not a warning.
		report string
		err    string
		misuse bool
	}{
		{name: "yaml", driver: teller{}, args: []string{"--proxy", "shop/cart"}, stdout: cart},
		{
			name: "json", driver: teller{}, args: []string{"--proxy", "shop/cart", "-o", "json"},
			stdout: `{
  "proxy.yaml": {
    "class": "envoy",
    "name": "shop/cart"
  },
  "scripts/main.js": "plaintext = false"
}
`,
		},
		{
			name: "class of the pod", driver: teller{}, args: []string{"--proxy", "shop/desk"},
			stdout: "---\n# proxy.yaml\nname: shop/desk\nclass: pipy\n---\n# scripts/main.js\nplaintext = true\n",
		},
		{name: "another driver", driver: teller{}, args: []string{"--proxy", "shop/desk", "--driver", "Envoy"}, stdout: strings.ReplaceAll(cart, "cart", "desk")},
		{name: "no proxy named", driver: teller{}, err: "name a proxy with --proxy; " + proxies, misuse: true},
		{name: "no such proxy", driver: teller{}, args: []string{"--proxy", "shop/bare"}, err: "no pod shop/bare has a proxy; " + proxies},
		{name: "no such driver", driver: teller{}, args: []string{"--proxy", "shop/cart", "--driver", "none-such"}, err: "no driver none-such"},
		{
			name: "driver that does not translate", driver: mute{}, args: []string{"--proxy", "shop/cart"},
			err: "driver envoy cannot print a configuration; name another driver with --driver",
		},
		{
			name: "translation fails", driver: teller{err: errors.New("it is strange")}, args: []string{"--proxy", "shop/cart"},
			err: "translating for shop/cart: it is strange",
		},
		{name: "check", driver: checker{}, args: []string{"--proxy", "shop/cart", "--check"}, stdout: cart, report: "the proxy accepts the configuration of shop/cart"},
		{
			name: "check without a checker", driver: teller{}, args: []string{"--proxy", "shop/cart", "--check"}, stdout: cart,
			err: "driver envoy cannot check a configuration with its proxy; leave out --check",
		},
		{name: "wrong format", driver: teller{}, args: []string{"-o", "text"}, err: `-o "text": formats are yaml and json`, misuse: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, err := translate(t, tt.driver, manifests, tt.args...)
			if diff := cmp.Diff(tt.stdout, stdout); diff != "" {
				t.Errorf("standard output (-want +got):\n%s", diff)
			}
			if got := fmt.Sprint(err); got != tt.err && (err != nil || tt.err != "") {
				t.Errorf("error %q, want %q", got, tt.err)
			}
			if got := errors.As(err, &usage.Error{}); got != tt.misuse {
				t.Errorf("it is wrong usage: %t, want %t", got, tt.misuse)
			}
			report := ""
			for line := range strings.Lines(stderr) {
				if !strings.HasPrefix(line, "warning: ") {
					report = strings.TrimSuffix(line, "\n")
				}
			}
			if report != tt.report {
				t.Errorf("the report is %q, want %q", report, tt.report)
			}
		})
	}
}

// translate runs the command on manifests from standard input.
func translate(t *testing.T, d driver.Driver, manifests string, args ...string) (string, string, error) {
	t.Helper()
	t.Setenv("KUBECONFIG", "none")
	cmd := newTranslateCommand(func(class string) (driver.Capabilities, error) {
		if class != "envoy" && class != "pipy" {
			return driver.Capabilities{}, fmt.Errorf("no driver %s", class)
		}
		return driver.CapabilitiesOf(d), nil
	})
	var stdout, stderr strings.Builder
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"-f", "-"}, args...))
	cmd.SetIn(strings.NewReader(manifests))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err := cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// refusing translates, but its proxy rejects the result.
type refusing struct {
	teller
	because error
}

func (d refusing) Check(context.Context, *mesh.View) error { return d.because }

func TestTranslateCheckFails(t *testing.T) {
	for name, tt := range map[string]struct{ because, want error }{
		"refused":  {errors.New("unknown field"), errors.New("the proxy rejects the configuration of shop/cart: unknown field")},
		"no proxy": {fmt.Errorf("%w: install it", driver.ErrNoProxy), errors.New("not checked: proxy program not found: install it")},
	} {
		stdout, _, err := translate(t, refusing{because: tt.because}, manifests, "--proxy", "shop/cart", "--check")
		if err == nil || err.Error() != tt.want.Error() || errors.As(err, &usage.Error{}) {
			t.Errorf("%s: error %v, want %v", name, err, tt.want)
		}
		if stdout == "" {
			t.Errorf("%s: the configuration was not printed", name)
		}
	}
}

func TestTranslateIntoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	if stdout, _, err := translate(t, teller{}, manifests, "--proxy", "shop/cart", "--output-dir", dir); err != nil || stdout != "" {
		t.Fatalf("%v, and printed %q", err, stdout)
	}
	for name, want := range map[string]string{"proxy.yaml": "---\nname: shop/cart\nclass: envoy\n", "scripts/main.js": "plaintext = false"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v, want %q", name, got, err, want)
		}
	}

	// Drivers are not trusted with the names of files.
	for _, name := range []string{"../out.yaml", "/tmp/out.yaml", "a/../../out.yaml"} {
		_, _, err := translate(t, teller{files: []driver.File{{Name: name}}}, manifests, "--proxy", "shop/cart", "--output-dir", dir)
		if err == nil || !strings.Contains(err.Error(), "outside") {
			t.Errorf("a file called %q was written (%v)", name, err)
		}
	}
}

func TestTranslateWithoutProxies(t *testing.T) {
	_, _, err := translate(t, teller{}, "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	if err == nil || err.Error() != "name a proxy with --proxy; there are no proxies" {
		t.Errorf("error %v", err)
	}
}

// TestMeshConfigInList has the MeshConfig in a List, as kubectl get prints it.
func TestMeshConfigInList(t *testing.T) {
	const list = `
apiVersion: v1
kind: List
items:
- apiVersion: config.openservicemesh.io/v1alpha1
  kind: MeshConfig
  metadata: {name: osm-mesh-config, namespace: osm-system}
  spec: {sidecar: {sidecarClass: pipy}}
- apiVersion: v1
  kind: Pod
  metadata: {name: cart, namespace: shop}
  spec: {containers: [{name: cart, image: cart}]}
`
	stdout, _, err := translate(t, teller{}, list, "--proxy", "shop/cart")
	if err != nil || !strings.Contains(stdout, "class: pipy") {
		t.Errorf("%v, and printed %q", err, stdout)
	}
}

// TestSnapshotFromCluster runs the commands with an API server.
func TestSnapshotFromCluster(t *testing.T) {
	server := apiserver.StartServer(t)
	admin, err := client.New(server.Config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	config, err := server.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: controlPlane}})
	open := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Name: "osm-mesh-config", Namespace: controlPlane}}
	open.Spec.Traffic.EnablePermissiveTrafficPolicyMode = new(true)
	create(t, admin, open)
	shop := metav1.ObjectMeta{Name: "shop", Labels: map[string]string{metadata.MonitoredBy: "osm"}}
	create(t, admin, &corev1.Namespace{ObjectMeta: shop})
	create(t, admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "shop"}})
	for name, ip := range map[string]string{"cart": "10.244.0.7", "desk": "10.244.0.8"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: "shop",
				Annotations: map[string]string{inject.StatusAnnotation: `{"version":1,"class":"envoy"}`},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: name}}},
		}
		create(t, admin, pod)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
		if err := admin.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	create(t, admin, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	})
	yes, port, portName := true, int32(80), "http"
	create(t, admin, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "cart-1", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.244.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart", UID: types.UID("any")},
		}},
	})

	run := func(args ...string) (string, error) {
		var stdout strings.Builder
		cmd := NewRootCommand()
		cmd.SetArgs(append(args, "--from-cluster", "--kubeconfig", kubeconfig))
		cmd.SetOut(&stdout)
		// Reading may end after the command; later output is irrelevant.
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		return stdout.String(), err
	}
	got, err := run("explain", "shop/desk", "shop/cart", "GET", "/")
	if err != nil || !strings.Contains(got, "mesh TLS to server name default.shop.sa.cluster.local to shop/cart (10.244.0.7:80)") {
		t.Errorf("explain: %v, and printed:\n%s", err, got)
	}
	if got, err := run("validate"); err != nil || got != "" {
		t.Errorf("validate: %v, and printed:\n%s", err, got)
	}

	// Keys of tokens that are in a ConfigMap are read, and nothing is fetched.
	for _, obj := range decode(t, `
apiVersion: outrigger.dev/v1alpha1
kind: TokenPolicy
metadata: {name: login, namespace: shop}
spec: {issuers: [{issuer: "https://a", jwksFrom: {configMapKey: a.json}}, {issuer: "https://b", jwksFrom: {url: "https://127.0.0.1:1/"}}]}
---
apiVersion: outrigger.dev/v1alpha1
kind: AccessPolicy
metadata: {name: staff, namespace: shop}
spec: {targetRefs: [{kind: Pod, selector: {}}], rules: [{token: {}}]}
`) {
		create(t, admin, obj)
	}
	if got, err := run("validate"); err == nil || !strings.Contains(got, "namespace shop has no ConfigMap outrigger-token-keys") || strings.Contains(got, "issuers[1]") {
		t.Errorf("validate without keys: %v, and printed:\n%s", err, got)
	}
	create(t, admin, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "outrigger-token-keys", Namespace: "shop"}, Data: map[string]string{
		"a.json": `{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
	}})
	if got, err := run("validate"); err != nil || got != "" {
		t.Errorf("validate with keys: %v, and printed:\n%s", err, got)
	}
	if err := admin.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "desk", Namespace: "shop"}}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := run("explain", "shop/desk", "shop/cart", "GET", "/"); err == nil || errors.Is(err, errRefused) {
		t.Errorf("explain with a caller that is gone: %v", err)
	}
	if _, err := run("validate", "--timeout", "1ns"); err == nil || !strings.Contains(err.Error(), "not everything was read within 1ns") {
		t.Errorf("validate without time: %v", err)
	}
}

// TestSnapshotFromDeadServer uses an API server that was stopped.
func TestSnapshotFromDeadServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, users: [{name: a}],
		contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: "http://%s"}}]}`, l.Addr())
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// A client's pause before it retries is random, so there are several attempts.
	begin := time.Now()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			cmd := NewRootCommand()
			cmd.SetArgs([]string{"validate", "--from-cluster", "--kubeconfig", kubeconfig, "--timeout", "4s"})
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard) // It is written to for as long as clients wait.
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "not everything was read within 4s") {
				t.Errorf("error %v", err)
			}
		})
	}
	group.Wait()
	if took := time.Since(begin); took > 7*time.Second {
		t.Errorf("it took %s", took)
	}
}

func create(t *testing.T, c client.Client, obj client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}
