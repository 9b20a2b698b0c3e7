package behaviour_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/compile"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// grpcMesh is one mesh with clients and servers of every class, which are processes of
// test/grpc: for each class NAME the pods web and thief in the namespace users-NAME, and
// cart-v1 and cart-v2 in shop-NAME.
type grpcMesh struct {
	*localmesh.Mesh
	classes []string
	outputs outputs
}

// grpcPair is the class of a client and that of a server.
type grpcPair struct{ client, server string }

func (p grpcPair) String() string { return p.client + " to " + p.server }

// web and thief are the clients' pods.
func (p grpcPair) web() string   { return "users-" + p.client + "/web" }
func (p grpcPair) thief() string { return "users-" + p.client + "/thief" }

// pairs returns the pairs in which a side has the class grpc.
func (m *grpcMesh) pairs() []grpcPair {
	var pairs []grpcPair
	for _, client := range m.classes {
		for _, server := range m.classes {
			if client == "grpc" || server == "grpc" {
				pairs = append(pairs, grpcPair{client, server})
			}
		}
	}
	return pairs
}

const (
	// control is the address on which clients are told what to call, within their pod.
	control = "127.0.0.1:7000"
	// call, stream and list are methods. The clients web may use the first two.
	call, stream, list = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List"
)

const grpcClients = `
apiVersion: v1
kind: Namespace
metadata:
  name: users-CLASS
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/sidecar-class: CLASS}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: users-CLASS}
spec:
  serviceAccountName: web
  securityContext: {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true}
  containers: [{name: app, image: grpc-app, command: [/app, answer, "` + control + `"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: thief, namespace: users-CLASS}
spec:
  serviceAccountName: thief
  securityContext: {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true}
  containers: [{name: app, image: grpc-app, command: [/app, answer, "` + control + `"]}]
---
`

const grpcNamespace = `
apiVersion: v1
kind: Namespace
metadata:
  name: shop-CLASS
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/sidecar-class: CLASS}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop-CLASS}
spec: {selector: {app: cart}, ports: [{name: grpc, port: 50051}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: cart, namespace: shop-CLASS}
spec:
  matches:
  - {name: call, pathRegex: "/grpc.health.v1.Health/(Check|Watch)", methods: [POST]}
  - {name: list, pathRegex: "/grpc.health.v1.Health/List", methods: [POST]}
---
`

const grpcServer = `
apiVersion: v1
kind: Pod
metadata: {name: VERSION, namespace: shop-CLASS, labels: {app: cart, version: VERSION}}
spec:
  serviceAccountName: VERSION
  securityContext: {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true}
  containers: [{name: app, image: grpc-app, command: [/app, serve, ":50051", VERSION]}]
---
apiVersion: v1
kind: Service
metadata: {name: VERSION, namespace: shop-CLASS}
spec: {selector: {version: VERSION}, ports: [{name: grpc, port: 50051}]}
---
`

// allow returns a TrafficTarget for calls of a client in all namespaces of users.
func (m *grpcMesh) allow(name, class, version, client, match string) string {
	var sources []string
	for _, c := range m.classes {
		sources = append(sources, fmt.Sprintf("{kind: ServiceAccount, name: %s, namespace: users-%s}", client, c))
	}
	return fmt.Sprintf(`
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: %[1]s, namespace: shop-%[2]s}
spec:
  destination: {kind: ServiceAccount, name: %[3]s, namespace: shop-%[2]s}
  sources: [%[4]s]
  rules: [{kind: HTTPRouteGroup, name: cart, matches: [%[5]s]}]
---
`, name, class, version, strings.Join(sources, ", "), match)
}

const grpcMeshConfig = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: false}
  observability: {enableDebugServer: true}
`

// newGRPCMesh starts the mesh with every class whose proxy is on this machine, or skips the
// test.
func newGRPCMesh(t *testing.T) *grpcMesh {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(t.TempDir(), "app")
	if err := compile.Build(t.Context(), compile.Options{Folder: filepath.Join("..", "grpc"), Packages: []string{"."}, Output: app, Env: []string{"CGO_ENABLED=0"}}); err != nil {
		t.Fatal(err)
	}
	programs, err := localmesh.BuildPrograms(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	m := &grpcMesh{classes: []string{"grpc"}, outputs: outputs{text: map[string]*bytes.Buffer{}}}
	for _, class := range []string{"envoy", "haproxy", "pipy"} {
		if err := programs.Missing[class]; err != nil {
			t.Logf("SKIPPED: the pairs with class %s: %v", class, err)
			continue
		}
		m.classes = append(m.classes, class)
	}
	manifests := map[string]string{"mesh.yaml": grpcMeshConfig}
	for _, class := range m.classes {
		text := grpcClients + grpcNamespace
		for _, version := range []string{"cart-v1", "cart-v2"} {
			text += strings.ReplaceAll(grpcServer, "VERSION", version) + m.allow(version, class, version, "web", "call")
		}
		// The thief knows the service, but may do something else only.
		text += m.allow("thief", class, "cart-v1", "thief", "list")
		manifests[class+".yaml"] = strings.ReplaceAll(text, "CLASS", class)
	}
	if m.Mesh, err = localmesh.New(t.Context(), localmesh.Options{
		Dir: t.TempDir(), Manifests: manifests, Programs: programs, Images: map[string]lab.Image{"grpc-app": {Files: map[string]string{"/app": app}}},
		Output: m.outputs.writer,
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			m.outputs.dump(t)
		}
	})
	if err := m.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// grpcCall is a call of a client.
type grpcCall struct {
	method string
	times  int
	// kind is the value of the header x-kind.
	kind string
	// fresh makes the client connect anew.
	fresh bool
}

// ask has a pod call a service of a pair's servers, and returns the line for each call.
func (m *grpcMesh) ask(p grpcPair, pod, service string, c grpcCall) ([]string, error) {
	target := fmt.Sprintf("%s.shop-%s:50051", service, p.server)
	if p.client == "grpc" {
		target = "xds:///" + target
	}
	query := url.Values{"target": {target}, "method": {c.method}, "times": {fmt.Sprint(max(1, c.times))}, "header": {c.kind}}
	if c.fresh {
		query.Set("fresh", "true")
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: m.Pod(pod).Dial, DisableKeepAlives: true}}
	response, err := client.Get("http://" + control + "/?" + query.Encode())
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return strings.Split(strings.TrimSpace(string(text)), "\n"), err
}

// wants waits until all calls have the result, and the mesh has settled.
func (m *grpcMesh) wants(t *testing.T, p grpcPair, pod, service string, c grpcCall, want string) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		got, err := m.ask(p, pod, service, c)
		if err == nil && slices.ContainsFunc(got, func(line string) bool { return !strings.HasPrefix(line, want) }) {
			err = fmt.Errorf("%s calls %s of %s: %q, want %s", pod, c.method, service, got, want)
		}
		return err
	})
}

// fails waits until all calls fail.
func (m *grpcMesh) fails(t *testing.T, p grpcPair, pod, service string, c grpcCall) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		got, err := m.ask(p, pod, service, c)
		if err == nil && slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "OK") }) {
			err = fmt.Errorf("%s calls %s of %s: %q, want that it fails", pod, c.method, service, got)
		}
		return err
	})
}

// apply writes a manifest for each class of servers, until the test's end.
func (m *grpcMesh) apply(t *testing.T, manifest func(class string) string) {
	t.Helper()
	const file = "changed.yaml"
	var text string
	for _, class := range m.classes {
		text += manifest(class) + "\n---\n"
	}
	if err := m.Apply(t.Context(), file, text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Delete(context.WithoutCancel(t.Context()), file); err != nil {
			t.Error(err)
		}
	})
}

// each runs a test for all pairs at once.
func (m *grpcMesh) each(t *testing.T, test func(t *testing.T, p grpcPair)) {
	t.Helper()
	t.Run("pairs", func(t *testing.T) {
		for _, p := range m.pairs() {
			t.Run(strings.ReplaceAll(p.String(), " ", "-"), func(t *testing.T) {
				t.Parallel()
				test(t, p)
			})
		}
	})
}

// eventually waits until the function returns nil.
func eventually(t *testing.T, limit time.Duration, is func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// outputs are those of the containers.
type outputs struct {
	mu   sync.Mutex
	text map[string]*bytes.Buffer
}

func (o *outputs) writer(pod, container string) io.Writer { return output{o, pod + "/" + container} }

type output struct {
	*outputs
	name string
}

func (o output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text[o.name] == nil {
		o.text[o.name] = new(bytes.Buffer)
	}
	return o.text[o.name].Write(p)
}

func (o *outputs) dump(t *testing.T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, text := range o.text {
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		t.Logf("%s:\n%.2000s", name, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
}
