// Package localmesh is a whole mesh on one machine and without a cluster: manifests
// in, and their pods run, each with the sidecar that the injector gives it. The
// controller is the real program, which reads the same manifests, and so are the
// agent and the proxies; only the cluster is a lab. The demo and the tests of
// behaviour stand on it.
//
// The drivers that the program has registered are those of the mesh, so it imports
// them, and the controller's program must have the same.
//
// A service has no address of its own that works without a proxy: pods outside of
// the mesh reach pods, and headless services.
package localmesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/lab"
)

// Options say which mesh there is. Manifests and Programs are required.
type Options struct {
	// Dir is the folder for manifests, keys and certificates. It is made if need be,
	// and what is in it counts, so a mesh can go on from another. Empty means a folder
	// that Close removes.
	Dir string
	// Manifests are the mesh's objects, texts by names of files that end in .yaml. A
	// MeshConfig must be among them.
	Manifests map[string]string
	// Programs are those of the mesh.
	Programs Programs
	// Images are those of the applications. A container whose image is not here is not
	// started: its application lives in this program, by Pod.Listen and Pod.Dial.
	Images map[string]lab.Image
	// ProxyImages are what sidecars of a class have as their files, in the place of this
	// machine's own and the folder of the program.
	ProxyImages map[string]lab.Image
	// Controller is the command line of the controller. Nil means the default:
	// 'outrigger controller --source dir' with the folders of this mesh.
	Controller []string
	// MeshName and MeshNamespace are the mesh's; "osm" and "osm-system" unless given.
	MeshName, MeshNamespace string
	// ClassicSidecars says that the cluster does not know native sidecars.
	ClassicSidecars bool
	// Hosts are names that pods know beside those of services.
	Hosts map[string][]netip.Addr
	// Output returns where the output of a pod's container goes, and that of the
	// controller, whose pod is "MESH-NAMESPACE/outrigger-controller"; nil is nowhere.
	Output func(pod, container string) io.Writer
	// Progress gets a sentence for each thing that is done while the mesh is set up, one
	// after the other.
	Progress func(text string)
	// Log gets warnings; nil is nowhere.
	Log *slog.Logger
}

// Mesh is a mesh that runs. Its methods can be called from any goroutine; changes
// wait for each other.
type Mesh struct {
	options    Options
	log        *slog.Logger
	temporary  bool
	tokens     identity.TokenKey
	lab        *lab.Lab
	controller controller

	// change is held while pods are brought in line with the manifests.
	change sync.Mutex

	mu   sync.Mutex
	pods map[string]*runningPod
	// hosts is what pods know, as the manifests say last.
	hosts map[string][]netip.Addr

	telling sync.Mutex

	end    context.CancelFunc
	tasks  sync.WaitGroup
	closed func() error
}

const (
	// shortly is how long the controller and a pod may take to start where ctx sets
	// no earlier end.
	shortly = 90 * time.Second
	// poll is how often something is looked at that does not tell of itself.
	poll = 50 * time.Millisecond
)

// New starts the controller and then the pods, and returns when every native sidecar
// is ready. Whether everything else is, WaitReady tells. The mesh ends with ctx or by
// Close. The error of a machine that cannot do this wraps lab.ErrUnavailable.
func New(ctx context.Context, options Options) (*Mesh, error) {
	if err := lab.Available(); err != nil {
		return nil, err
	}
	if options.MeshName == "" {
		options.MeshName = "osm"
	}
	if options.MeshNamespace == "" {
		options.MeshNamespace = "osm-system"
	}
	m := &Mesh{options: options, log: options.Log, pods: make(map[string]*runningPod)}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	running, end := context.WithCancel(ctx)
	m.end = end
	m.closed = sync.OnceValue(m.close)
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	m.tasks.Go(func() { m.follow(running) })
	context.AfterFunc(running, func() {
		if err := m.Close(); err != nil && ctx.Err() != nil {
			m.log.Warn("the mesh did not end cleanly", "error", err)
		}
	})
	return m, nil
}

func (m *Mesh) start(ctx context.Context) error {
	if err := m.prepare(); err != nil {
		return err
	}
	wanted, err := m.read()
	if err != nil {
		return err
	}
	images, err := m.images()
	if err != nil {
		return err
	}
	m.progress("making a network for %d pods", len(wanted.pods))
	m.hosts = wanted.hosts
	m.lab, err = lab.New(lab.Options{
		Images:        images,
		Token:         m.token,
		ConfigMap:     m.configMap,
		Hosts:         m.allHosts,
		NodeAddresses: nodeAddresses,
		Output:        m.options.Output,
		Log:           m.log,
	})
	if err != nil {
		return err
	}
	m.progress("starting the controller")
	if err := m.StartController(ctx); err != nil {
		return err
	}
	m.change.Lock()
	defer m.change.Unlock()
	return m.reconcile(ctx, wanted)
}

// prepare writes what the mesh begins with.
func (m *Mesh) prepare() error {
	if m.options.Dir == "" {
		made, err := os.MkdirTemp("", "outrigger-mesh-")
		if err != nil {
			return fmt.Errorf("making a folder for the mesh: %w", err)
		}
		m.options.Dir, m.temporary = made, true
	}
	absolute, err := filepath.Abs(m.options.Dir)
	if err != nil {
		return err
	}
	m.options.Dir = absolute
	for _, folder := range []string{m.ManifestDir(), m.CADir()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("making a folder for the mesh: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.options.Manifests)) {
		if err := m.write(name, m.options.Manifests[name]); err != nil {
			return err
		}
	}
	m.tokens, err = identity.LoadTokenKey(m.CADir())
	return err
}

// ManifestDir is the folder of the manifests, as the controller reads them.
func (m *Mesh) ManifestDir() string { return filepath.Join(m.options.Dir, "manifests") }

// CADir is the folder of the controller's keys and certificates.
func (m *Mesh) CADir() string { return filepath.Join(m.options.Dir, "ca") }

// Lab returns what the mesh runs on.
func (m *Mesh) Lab() *lab.Lab { return m.lab }

// Close ends all pods and the controller. Later calls return what the first did.
func (m *Mesh) Close() error { return m.closed() }

func (m *Mesh) close() error {
	m.end()
	m.tasks.Wait()
	var errs []error
	if m.lab != nil {
		errs = append(errs, m.lab.Close())
	}
	if m.temporary {
		errs = append(errs, os.RemoveAll(m.options.Dir))
	}
	return errors.Join(errs...)
}

// follow passes a changed trust bundle on to the pods, as a kubelet does.
func (m *Mesh) follow(ctx context.Context) {
	last, _ := os.ReadFile(m.bundle())
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * poll):
		}
		now, err := os.ReadFile(m.bundle())
		if err != nil || string(now) == string(last) {
			continue
		}
		if err := m.lab.Refresh(); err != nil && !errors.Is(err, lab.ErrClosed) {
			m.log.Warn("the pods do not see the new trust bundle", "error", err)
			continue
		}
		last = now
	}
}

func (m *Mesh) bundle() string { return filepath.Join(m.CADir(), "bundle.crt") }

// configMap is for the lab: the one ConfigMap that there is.
func (m *Mesh) configMap(_, name string) (map[string]string, bool) {
	if name != "outrigger-ca" {
		return nil, false
	}
	text, err := os.ReadFile(m.bundle())
	if err != nil {
		return nil, false
	}
	return map[string]string{"ca.crt": string(text)}, true
}

// token is for the lab: what the API server would give to a pod.
func (m *Mesh) token(pod *corev1.Pod, audience string, expires time.Duration) (string, error) {
	return m.tokens.Mint(identity.TokenClaims{
		Namespace: pod.Namespace, ServiceAccount: pod.Spec.ServiceAccountName, Pod: pod.Name, PodUID: string(pod.UID),
		Audience: audience, NotAfter: time.Now().Add(expires),
	})
}

// allHosts is for the lab.
func (m *Mesh) allHosts() map[string][]netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	hosts := maps.Clone(m.options.Hosts)
	if hosts == nil {
		hosts = make(map[string][]netip.Addr)
	}
	maps.Copy(hosts, m.hosts)
	for _, form := range forms {
		name := controllerName + "." + m.options.MeshNamespace + form
		for _, node := range nodeAddresses {
			hosts[name] = append(hosts[name], node.Addr())
		}
	}
	return hosts
}

func (m *Mesh) progress(format string, args ...any) {
	if m.options.Progress != nil {
		m.telling.Lock()
		defer m.telling.Unlock()
		m.options.Progress(fmt.Sprintf(format, args...))
	}
}
