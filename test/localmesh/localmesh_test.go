package localmesh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

const meshConfig = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar: {sidecarClass: envoy}
  traffic: {enablePermissiveTrafficPolicyMode: true}
  observability: {enableDebugServer: true}
---
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}
`

const client = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec:
  containers: [{name: app, image: in-the-test}]
`

const server = `
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: shop, labels: {app: server}}
spec:
  serviceAccountName: server
  containers:
  - {name: app, image: in-the-test, ports: [{containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

// newMesh starts a mesh of the manifests, or skips the test.
func newMesh(t *testing.T, options localmesh.Options) *localmesh.Mesh {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	options.Programs = programs(t)
	options.Progress = func(text string) { t.Log(text) }
	options.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	m, err := localmesh.New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

var built = struct {
	dir string
	localmesh.Programs
}{}

// programs compiles the programs once for all tests.
func programs(t *testing.T) localmesh.Programs {
	t.Helper()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "outrigger-programs-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
		if built.Programs, err = localmesh.BuildPrograms(t.Context(), dir, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := built.Missing["envoy"]; err != nil {
		t.Skip("SKIPPED: ", err)
	}
	return built.Programs
}

func TestMain(m *testing.M) {
	lab.Enter()
	code := m.Run()
	if built.dir != "" {
		if err := os.RemoveAll(built.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// serve answers in a pod, on the port of its service.
func serve(t *testing.T, pod *lab.Pod, answer string) {
	t.Helper()
	listener, err := pod.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s to %s", answer, strings.Split(r.RemoteAddr, ":")[0])
	})}
	go s.Serve(listener)
	t.Cleanup(func() { s.Close() })
}

// get sends a request from a pod.
func get(ctx context.Context, from *lab.Pod, url string) (string, error) {
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := c.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return fmt.Sprintf("%d %s", response.StatusCode, body), err
}

// eventually repeats a request until it gets the wanted answer.
func eventually(t *testing.T, from *lab.Pod, url, want string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got, err := get(t.Context(), from, url)
		if err == nil && got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("GET %s: got %q, %v; want %q", url, got, err, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestMesh sends requests through two sidecars, and then changes the mesh.
func TestMesh(t *testing.T) {
	m := newMesh(t, localmesh.Options{Manifests: map[string]string{
		"mesh.yaml": meshConfig, "client.yaml": client, "server.yaml": server,
	}})
	serve(t, m.Pod("shop/server"), "hello")
	if err := m.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}

	for _, host := range []string{"server.shop", "server.shop.svc", "server.shop.svc.cluster.local"} {
		eventually(t, m.Pod("shop/client"), "http://"+host+"/", "200 hello to 127.0.0.6")
	}
	stats, err := get(t.Context(), m.Pod("shop/server"), "http://127.0.0.1:15000/stats?usedonly&filter=ssl.handshake")
	if err != nil || !strings.Contains(stats, "ssl.handshake: ") {
		t.Errorf("the server's sidecar has seen no TLS handshake: %s, %v", stats, err)
	}

	proxies, err := m.Proxies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var identities []string
	for _, p := range proxies {
		identities = append(identities, p.Identity)
	}
	if got, want := strings.Join(identities, " "), "spiffe://cluster.local/ns/shop/sa/default spiffe://cluster.local/ns/shop/sa/server"; got != want {
		t.Errorf("the proxies are %s, want %s", got, want)
	}

	t.Run("controller", func(t *testing.T) { testController(t, m) })
	t.Run("change", func(t *testing.T) { testChange(t, m) })
	t.Run("end", func(t *testing.T) { testEnd(t, m) })
}

// TestBroken starts meshes that cannot work, and checks the errors.
func TestBroken(t *testing.T) {
	if err := lab.Available(); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho not today >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	manifests := map[string]string{"mesh.yaml": meshConfig, "client.yaml": client}
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		options localmesh.Options
		want    []string
	}{
		"no MeshConfig": {
			localmesh.Options{Manifests: map[string]string{"client.yaml": client, "broken.yaml": "a: ["}},
			[]string{"no MeshConfig", "broken.yaml"},
		},
		"no controller": {
			localmesh.Options{Manifests: manifests, Programs: localmesh.Programs{Outrigger: "/nowhere/outrigger"}},
			[]string{"/nowhere/outrigger"},
		},
		"controller that ends": {
			localmesh.Options{Manifests: manifests, Programs: localmesh.Programs{Outrigger: script}},
			[]string{"code 3", "not today"},
		},
		"controller that never is ready": {
			localmesh.Options{Manifests: manifests, Controller: []string{"sh", "-c", "echo still busy; exec sleep 60"}},
			[]string{"not ready", "still busy"},
		},
		"no proxy": {
			localmesh.Options{Manifests: manifests, Programs: localmesh.Programs{Proxies: map[string]string{"envoy": "/nowhere/envoy"}}},
			[]string{"sidecar class envoy", "/nowhere/envoy"},
		},
		"a name that leads out": {
			localmesh.Options{Manifests: map[string]string{"../mesh.yaml": meshConfig}, Dir: filepath.Join(dir, "mesh")},
			[]string{"../mesh.yaml"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			m, err := localmesh.New(ctx, tt.options)
			if err == nil {
				m.Close()
				t.Fatal("it works")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "mesh.yaml")); err == nil {
		t.Error("a manifest was written outside of its folder")
	}
}

// testController kills the controller and starts it again.
func testController(t *testing.T, m *localmesh.Mesh) {
	if err := m.KillController(); err != nil {
		t.Fatal(err)
	}
	if err := m.KillController(); err == nil {
		t.Error("there was something to kill a second time")
	}
	if _, err := m.Debug(t.Context(), "/debug/proxy"); err == nil {
		t.Error("the controller answers though it was killed")
	}
	eventually(t, m.Pod("shop/client"), "http://server.shop/", "200 hello to 127.0.0.6")
	if err := m.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := m.Debug(t.Context(), "/debug/namespaces")
	if err != nil || !bytes.Contains(text, []byte("shop")) {
		t.Errorf("/debug/namespaces: %s, %v", text, err)
	}
	if _, err := m.Debug(t.Context(), "/debug/nothing"); err == nil {
		t.Error("a page that is not there is no error")
	}
}

// testChange replaces one pod and adds another.
func testChange(t *testing.T, m *localmesh.Mesh) {
	before, other := m.Pod("shop/server"), m.Pod("shop/client")
	if err := m.Apply(t.Context(), "server.yaml", strings.Replace(server, "{app: server}", "{app: server, version: v2}", 1)); err != nil {
		t.Fatal(err)
	}
	if m.Pod("shop/server") == before {
		t.Error("the pod is the same though its labels have changed")
	}
	if m.Pod("shop/client") != other {
		t.Error("a pod was replaced that has not changed")
	}
	serve(t, m.Pod("shop/server"), "hello again")
	eventually(t, m.Pod("shop/client"), "http://server.shop/", "200 hello again to 127.0.0.6")

	second := strings.NewReplacer("name: client", "name: second").Replace(client)
	if err := m.Apply(t.Context(), "second.yaml", second); err != nil {
		t.Fatal(err)
	}
	eventually(t, m.Pod("shop/second"), "http://server.shop/", "200 hello again to 127.0.0.6")
	if err := m.Delete(t.Context(), "second.yaml"); err != nil {
		t.Fatal(err)
	}
	if m.Pod("shop/second") != nil {
		t.Error("the deleted pod is there")
	}
	if err := m.Delete(t.Context(), "second.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleting twice: %v, want that it does not exist", err)
	}
	if err := m.Apply(t.Context(), "../second.yaml", second); err == nil {
		t.Error("a manifest outside of the folder is written")
	}
}

// testEnd closes the mesh and checks that nothing is left.
func testEnd(t *testing.T, m *localmesh.Mesh) {
	controller, pod, dir := m.Controller(), m.Pod("shop/server"), filepath.Dir(m.CADir())
	proxy := pod.Container("outrigger-proxy").PID()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for what, pid := range map[string]int{"controller": controller.PID(), "sidecar": proxy} {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the %s still runs: %v", what, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the mesh is still there: %v", err)
	}
	if err := m.Apply(t.Context(), "client.yaml", client); err == nil {
		t.Error("a mesh that has ended takes a manifest")
	}
	if err := m.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

// TestStartsAndChange leaves a pod out, and changes another one after its injection.
func TestStartsAndChange(t *testing.T) {
	m := newMesh(t, localmesh.Options{
		Manifests: map[string]string{"mesh.yaml": meshConfig, "client.yaml": client, "server.yaml": server},
		Starts:    func(pod *corev1.Pod) bool { return pod.Name != "server" },
		Change: func(pod *corev1.Pod) error {
			for i := range pod.Spec.InitContainers {
				if c := &pod.Spec.InitContainers[i]; c.Name == "outrigger-proxy" {
					c.Env = append(c.Env, corev1.EnvVar{Name: "OUTRIGGER_WORKLOAD", Value: "changed"})
					return nil
				}
			}
			return errors.New("there is no sidecar to change")
		},
	})
	if got := m.Pods(); !slices.Equal(got, []string{"shop/client"}) {
		t.Errorf("the pods are %v, want only shop/client", got)
	}
	sidecar := m.Pod("shop/client").Container("outrigger-proxy")
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", sidecar.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(environment), "\x00OUTRIGGER_WORKLOAD=changed\x00") {
		t.Error("the sidecar's environment does not have the changed workload")
	}
	// The controller sees the other one: the proxy tries to connect to it.
	deadline := time.Now().Add(20 * time.Second)
	for {
		got, err := get(t.Context(), m.Pod("shop/client"), "http://server.shop/")
		if err == nil && strings.HasPrefix(got, "503 upstream connect error") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a request to the pod that was not started gets %q, %v; want 503 and that connecting has failed", got, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
