package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/drivers/envoy"
	"github.com/outrigger-mesh/outrigger/drivers/haproxy"
	"github.com/outrigger-mesh/outrigger/drivers/pipy"
	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// class is one kind of proxy.
type class struct {
	name  string
	finds driver.Finder
	// files returns the configuration, which the proxy finds in "dir".
	files func(*mesh.View) ([]driver.File, error)
	// command is a line of a shell; /proxy is the program.
	command     string
	redirection agentspec.Redirection
	forwarding  drivertest.Forwarding
	// tokenless says that it verifies no tokens.
	tokenless bool
}

// dir is where a proxy finds its configuration.
const dir = "/etc/proxy"

var classes = []*class{
	{
		name: "envoy", finds: envoy.Driver{}, files: standalone, forwarding: drivertest.Forwarding{JoinsLines: true},
		command: `exec /proxy --config-path ` + dir + `/envoy.json --disable-hot-restart --concurrency 1 --log-level error`,
	},
	{
		name: "haproxy", finds: haproxy.Driver{}, files: haproxy.Driver{}.Translate, forwarding: drivertest.Forwarding{LeavesPaths: true},
		command:     `printf 'global\n  nbthread 1\n' >` + driver.RunDir + `/threads.cfg; exec /proxy -W -db -f ` + driver.RunDir + `/threads.cfg -f ` + dir + `/haproxy.cfg 3>/dev/null 4>/dev/null`,
		redirection: agentspec.Redirection{TranslateIPv6: true},
	},
	{
		name: "pipy", tokenless: true, finds: pipy.Driver{}, files: pipy.Driver{}.Translate, forwarding: drivertest.Forwarding{JoinsLines: true},
		command: `exec /proxy --threads=1 --reuse-port --no-reload --no-graph --log-local=stdout --log-level=error ` + dir + `/main.js`,
	},
}

// standalone returns Envoy's configuration as one file.
func standalone(view *mesh.View) ([]driver.File, error) {
	content, err := envoy.Driver{}.Standalone(view)
	return []driver.File{{Name: "envoy.json", Content: content}}, err
}

// workshop is where all proxies of a test run.
type workshop struct {
	lab *lab.Lab
	app *app
	// roots are the mesh's root and one that is not trusted.
	roots []*drivertest.Authority
	dir   string
	// programs are the proxies of this machine, by class.
	programs map[string]string
	// configs are the TLS configurations of the callers, by name.
	configs map[string]*tls.Config
	started int

	mu  sync.Mutex
	log map[string]*strings.Builder
}

func newWorkshop(t testing.TB) *workshop {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	w := &workshop{app: new(app), dir: t.TempDir(), programs: make(map[string]string), log: make(map[string]*strings.Builder)}
	for range 2 {
		root, err := drivertest.NewAuthority()
		if err != nil {
			t.Fatal(err)
		}
		w.roots = append(w.roots, root)
	}
	images := make(map[string]lab.Image)
	for _, c := range classes {
		program, err := c.finds.FindProxy()
		if errors.Is(err, driver.ErrNoProxy) {
			t.Logf("SKIPPED: class %s: %v", c.name, err)
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		w.programs[c.name] = program
		images[c.name] = lab.Image{HostRoot: true, Files: map[string]string{
			"/proxy": program, dir: filepath.Join(w.dir, c.name), driver.IdentityDir: filepath.Join(w.dir, "identity"),
		}}
	}
	if len(w.programs) == 0 {
		t.Skip("SKIPPED: there is no proxy on this machine")
	}
	var err error
	if w.app.certificate, err = w.roots[1].IssueTo(&mesh.Proxy{Identity: server}, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	w.configs = make(map[string]*tls.Config)
	for i := range callers {
		if w.configs[callers[i].name], err = callers[i].config(w.roots); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.writeIdentity(); err != nil {
		t.Fatal(err)
	}
	for name := range w.programs {
		if err := os.MkdirAll(filepath.Join(w.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The folders of a test belong to its user alone, and proxies run as another one.
	for d := w.dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.lab, err = lab.New(lab.Options{Images: images, Output: w.output})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// output collects what the proxies write.
func (w *workshop) output(pod, _ string) io.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log[pod] = new(strings.Builder)
	return lockedWriter{&w.mu, w.log[pod]}
}

func (w *workshop) logOf(pod string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if log := w.log[pod]; log != nil {
		return log.String()
	}
	return ""
}

type lockedWriter struct {
	mu *sync.Mutex
	to *strings.Builder
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to.Len() < 1<<16 {
		w.to.Write(p)
	}
	return len(p), nil
}

// writeIdentity writes the files of the server's identity, as the agent does.
func (w *workshop) writeIdentity() error {
	pair, err := w.roots[0].IssueTo(&mesh.Proxy{Identity: server, UID: "uid"}, 24*time.Hour)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return err
	}
	folder := filepath.Join(w.dir, "identity")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	privateKey := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	for name, content := range map[string][]byte{
		"key.pem": privateKey, "chain.pem": chain, "identity.pem": append(privateKey, chain...), "bundle.pem": w.roots[0].PEM(),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// proxy is a running proxy before the application.
type proxy struct {
	class    *class
	pod      *lab.Pod
	workshop *workshop
	name     string
	// addresses are that of IPv4 and that of IPv6.
	addresses [2]netip.Addr
}

// start runs a proxy of the class with the rules. The application listens at all ports of the
// rules, and at othersPort.
func (w *workshop) start(ctx context.Context, c *class, in *mesh.Inbound) (*proxy, error) {
	w.started++
	n := byte(w.started % 250)
	p := &proxy{
		class: c, workshop: w, name: fmt.Sprintf("shop/%s-%d", c.name, w.started),
		addresses: [2]netip.Addr{netip.AddrFrom4([4]byte{198, 18, 1, n + 1}), netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", int(n)+1))},
	}
	_, name, _ := strings.Cut(p.name, "/")
	view := mesh.NewView(
		mesh.Seal(&mesh.Proxy{Name: mesh.Name{Namespace: "shop", Name: name}, UID: "uid", Class: c.name, Identity: server, Addresses: p.addresses[:]}),
		mesh.Seal(&mesh.Settings{TrustDomain: trustDomain, InboundTLS: in.TLS, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}, Roots: string(w.roots[0].PEM())}),
		in, mesh.NewOutbound("*", mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{}), mesh.Seal(&mesh.Egress{}))
	files, err := c.files(view)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(w.dir, c.name)
	for _, f := range files {
		file := filepath.Join(folder, filepath.FromSlash(f.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, f.Content, 0o644)); err != nil {
			return nil, err
		}
	}
	uid := int64(1500)
	p.pod, err = w.lab.StartPod(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: new(corev1.EmptyDirVolumeSource)}}},
			Containers: []corev1.Container{{
				Name: "proxy", Image: c.name, Command: []string{"/bin/sh", "-c", c.command},
				Env:             []corev1.EnvVar{{Name: agentspec.EnvSpans, Value: "3"}, {Name: agentspec.EnvRecords, Value: "4"}},
				VolumeMounts:    []corev1.VolumeMount{{Name: "run", MountPath: driver.RunDir}},
				SecurityContext: &corev1.SecurityContext{RunAsUser: &uid},
			}},
		},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: p.addresses[0].String()}, {IP: p.addresses[1].String()}}},
	})
	if err != nil {
		return nil, err
	}
	if err := p.open(ctx, in); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, w.logOf(p.name)), p.stop())
	}
	return p, nil
}

// othersPort is a port of the application that the mesh does not know.
const othersPort = 7999

// open redirects the pod's connections, starts the application, and waits for the proxy.
func (p *proxy) open(ctx context.Context, in *mesh.Inbound) error {
	if err := p.pod.Do(func() error { return capture.Apply(p.class.redirection, capture.Options{DNS: []netip.Addr{}}) }); err != nil {
		return err
	}
	ports := []mesh.InboundPort{{Port: othersPort, Protocol: mesh.TCP}}
	for _, port := range append(ports, in.Ports...) {
		l, err := p.pod.Listen(ctx, "tcp", net.JoinHostPort("::", strconv.Itoa(int(port.Port))))
		if err != nil {
			return err
		}
		if port.Protocol.IsHTTP() {
			go p.workshop.app.serve(l)
		} else {
			go p.workshop.app.greet(l)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := p.dial(ctx, othersPort, false)
		if err == nil {
			conn.Close()
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen: %w", p.class.name, err)
		}
	}
}

func (p *proxy) stop() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return p.pod.Stop(ctx)
}

// dial connects to a port of the application.
func (p *proxy) dial(ctx context.Context, port uint16, six bool) (net.Conn, error) {
	to := p.addresses[0]
	if six {
		to = p.addresses[1]
	}
	return p.workshop.lab.Node().Dial(ctx, "tcp", netip.AddrPortFrom(to, port).String())
}
