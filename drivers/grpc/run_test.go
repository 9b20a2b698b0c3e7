package grpc

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/test/compile"
)

const check, list = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"

// build compiles the application once for all tests.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "outrigger-grpc-")
	if err != nil {
		return "", err
	}
	app := filepath.Join(dir, "app")
	return app, compile.Build(context.Background(), compile.Options{Folder: "../../test/grpc", Packages: []string{"."}, Output: app})
})

func TestMain(m *testing.M) {
	code := m.Run()
	if app, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(app))
	}
	os.Exit(code)
}

// testMesh is a controller with pods of the class, each a process on an address of its own.
type testMesh struct {
	t    *testing.T
	ctrl *drivertest.Controller
	port uint16

	mu       sync.Mutex
	rejected []string
}

func newTestMesh(t *testing.T) *testMesh {
	w := &testMesh{t: t, port: freePort(t)}
	var err error
	if w.ctrl, err = drivertest.NewController(name, func(r drivertest.Report) {
		if r.Kind == drivertest.Rejected {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.rejected = append(w.rejected, fmt.Sprint(r.Rejection))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := (Driver{}).Start(w.ctrl.Context(t.Context(), w.port)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, r := range w.rejected {
			t.Errorf("gRPC rejected resources: %s", r)
		}
	})
	return w
}

// process is a running application. Its output comes line by line.
type process struct {
	t *testing.T
	// dir has its identity.
	dir   string
	in    io.Writer
	lines chan string
}

// run starts an application as the pod of the View.
func (w *testMesh) run(view *mesh.View, env []string, args ...string) *process {
	w.t.Helper()
	app, err := build()
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	w.renew(view.Proxy, dir)
	bootstrap := strings.NewReplacer(
		"outrigger-controller.osm-system.svc:15130", fmt.Sprintf("127.0.0.1:%d", w.port),
		"$(OUTRIGGER_POD_UID)", view.Proxy.UID, driver.IdentityDir, dir, `"2s"`, `"1s"`,
	).Replace(injected(w.t, envConfig))
	cmd := exec.CommandContext(w.t.Context(), app, args...)
	cmd.Env = append(os.Environ(), append(env, envConfig+"="+bootstrap)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &process{t: w.t, dir: dir, in: in, lines: make(chan string, 100)}
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		close(p.lines)
	}()
	return p
}

// injected returns a variable of the application's container, as Patch sets it.
func injected(t *testing.T, name string) string {
	t.Helper()
	inj := &driver.InjectorContext{
		Pod:   &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}},
		PodOS: "linux", OsmNamespace: "osm-system", Sidecar: driver.Sidecar{Image: "agent", Native: true},
	}
	if err := (Driver{}).Patch(inj); err != nil {
		t.Fatal(err)
	}
	for _, e := range inj.Pod.Spec.Containers[0].Env {
		if e.Name == name {
			return e.Value
		}
	}
	t.Fatalf("Patch does not set %s", name)
	return ""
}

// identityFiles are the files of an identity.
var identityFiles = [...]string{"chain.pem", "key.pem", "bundle.pem"}

// renew writes a new key with its certificate into the folder.
func (w *testMesh) renew(proxy *mesh.Proxy, dir string) {
	w.t.Helper()
	certificate, err := w.ctrl.Authority().IssueTo(proxy, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, content := range [...][]byte{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		w.ctrl.TrustBundle(),
	} {
		if err := os.WriteFile(filepath.Join(dir, identityFiles[i]), content, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

// line returns the next line of the output.
func (p *process) line() string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(20 * time.Second):
		p.t.Fatal("the application writes nothing")
		return ""
	}
}

// call makes a call and returns what the application says of it.
func (p *process) call(method string) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, method); err != nil {
		p.t.Fatal(err)
	}
	return p.line()
}

// await calls until the answer contains the text.
func (p *process) await(method, want string) {
	p.t.Helper()
	var got string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got = p.call(method); strings.Contains(got, want) {
			return
		}
	}
	p.t.Errorf("%s still answers %s, want %s", method, got, want)
}

// pod returns the identity and address of the pod with a number.
func pod(account string, number byte) *mesh.Proxy {
	return &mesh.Proxy{
		Name: mesh.Name{Namespace: "shop", Name: account}, UID: fmt.Sprintf("00000000-0000-4000-8000-0000000000%02d", number), Class: name,
		Identity:  mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: account},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, number})},
	}
}

// view returns the View of a pod that accepts calls at the port, and calls the service.
func view(proxy *mesh.Proxy, port uint16, access mesh.Access, routes []mesh.Route, backends ...*mesh.Backend) *mesh.View {
	inbound := &mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{Port: port, Protocol: mesh.GRPC, Access: access}}}
	cart := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "cart"}, Port: 80}
	destination := &mesh.Destination{
		Name: cart.String(), Service: cart, Port: 80, Protocol: mesh.GRPC, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.2")}, Routes: routes,
	}
	byName := map[string]*mesh.Backend{}
	for _, b := range backends {
		byName[b.Name] = mesh.Seal(b)
	}
	settings := &mesh.Settings{TrustDomain: "cluster.local", InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}}
	copied := *proxy
	return mesh.NewView(mesh.Seal(&copied), mesh.Seal(settings), mesh.Seal(inbound),
		mesh.NewOutbound("shop/"+proxy.Name.Name, mesh.TableOf(map[string]*mesh.Destination{destination.Name: mesh.Seal(destination)}), mesh.TableOf(byName)),
		mesh.Seal(&mesh.Egress{}))
}
