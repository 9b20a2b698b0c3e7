package envoy

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// machine is a separate network namespace with only loopback, so that the listeners of
// Envoy and of the test's controller do not collide with others.
type machine struct {
	t        *testing.T
	work     chan func()
	logLevel string
	// nameserver is the address of the DNS server, empty for none.
	nameserver string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("networks and mounts of its own need root")
	}
	m := &machine{t: t, work: make(chan func()), logLevel: "info"}
	ready := make(chan error)
	go func() {
		// The thread ends with the goroutine, since no other must run in its network.
		runtime.LockOSThread()
		err := syscall.Unshare(syscall.CLONE_NEWNET)
		if err == nil {
			var lo netlink.Link
			if lo, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(lo)
			}
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range m.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Skip("no network of its own: ", err)
	}
	t.Cleanup(func() { close(m.work) })
	return m
}

// do runs the function in the network namespace.
func (m *machine) do(f func()) {
	done := make(chan struct{})
	m.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// get fetches the URL in the network namespace.
func (m *machine) get(url string) (int, string) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			m.do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
			return conn, err
		},
	}}
	response, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// startController has the driver serve in the network namespace, and returns a function
// that stops it.
func (m *machine) startController(c *core) (stop func()) {
	m.t.Helper()
	return m.serve(func(ctx context.Context) error {
		_, err := Driver{}.Start(c.context(ctx, 0))
		return err
	})
}

// serve calls the function, which must listen at the controller's port until ctx ends.
func (m *machine) serve(start func(context.Context) error) (stop func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	m.do(func() { err = start(ctx) })
	if err != nil {
		m.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		m.eventually("the controller ends", func() bool {
			var conn net.Conn
			m.do(func() { conn, err = net.Dial("tcp", "127.0.0.1:15128") })
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
	})
	m.t.Cleanup(stop)
	return stop
}

func (m *machine) eventually(what string, ok func() bool) {
	m.t.Helper()
	eventually(m.t, what, ok)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("condition not reached: %s", what)
		}
	}
}

// podEnvoy is an Envoy as it runs in a pod, with the files of Patch and of the agent.
type podEnvoy struct {
	*machine
	core          *core
	run, identity string
	log           *lockedBuffer
	pid           int
	end           func()
}

type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// writeIdentityLikeTheAgent writes the files to a new directory and swaps the link to
// it.
func writeIdentityLikeTheAgent(t *testing.T, dir string, ca *authority, id mesh.Identity, uid string, roots ...*authority) {
	t.Helper()
	pair := ca.issueTo(id, uid)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	var bundle []byte
	for _, root := range roots {
		bundle = append(bundle, block("CERTIFICATE", root.Leaf.Raw)...)
	}
	version, err := os.MkdirTemp(dir, "..v")
	if err != nil {
		t.Fatal(err)
	}
	if err := writeIdentity(version, block("CERTIFICATE", pair.Certificate[0]), block("PRIVATE KEY", key), bundle); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := errors.Join(os.Symlink(filepath.Base(version), next), os.Rename(next, filepath.Join(dir, "..data"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"key.pem", "chain.pem", "bundle.pem"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

// startSidecar runs Envoy for the proxy, with this /etc/hosts and the machine's DNS server.
// The changes are applied to the files of Patch.
func (m *machine) startSidecar(p *mesh.Proxy, c *core, hosts string, changes ...func(string) string) *podEnvoy {
	m.t.Helper()
	program, err := Driver{}.FindProxy()
	if errors.Is(err, driver.ErrNoProxy) {
		m.t.Skip(err)
	} else if err != nil {
		m.t.Fatal(err)
	}
	dir := m.t.TempDir()
	s := &podEnvoy{machine: m, core: c, run: filepath.Join(dir, "run"), identity: filepath.Join(dir, "identity"), log: new(lockedBuffer)}
	for _, d := range []string{s.run, s.identity} {
		if err := os.Mkdir(d, 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
	variables := map[string]string{
		"POD_UID": p.UID, "POD_IP": "127.0.0.1", "POD_NAMESPACE": p.Namespace, "POD_NAME": p.Name.Name,
		"SERVICE_ACCOUNT": p.Identity.ServiceAccount, "OUTRIGGER_CONTROLLER": drivertest.ControllerName,
	}
	write := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
	for _, f := range files(driver.ADSPort) {
		for _, change := range changes {
			f.Content = change(f.Content)
		}
		write(filepath.Join(s.run, filepath.Base(f.Path)), os.Expand(f.Content, func(name string) string { return variables[name] }))
	}
	write(filepath.Join(dir, "hosts"), hosts)
	resolvConf := ""
	if m.nameserver != "" {
		resolvConf = "nameserver " + m.nameserver + "\noptions timeout:1 attempts:1\n"
	}
	write(filepath.Join(dir, "resolv.conf"), resolvConf)
	writeIdentityLikeTheAgent(m.t, s.identity, c.ca, p.Identity, p.UID, c.ca)
	serveSecretsLikeTheAgent(m.t, s.identity)

	script := fmt.Sprintf(`set -e
mount --make-rprivate /
mount --bind %[1]s/hosts /etc/hosts
mount --bind %[1]s/resolv.conf /etc/resolv.conf
mount -t tmpfs none /run
mkdir /run/outrigger /run/outrigger-identity
mount --bind %[1]s/run /run/outrigger
mount --bind %[1]s/identity /run/outrigger-identity
exec %[2]s --config-path /run/outrigger/envoy.yaml --disable-hot-restart --concurrency 1 --log-level %[3]s
`, dir, program, m.logLevel)
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Env = os.Environ()
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	m.do(func() { err = cmd.Start() })
	if err != nil {
		m.t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	m.t.Cleanup(func() {
		s.end()
		if m.t.Failed() {
			m.t.Log(s.log.String())
			m.t.Log(s.core.noted())
		}
	})
	return s
}

// admin requests a path of Envoy's admin page.
func (s *podEnvoy) admin(path string) string {
	_, body := s.get("http://127.0.0.1:15000" + path)
	return body
}

func (s *podEnvoy) ready() bool { return strings.HasPrefix(s.admin("/ready"), "LIVE") }

const loopbackHosts = "127.0.0.1 localhost\n127.0.0.1 " + drivertest.ControllerName + "\n"

func TestRealEnvoyIsServed(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	view := views()["http"].view()
	c.set(view)
	m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	m.eventually("Envoy is ready", envoy.ready)
	m.eventually("all is acknowledged", func() bool { return c.runs(view) })
	if clusters := envoy.admin("/clusters"); !strings.Contains(clusters, "10.244.0.11:14001") {
		t.Errorf("Envoy has the endpoints\n%s", clusters)
	}
}

// viewOf returns the fixture's View with unshared parts, which may be changed.
func viewOf(f fixture) *mesh.View {
	destinations, backends := f.destinations, f.backends
	f.destinations, f.backends = nil, nil
	for _, d := range destinations {
		fresh := *d
		f.destinations = append(f.destinations, &fresh)
	}
	for _, b := range backends {
		fresh := *b
		f.backends = append(f.backends, &fresh)
	}
	return f.view()
}

// sentSince returns the number of resources of each event after the first n.
func sentSince(c *core, n int) []string {
	var sent []string
	for _, event := range c.noted()[n:] {
		if strings.HasPrefix(event, "sent") {
			sent = append(sent, event)
		}
	}
	return sent
}

// TestRealEnvoyKeepsTheLastGood sends Envoy a resource that it rejects together with
// good ones, and then restarts the controller.
func TestRealEnvoyKeepsTheLastGood(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	view := views()["http"].view()
	c.set(view)
	m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	m.eventually("Envoy runs the first View", func() bool { return envoy.ready() && c.runs(view) })

	// Envoy rejects a listener at the address of another one, and accepts the new service.
	f := views()["http"]
	orders := port("orders", 8080)
	b := backend(orders, mesh.HTTP, endpoint(8080, "10.244.0.77"))
	f.destinations = append(f.destinations, destination(orders, mesh.HTTP, "10.96.0.77", b))
	f.backends = append(f.backends, b)
	twin := destination(port("twin", 8080), mesh.TCP, "10.96.0.77", b)
	f.destinations = append(f.destinations, twin)
	refused := viewOf(f)
	c.set(refused)
	m.eventually("the rejection is reported", func() bool { return len(c.rejections()) > 0 })
	m.eventually("the new service is there", func() bool { return strings.Contains(envoy.admin("/clusters"), "10.244.0.77:8080") })
	r := c.rejections()[0]
	if r.Version != refused.Digest().String() || len(r.Resources) != 1 || r.Resources[0] != "Listener bookstore/twin:8080" || !strings.Contains(r.Message, "address") {
		t.Errorf("the rejection is %+v", r)
	}
	if len(r.Objects) == 0 || r.Objects[0].String() != "Service bookstore/twin" {
		t.Errorf("the rejection is of the objects %v", r.Objects)
	}
	if listeners := envoy.admin("/listeners"); strings.Contains(listeners, "bookstore/twin:8080") || !strings.Contains(listeners, "bookstore/orders:8080") {
		t.Errorf("Envoy has the listeners\n%s", listeners)
	}
	// Rejected resources are not sent again when something else changes.
	before := len(c.noted())
	grown := *b
	grown.Endpoints = append(grown.Endpoints, endpoint(8080, "10.244.0.78"))
	f.backends[len(f.backends)-1] = &grown
	c.set(viewOf(f))
	m.eventually("the new endpoint is there", func() bool { return strings.Contains(envoy.admin("/clusters"), "10.244.0.78:8080") })
	if diff := cmp.Diff([]string{"sent 1 resources"}, sentSince(c, before)); diff != "" {
		t.Errorf("one endpoint has changed (-want +got):\n%s", diff)
	}
	c.set(view)
	m.eventually("Envoy runs the first View again", c.lastAcked)
	if !envoy.ready() || strings.Contains(envoy.log.String(), "critical") {
		t.Error("Envoy is not ready")
	}
}

// TestRealEnvoyConnectsAgain restarts the controller of a running Envoy.
func TestRealEnvoyConnectsAgain(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	f := views()["split"]
	view := viewOf(f)
	c.set(view)
	stop := m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	m.eventually("Envoy runs the View", func() bool { return envoy.ready() && c.runs(view) })
	stop()
	if !envoy.ready() {
		t.Error("without a controller Envoy is not ready any more")
	}
	before := len(c.noted())
	m.startController(c)
	m.eventually("Envoy is back", func() bool { return len(c.noted()) > before && c.lastAcked() })
	if sent := sentSince(c, before); len(sent) > 0 {
		t.Errorf("nothing has changed, but %q was sent", sent)
	}
	// A single change is a single resource.
	changed := *f.backends[0]
	changed.Endpoints = append(changed.Endpoints, endpoint(14001, "10.244.0.99"))
	f.backends[0] = &changed
	before = len(c.noted())
	next := viewOf(f)
	c.set(next)
	m.eventually("Envoy runs the next View", func() bool { return c.runs(next) })
	if diff := cmp.Diff([]string{"sent 1 resources"}, sentSince(c, before)); diff != "" {
		t.Errorf("after a change of one endpoint (-want +got):\n%s", diff)
	}
	if !strings.Contains(envoy.admin("/clusters"), "10.244.0.99:14001") {
		t.Error("Envoy lacks the new endpoint")
	}
}

// TestRealEnvoyTakesNewRoots swaps the agent's files as the agent does, and then makes
// the controller trust only the new root.
func TestRealEnvoyTakesNewRoots(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	view := views()["http"].view()
	c.set(view)
	stop := m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	m.eventually("Envoy is ready", envoy.ready)
	former, next := c.ca, newAuthority(t)
	writeIdentityLikeTheAgent(t, envoy.identity, next, view.Proxy.Identity, view.Proxy.UID, former, next)
	stop()
	c.trust(next)
	before := len(c.noted())
	m.startController(c)
	m.eventually("Envoy shows its new certificate and trusts the new root", func() bool {
		return len(c.noted()) > before && c.lastAcked()
	})
}

// TestRealEnvoyUsesSotW has an Envoy use the SotW protocol.
func TestRealEnvoyUsesSotW(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	f := views()["split"]
	view := viewOf(f)
	c.set(view)
	m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts, func(content string) string { return strings.Replace(content, "DELTA_GRPC", "GRPC", 1) })
	m.eventually("Envoy runs the View", func() bool { return envoy.ready() && c.runs(view) })
	changed := *f.backends[0]
	changed.Policy.MaxConnections = new(uint32(7))
	changed.Endpoints = append(changed.Endpoints, endpoint(14001, "10.244.0.99"))
	gone := f.backends[len(f.backends)-1].Name
	f.backends = append([]*mesh.Backend{&changed}, f.backends[1:len(f.backends)-1]...)
	next := viewOf(f)
	c.set(next)
	m.eventually("Envoy runs the next View", func() bool { return c.runs(next) })
	if got := envoy.admin("/clusters"); !strings.Contains(got, "10.244.0.99:14001") || strings.Contains(got, gone+"::") {
		t.Errorf("Envoy's clusters are\n%s", got)
	}
	if r := c.rejections(); len(r) > 0 {
		t.Errorf("Envoy rejects %v", r)
	}
}
