package localmesh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// desired is the state that the manifests describe.
type desired struct {
	engine offline.Engine
	pods   map[string]*desiredPod
	hosts  map[string][]netip.Addr
	// data has the content of ConfigMaps and Secrets.
	data map[dataKey]map[string]string
}

// desiredPod is a pod before injection, and its JSON.
type desiredPod struct {
	*corev1.Pod
	made []byte
}

// read reads the manifests of a folder. Problems in them are logged, and the mesh uses the rest
// unless it is strict; a missing MeshConfig is an error.
func (m *Mesh) read(folder string) (*desired, error) {
	var config *v1alpha2.MeshConfig
	resolver := newResolver()
	cluster, problems, err := dir.ReadCluster([]string{folder}, dir.Options{
		Mapper: source.MapperOptions{
			MeshName: m.options.MeshName, Resolver: resolver, SidecarClass: inject.ClassOf,
		},
		OnMeshConfig: func(found *v1alpha2.MeshConfig) { config = found },
	})
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	var unreadable []error
	for i := range problems {
		// The user knows the files by their names below the folder.
		p := &problems[i]
		p.Object.Name = strings.TrimPrefix(p.Object.Name, folder+"/")
		p.Message = strings.ReplaceAll(p.Message, folder+"/", "")
		if m.options.Strict && slices.Contains([]string{dir.ReasonUnreadable, dir.ReasonTooMany}, p.Reason) {
			unreadable = append(unreadable, errors.New(p.String()))
			continue
		}
		m.log.Warn("a manifest has a problem", "problem", p.String())
	}
	if len(unreadable) > 0 {
		return nil, errors.Join(unreadable...)
	}
	if config == nil {
		err := errors.New("there is no MeshConfig in the manifests; add one")
		for _, p := range problems {
			err = fmt.Errorf("%w\n%s", err, p)
		}
		return nil, err
	}
	d := &desired{pods: make(map[string]*desiredPod), hosts: hostsOf(cluster)}
	if d.data, err = readData(folder); err != nil {
		return nil, fmt.Errorf("reading ConfigMaps and Secrets: %w", err)
	}
	if d.engine, err = m.newEngine(resolver.Resolve(config), cluster.Namespaces); err != nil {
		return nil, err
	}
	var unprepared []error
	for _, pod := range cluster.Pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || m.options.Starts != nil && !m.options.Starts(pod) {
			continue
		}
		p := pod.DeepCopy()
		p.APIVersion, p.Kind = "v1", "Pod"
		// The API server sets this default before it calls the injector.
		p.Spec.ServiceAccountName = cmp.Or(p.Spec.ServiceAccountName, "default")
		// A change of other status fields, such as readiness, does not replace the pod.
		p.Status = corev1.PodStatus{PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
		if m.options.Prepare != nil {
			if err := m.options.Prepare(p); err != nil {
				unprepared = append(unprepared, err)
				continue
			}
		}
		made, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encoding pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		d.pods[p.Namespace+"/"+p.Name] = &desiredPod{p, made}
	}
	if len(unprepared) > 0 {
		return nil, errors.Join(unprepared...)
	}
	return d, nil
}

// newResolver returns the usual Resolver with the lab's init image, by which useImages
// recognizes the mesh's containers.
func newResolver() *source.Resolver {
	options := meshconfig.Options()
	options.InitImage = initImage
	return source.NewResolver(options)
}

// newEngine returns an injector like the webhook's.
func (m *Mesh) newEngine(config *source.Config, namespaces []*corev1.Namespace) (offline.Engine, error) {
	loaded, err := inject.NewConfig("", "")
	if err != nil {
		return nil, err
	}
	known := make(map[string]*inject.Namespace, len(namespaces))
	for _, ns := range namespaces {
		known[ns.Name] = inject.NamespaceOf(ns)
	}
	for _, p := range config.Problems() {
		m.log.Warn("the MeshConfig has a problem", "problem", p.String())
	}
	engine := injector.New(injector.Assembly{
		Mesh:   meshconfig.Mesh{Name: m.options.MeshName, Namespace: m.options.MeshNamespace, Revision: "default"},
		Config: source.NewLive(config),
		Namespace: func(_ context.Context, name string) (*inject.Namespace, error) {
			if ns := known[name]; ns != nil {
				return ns, nil
			}
			return nil, fmt.Errorf("namespace %q is not known", name)
		},
		NativeSidecars: func(context.Context) (bool, error) { return !m.options.ClassicSidecars, nil },
		Log:            m.log,
	})
	engine.Use(loaded)
	return engine, nil
}

// inject returns the pod to start, with a sidecar if the injector adds one.
func (d *desired) inject(ctx context.Context, p *desiredPod) (*corev1.Pod, error) {
	name := p.Namespace + "/" + p.Name
	manifests := offline.Parse([]offline.Source{{Name: name, Data: p.made}})
	result, err := manifests.Inject(ctx, d.engine, offline.Options{Namespace: p.Namespace})
	if err != nil {
		return nil, fmt.Errorf("injecting pod %s: %w", name, err)
	}
	pod := new(corev1.Pod)
	if err := json.Unmarshal(result.Outputs[0].Data, pod); err != nil {
		return nil, fmt.Errorf("reading the injected pod %s: %w", name, err)
	}
	return pod, nil
}

// The lab's images of the containers that the mesh adds to pods.
const (
	initImage  = "localmesh/init"
	proxyImage = "localmesh/proxy-"
)

// binDir is in the containers' PATH, and empty on most machines.
const binDir = "/usr/local/bin"

// images returns the images of the applications and of the mesh's containers.
func (m *Mesh) images() (map[string]lab.Image, error) {
	images := maps.Clone(m.options.Images)
	if images == nil {
		images = make(map[string]lab.Image)
	}
	images[initImage] = lab.Image{Files: map[string]string{"/outrigger-agent": m.options.Programs.Agent}}
	for class, program := range m.options.Programs.Proxies {
		if image, ok := m.options.ProxyImages[class]; ok {
			images[proxyImage+class] = image
			continue
		}
		folder, err := m.folderOf(class, program)
		if err != nil {
			return nil, fmt.Errorf("the program of sidecar class %s, %s: %w", class, program, err)
		}
		images[proxyImage+class] = lab.Image{Files: map[string]string{binDir: folder}, HostRoot: true}
	}
	return images, nil
}

// folderOf returns a folder that contains the program under the given name and under its
// own. A folder can be mounted over an existing one in a container; a file would need an
// existing file.
func (m *Mesh) folderOf(name, program string) (string, error) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", err
	}
	folder := filepath.Dir(real)
	if filepath.Base(real) == name {
		return folder, nil
	}
	folder = filepath.Join(m.options.Dir, "programs", name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	from, err := os.Open(real)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return "", err
	}
	err = os.Symlink(name, filepath.Join(folder, filepath.Base(real)))
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return folder, err
}

// useImages replaces the images of the mesh's containers by the lab's images.
func (m *Mesh) useImages(pod *corev1.Pod) error {
	class := inject.ClassOf(pod)
	if class == "" {
		return nil
	}
	program := m.options.Programs.Proxies[class]
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			switch containers[i].Name {
			case "outrigger-init":
				containers[i].Image = initImage
			case "outrigger-proxy":
				if sidecar.IsProxyless(class) {
					containers[i].Image = initImage
					continue
				}
				if program == "" {
					return fmt.Errorf("pod %s/%s: there is no program for its sidecar class %q; the mesh was given %s",
						pod.Namespace, pod.Name, class, cmp.Or(strings.Join(slices.Sorted(maps.Keys(m.options.Programs.Proxies)), ", "), "none"))
				}
				containers[i].Image = proxyImage + class
			}
		}
	}
	return nil
}
