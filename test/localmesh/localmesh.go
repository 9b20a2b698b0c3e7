// Package localmesh runs a complete mesh on one machine without a cluster: it starts the
// pods of manifests, each with the sidecar that the injector adds. The controller, which
// reads the same manifests, the agent and the proxies are the real programs; only the
// cluster is replaced, by a lab. The demo and the behaviour tests use it.
//
// The mesh has the drivers that this program has registered. The controller's program
// must have the same ones.
//
// Service addresses work only through a proxy: pods outside the mesh can reach pods and
// headless services.
package localmesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// Options are the settings of a mesh. Manifests and Programs are required.
type Options struct {
	// Dir is the folder for manifests, keys and certificates. It is created if needed,
	// and existing files are used, so that a mesh can continue an earlier one. Empty
	// means a folder that Close removes.
	Dir string
	// Manifests are the mesh's objects: texts by file names that end in .yaml. They must
	// include a MeshConfig.
	Manifests map[string]string
	// Programs are the mesh's programs.
	Programs Programs
	// Images are the applications' images. A container whose image is missing is not
	// started: its application runs in this program and uses Pod.Listen and Pod.Dial.
	Images map[string]lab.Image
	// ProxyImages are the images of sidecars by class, in place of this machine's files
	// and the program's folder.
	ProxyImages map[string]lab.Image
	// Controller is the command line of the controller. Nil means the default:
	// 'outrigger controller --source dir' with the folders of this mesh.
	Controller []string
	// MeshName and MeshNamespace are the mesh's; the defaults are "osm" and "osm-system".
	MeshName, MeshNamespace string
	// ClassicSidecars says that the cluster does not support native sidecars.
	ClassicSidecars bool
	// Hosts are additional host names for pods, besides those of services.
	Hosts map[string][]netip.Addr
	// DNS starts a server for the names of services, which pods ask as in a cluster. Without it
	// these names are only in their /etc/hosts.
	DNS bool
	// Starts reports whether a pod of the manifests is started. The controller sees the
	// others too, so they can be the endpoints of a large mesh. Nil starts all pods.
	Starts func(*corev1.Pod) bool
	// Prepare, if set, may change a pod of the manifests before its injection. It is called
	// for all pods each time the manifests are read, before anything else happens; an error
	// is one of reading.
	Prepare func(*corev1.Pod) error
	// Change, if set, may change a pod after its injection and before its start.
	Change func(*corev1.Pod) error
	// Strict makes it an error if a part of the manifests cannot be read. Otherwise the mesh
	// uses the rest.
	Strict bool
	// Output returns the writer for the output of a pod's container, and for that of the
	// controller, whose pod is "MESH-NAMESPACE/outrigger-controller"; nil discards it.
	Output func(pod, container string) io.Writer
	// Progress gets a sentence for each step while the mesh is set up. Calls do not
	// overlap.
	Progress func(text string)
	// Log receives warnings; nil discards them.
	Log *slog.Logger
}

// Mesh is a running mesh. Its methods are safe for concurrent use; changes are applied
// one after the other.
type Mesh struct {
	options    Options
	log        *slog.Logger
	temporary  bool
	tokens     identity.TokenKey
	lab        *lab.Lab
	controller controller

	// change is held while pods are reconciled with the manifests.
	change sync.Mutex

	mu   sync.Mutex
	pods map[string]*runningPod
	// hosts are the host names of the current manifests, and data their ConfigMaps
	// and Secrets.
	hosts map[string][]netip.Addr
	data  map[dataKey]map[string]string

	// progressing serializes calls of Options.Progress.
	progressing sync.Mutex

	end   context.CancelFunc
	tasks sync.WaitGroup
	// dns is the socket of the DNS server, or nil.
	dns    net.PacketConn
	closed func() error
}

const (
	// startTimeout bounds the start of the controller and of a pod, unless ctx ends
	// earlier.
	startTimeout = 90 * time.Second
	// poll is the polling interval.
	poll = 50 * time.Millisecond
)

// New starts the controller and then the pods, and returns when every native sidecar has
// started. WaitReady waits for everything else. The mesh ends with ctx or Close. If this
// machine cannot run a lab, the error wraps lab.ErrUnavailable.
func New(ctx context.Context, options Options) (*Mesh, error) {
	if err := lab.Available(); err != nil {
		return nil, err
	}
	options.MeshName, options.MeshNamespace = cmp.Or(options.MeshName, "osm"), cmp.Or(options.MeshNamespace, "osm-system")
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
	desired, err := m.read(m.ManifestDir())
	if err != nil {
		return err
	}
	images, err := m.images()
	if err != nil {
		return err
	}
	m.progress("creating a network for %d pods", len(desired.pods))
	m.hosts, m.data = desired.hosts, desired.data
	var resolvConf func(*corev1.Pod) string
	if m.options.DNS {
		resolvConf = m.resolvConf
	}
	m.lab, err = lab.New(lab.Options{
		Images:        images,
		ResolvConf:    resolvConf,
		Token:         m.token,
		ConfigMap:     m.configMap,
		Secret:        m.secret,
		Hosts:         m.allHosts,
		PodHosts:      m.shortHosts,
		NodeAddresses: nodeAddresses,
		Output:        m.options.Output,
		Log:           m.log,
	})
	if err != nil {
		return err
	}
	if m.options.DNS {
		if err := m.startDNS(); err != nil {
			return err
		}
	}
	m.progress("starting the controller")
	if err := m.StartController(ctx); err != nil {
		return err
	}
	m.change.Lock()
	defer m.change.Unlock()
	return m.reconcile(ctx, desired)
}

// prepare creates the mesh's folders and writes the manifests.
func (m *Mesh) prepare() error {
	if m.options.Dir == "" {
		made, err := os.MkdirTemp("", "outrigger-mesh-")
		if err != nil {
			return fmt.Errorf("creating a folder for the mesh: %w", err)
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
			return fmt.Errorf("creating a folder for the mesh: %w", err)
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

// ManifestDir returns the folder of the manifests, which the controller reads.
func (m *Mesh) ManifestDir() string { return filepath.Join(m.options.Dir, "manifests") }

// CADir returns the folder of the controller's keys and certificates.
func (m *Mesh) CADir() string { return filepath.Join(m.options.Dir, "ca") }

// Lab returns the mesh's lab.
func (m *Mesh) Lab() *lab.Lab { return m.lab }

// Close ends all pods and the controller. Later calls return the first call's error.
func (m *Mesh) Close() error { return m.closed() }

func (m *Mesh) close() error {
	m.end()
	if m.dns != nil {
		_ = m.dns.Close()
	}
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

// follow publishes changes of the trust bundle to the pods, as a kubelet does.
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
			m.log.Warn("publishing the new trust bundle to the pods failed", "error", err)
			continue
		}
		last = now
	}
}

func (m *Mesh) bundle() string { return filepath.Join(m.CADir(), "bundle.crt") }

// configMap is the lab's Options.ConfigMap. Besides those of the manifests there is the trust
// bundle's.
func (m *Mesh) configMap(namespace, name string) (map[string]string, bool) {
	if name != "outrigger-ca" {
		m.mu.Lock()
		defer m.mu.Unlock()
		data, ok := m.data[dataKey{"ConfigMap", namespace, name}]
		return data, ok
	}
	text, err := os.ReadFile(m.bundle())
	if err != nil {
		return nil, false
	}
	return map[string]string{"ca.crt": string(text)}, true
}

// secret is the lab's Options.Secret.
func (m *Mesh) secret(namespace, name string) (map[string]string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.data[dataKey{"Secret", namespace, name}]
	return data, ok
}

// token is the lab's Options.Token. It mints the token that the API server would issue.
func (m *Mesh) token(pod *corev1.Pod, audience string, expires time.Duration) (string, error) {
	return m.tokens.Mint(identity.TokenClaims{
		Namespace: pod.Namespace, ServiceAccount: pod.Spec.ServiceAccountName, Pod: pod.Name, PodUID: string(pod.UID),
		Audience: audience, NotAfter: time.Now().Add(expires),
	})
}

// allHosts is the lab's Options.Hosts.
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

// shortHosts is the lab's Options.PodHosts: services of the pod's own namespace by their names
// alone, which the search list of cluster DNS completes.
func (m *Mesh) shortHosts(pod *corev1.Pod) map[string][]netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	short := make(map[string][]netip.Addr)
	for name, addresses := range m.hosts {
		if own, ok := strings.CutSuffix(name, "."+pod.Namespace); ok {
			short[own] = addresses
		}
	}
	return short
}

func (m *Mesh) progress(format string, args ...any) {
	if m.options.Progress != nil {
		m.progressing.Lock()
		defer m.progressing.Unlock()
		m.options.Progress(fmt.Sprintf(format, args...))
	}
}
