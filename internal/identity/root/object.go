package root

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// KubeObjects reads MeshRootCertificates of one namespace from an API server. It needs get,
// list and watch.
type KubeObjects struct {
	client    dynamic.Interface
	namespace string
	log       *slog.Logger
}

var _ Objects = (*KubeObjects)(nil)

// NewKubeObjects returns the objects of a namespace.
func NewKubeObjects(client dynamic.Interface, namespace string, log *slog.Logger) *KubeObjects {
	return &KubeObjects{client, namespace, log}
}

// List lists the objects in the API server.
func (o *KubeObjects) List(ctx context.Context) ([]v1alpha2.MeshRootCertificate, error) {
	list, err := o.client.Resource(resource).Namespace(o.namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // The CRD is not installed.
	}
	if err != nil {
		return nil, err
	}
	all := make([]v1alpha2.MeshRootCertificate, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &all[i]); err != nil {
			return nil, fmt.Errorf("MeshRootCertificate %s/%s: %w", o.namespace, list.Items[i].GetName(), err)
		}
	}
	return all, nil
}

var resource = v1alpha2.SchemeGroupVersion.WithResource("meshrootcertificates")

// Watch watches the API server. If the server does not have the kind, Watch retries at
// growing intervals.
func (o *KubeObjects) Watch(ctx context.Context, changed func()) {
	informer := dynamicinformer.NewFilteredDynamicInformer(o.client, resource, o.namespace, 0, cache.Indexers{}, nil).Informer()
	watch(ctx, informer, o.log.With("kind", "MeshRootCertificate"), changed)
}

// DirObjects reads MeshRootCertificates from manifests: files, and all .yaml, .yml and .json
// files in folders at any depth whose names do not begin with a dot. Other objects are
// ignored. If a file cannot be read, its last readable content is used. Namespaces are
// ignored. Objects without a creationTimestamp are older than all others.
type DirObjects struct {
	paths []string
	log   *slog.Logger

	mu    sync.Mutex
	files map[string]manifest
}

var _ Objects = (*DirObjects)(nil)

// manifest is the content of a file.
type manifest struct {
	text    []byte
	objects []v1alpha2.MeshRootCertificate
}

// maxManifest limits the size of a file, in bytes.
const maxManifest = 32 << 20

// NewDirObjects returns the objects in files and folders.
func NewDirObjects(paths []string, log *slog.Logger) *DirObjects {
	return &DirObjects{paths: paths, log: log, files: make(map[string]manifest)}
}

// List reads the files that have changed.
func (o *DirObjects) List(context.Context) ([]v1alpha2.MeshRootCertificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	names, err := o.find()
	if err != nil {
		return nil, err
	}
	files := make(map[string]manifest)
	byName := make(map[string]v1alpha2.MeshRootCertificate)
	for _, name := range names {
		text, err := readManifest(name)
		was := o.files[name]
		now := was
		if err == nil && !bytes.Equal(text, was.text) {
			now = manifest{text: text}
			now.objects, err = parseManifest(text)
		}
		if err != nil {
			o.log.Warn("cannot read a manifest; using its last readable MeshRootCertificates", "file", name, "error", err)
			now.objects = was.objects
		}
		files[name] = now
		for _, object := range now.objects {
			byName[object.Name] = object
		}
	}
	o.files = files
	var all []v1alpha2.MeshRootCertificate
	for _, object := range byName {
		all = append(all, object)
	}
	return all, nil
}

func (o *DirObjects) find() ([]string, error) {
	var names []string
	for _, path := range o.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			names = append(names, path)
			continue
		}
		err = fs.WalkDir(os.DirFS(path), ".", func(below string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case strings.HasPrefix(entry.Name(), ".") && below != "." && entry.IsDir():
				return fs.SkipDir
			case !entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(below)):
				names = append(names, filepath.Join(path, below))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Watch checks the files every half second.
func (o *DirObjects) Watch(ctx context.Context, changed func()) {
	poll(ctx, defaultPoll, func() string {
		names, err := o.find()
		if err != nil {
			return err.Error()
		}
		var b strings.Builder
		for _, name := range names {
			if info, err := os.Stat(name); err == nil {
				fmt.Fprintf(&b, "%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
			}
		}
		return b.String()
	}, changed)
}

func readManifest(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(text) > maxManifest {
		err = fmt.Errorf("%s has more than %d bytes", name, maxManifest)
	}
	return text, err
}

// parseManifest returns the MeshRootCertificates of a file, including those in Lists.
func parseManifest(text []byte) ([]v1alpha2.MeshRootCertificate, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var all []v1alpha2.MeshRootCertificate
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		// Skip parsing the many documents without one.
		if !bytes.Contains(document, []byte("MeshRootCertificate")) {
			continue
		}
		content, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, err
		}
		found, err := parseDocument(content)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
}

// parseDocument returns the MeshRootCertificates of an object, which may be a List.
func parseDocument(content []byte) ([]v1alpha2.MeshRootCertificate, error) {
	var list struct {
		Kind  string          `json:"kind"`
		Items json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, err
	}
	objects := []json.RawMessage{content}
	if strings.HasSuffix(list.Kind, "List") {
		_ = json.Unmarshal(list.Items, &objects) // Other Lists than of objects are ignored.
	}
	var all []v1alpha2.MeshRootCertificate
	for _, object := range objects {
		var is metav1.TypeMeta
		if err := json.Unmarshal(object, &is); err != nil || is.Kind != "MeshRootCertificate" || is.APIVersion != v1alpha2.SchemeGroupVersion.String() {
			continue
		}
		var one v1alpha2.MeshRootCertificate
		if err := json.Unmarshal(object, &one); err != nil {
			return nil, err
		}
		if one.Name == "" {
			return nil, errors.New("a MeshRootCertificate has no metadata.name")
		}
		all = append(all, one)
	}
	return all, nil
}
