package localmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

const (
	// controllerName is the name of the controller's service, pod and container.
	controllerName = "outrigger-controller"
	// healthPort and debugPort are the controller's ports.
	healthPort = "9091"
	debugPort  = "9092"
)

// controller is the controller's process. A restart reuses it.
type controller struct {
	mu      sync.Mutex
	process *lab.Running
}

// runs reports whether the process runs. The caller holds mu.
func (c *controller) runs() bool {
	if c.process == nil {
		return false
	}
	select {
	case <-c.process.Done():
		return false
	default:
		return true
	}
}

// nodeAddresses are the addresses of the lab's node, on which the controller listens, in
// the networks from which package dir assigns addresses to pods.
var nodeAddresses = []netip.Prefix{netip.MustParsePrefix("198.18.0.1/16"), netip.MustParsePrefix("2001:db8::1/112")}

// controllerCommand returns the command line of the controller.
func (m *Mesh) controllerCommand() []string {
	if m.options.Controller != nil {
		return m.options.Controller
	}
	return []string{
		m.options.Programs.Outrigger, "controller", "--source", "dir", "-f", m.ManifestDir(), "--ca-dir", m.CADir(),
		"--mesh-name", m.options.MeshName, "--mesh-namespace", m.options.MeshNamespace,
		// Pods get a new root by follow, without a kubelet's delay. Their agents poll every
		// two seconds and contact the controller within five.
		"--root-propagation", (200 * poll).String(),
	}
}

// StartController starts the controller, unless it runs, and returns when it is ready.
func (m *Mesh) StartController(ctx context.Context) error {
	m.controller.mu.Lock()
	defer m.controller.mu.Unlock()
	if err := m.launch(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return m.awaitController(limited, m.controller.process)
}

func (m *Mesh) launch(ctx context.Context) error {
	switch {
	case m.controller.runs():
		return nil
	case m.controller.process != nil:
		return m.controller.process.Restart(ctx)
	}
	var output io.Writer
	if m.options.Output != nil {
		output = m.options.Output(m.options.MeshNamespace+"/"+controllerName, "controller")
	}
	process, err := m.lab.StartProcess(ctx, lab.Process{Name: controllerName, Command: m.controllerCommand(), Output: output})
	m.controller.process = process
	return err
}

// KillController kills the controller, as in a crash.
func (m *Mesh) KillController() error {
	m.controller.mu.Lock()
	defer m.controller.mu.Unlock()
	if !m.controller.runs() {
		return errors.New("the controller is not running")
	}
	return m.controller.process.Kill()
}

// Controller returns the controller's process, or nil if it was never started.
func (m *Mesh) Controller() *lab.Running {
	m.controller.mu.Lock()
	defer m.controller.mu.Unlock()
	return m.controller.process
}

// awaitController waits until the controller is ready and has written the trust bundle for
// pods.
func (m *Mesh) awaitController(ctx context.Context, process *lab.Running) error {
	for {
		_, err := m.get(ctx, healthPort, "/health/ready")
		if err == nil {
			_, err = os.Stat(m.bundle())
		}
		if err == nil {
			return nil
		}
		select {
		case <-process.Done():
			return errors.Join(errors.New("the controller ended before it was ready"), process.Wait(ctx))
		case <-ctx.Done():
			return fmt.Errorf("the controller is not ready: %w; its last output:\n%s", err, process.Output())
		case <-time.After(poll):
		}
	}
}

// Debug returns the answer of the controller's debug server to a GET of the path, which
// may have a query. The MeshConfig must enable that server.
func (m *Mesh) Debug(ctx context.Context, path string) ([]byte, error) {
	return m.get(ctx, debugPort, path)
}

// DebugPages returns a handler that passes requests on to the controller's debug server, and
// answers with 502 while there is none.
func (m *Mesh) DebugPages() http.Handler {
	target := &url.URL{Scheme: "http", Host: net.JoinHostPort(nodeAddresses[0].Addr().String(), debugPort)}
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{DialContext: m.lab.Node().Dial, DisableKeepAlives: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "asking the controller: "+err.Error(), http.StatusBadGateway)
		},
	}
}

// Proxy is a proxy that is connected to the controller.
type Proxy struct {
	Name     mesh.Name `json:"name"`
	UID      string    `json:"uid"`
	Class    string    `json:"class"`
	Identity string    `json:"identity"`
	// Version is the version that the proxy reports; it may be empty.
	Version string `json:"version"`
	// State is "Current" if the proxy runs the configuration that was sent last.
	State string `json:"state"`
	// Resources is how many resources the controller has sent over this connection.
	Resources int `json:"resources"`
}

// Proxies returns the connected proxies, sorted by name. It asks the controller's debug
// server.
func (m *Mesh) Proxies(ctx context.Context) ([]Proxy, error) {
	text, err := m.Debug(ctx, "/debug/proxy")
	if err != nil {
		return nil, err
	}
	var proxies []Proxy
	if err := json.Unmarshal(text, &proxies); err != nil {
		return nil, fmt.Errorf("reading /debug/proxy: %w", err)
	}
	slices.SortFunc(proxies, func(a, b Proxy) int { return a.Name.Compare(b.Name) })
	return proxies, nil
}

// maxAnswer bounds an answer of the controller, in bytes.
const maxAnswer = 256 << 20

func (m *Mesh) get(ctx context.Context, port, path string) ([]byte, error) {
	address := net.JoinHostPort(nodeAddresses[0].Addr().String(), port)
	client := &http.Client{Transport: &http.Transport{DialContext: m.lab.Node().Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking the controller: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("asking the controller for %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the controller answers %s with %s: %.500s", path, response.Status, text)
	}
	return text, nil
}
