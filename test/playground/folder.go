package playground

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/manifest"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// folder is the user's manifests: files and folders, of which hidden entries are left out.
type folder struct {
	paths []string
	// class, if not empty, replaces the MeshConfig's sidecar class.
	class string
}

const (
	meshName, meshNamespace = "osm", "osm-system"
	// ownManifest is the file of the MeshConfig if the user has none.
	ownManifest = "outrigger-lab.yaml"
	// gatewayManifest is the file of what the lab makes for Gateways.
	gatewayManifest = "outrigger-lab-gateways.yaml"
)

// isManifest reports whether a file is one of manifests, and not hidden.
func isManifest(name string) bool {
	return manifest.IsFile(name) && !strings.HasPrefix(filepath.Base(name), ".")
}

// files returns the files of the manifests, by the names that the mesh gives them.
func (f *folder) files() (map[string]string, error) {
	all := make(map[string]string)
	for i, path := range f.paths {
		// Several folders can have files of the same name.
		prefix := ""
		if len(f.paths) > 1 {
			prefix = fmt.Sprintf("%d-%s", i+1, strings.TrimLeft(filepath.Base(path), "."))
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			if !isManifest(path) {
				return nil, fmt.Errorf("%s: a manifest's name ends in .yaml, .yml or .json", path)
			}
			all[filepath.Join(prefix, filepath.Base(path))] = path
			continue
		}
		err = fs.WalkDir(os.DirFS(path), ".", func(below string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case below != "." && strings.HasPrefix(entry.Name(), "."):
				if entry.IsDir() {
					return fs.SkipDir
				}
			case !entry.IsDir() && isManifest(below):
				// A link whose target is missing may be in the middle of being replaced.
				if info, err := os.Stat(filepath.Join(path, below)); err == nil && info.Mode().IsRegular() {
					all[filepath.Join(prefix, below)] = filepath.Join(path, below)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// stamp changes whenever a file does.
func (f *folder) stamp() string {
	files, err := f.files()
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		info, err := os.Stat(files[name])
		if err != nil {
			b.WriteString(fmt.Sprintln(name, err))
			continue
		}
		b.WriteString(fmt.Sprintln(name, info.Size(), info.ModTime().Format(time.RFC3339Nano)))
	}
	return b.String()
}

// read returns the manifests as the mesh needs them, and a sentence about each change that the
// user should know.
func (f *folder) read() (manifests map[string]string, notes []string, err error) {
	files, err := f.files()
	if err != nil {
		return nil, nil, err
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("there is no .yaml, .yml or .json file in %s", strings.Join(f.paths, ", "))
	}
	manifests = make(map[string]string, len(files))
	configured := false
	gateways := new(localmesh.Gateways)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, err := os.ReadFile(files[name])
		if err != nil {
			return nil, nil, err
		}
		var b bytes.Buffer
		for _, document := range manifest.Split(text) {
			b.Write(document.Before)
			changed, found, more := f.adapt(document, gateways)
			configured = configured || found
			notes = append(notes, more...)
			b.Write(changed)
			b.Write(document.After)
		}
		manifests[name] = b.String()
	}
	made, more, err := gateways.Manifest()
	if err != nil {
		return nil, nil, err
	}
	if made != "" {
		if manifests[gatewayManifest] != "" {
			return nil, nil, fmt.Errorf("%s: the lab needs this name for its own manifest; give the file another one", gatewayManifest)
		}
		manifests[gatewayManifest], notes = made, append(notes, more...)
	}
	if configured {
		return manifests, notes, nil
	}
	if manifests[ownManifest] != "" {
		return nil, nil, fmt.Errorf("%s: the lab needs this name for its own manifest; give the file another one", ownManifest)
	}
	manifests[ownManifest], err = f.meshConfig()
	return manifests, append(notes, "There is no MeshConfig in the manifests, so the chart's is used: every pod of the mesh may call every other."), err
}

// meshConfig returns the MeshConfig of a mesh whose manifests have none.
func (f *folder) meshConfig() (string, error) {
	config, err := meshconfig.OfChart(meshNamespace)
	if err != nil {
		return "", err
	}
	if f.class != "" {
		config.Spec.Sidecar.SidecarClass = f.class
	}
	config.Spec.Observability.EnableDebugServer = true
	text, err := yaml.Marshal(config)
	return string(text), err
}

// adapt changes a MeshConfig and namespaces for the lab, reports whether it has found the
// former, and collects the Gateways. Documents that cannot be read stay as they are; the mesh
// reports them.
func (f *folder) adapt(document manifest.Document, gateways *localmesh.Gateways) (text []byte, configured bool, notes []string) {
	if !slices.ContainsFunc([]string{"MeshConfig", "Namespace", "Gateway"}, func(kind string) bool { return bytes.Contains(document.Text, []byte(kind)) }) {
		return document.Text, false, nil
	}
	var object map[string]any
	if yaml.Unmarshal(document.Text, &object) != nil {
		return document.Text, false, nil
	}
	changed := false
	visit := func(object map[string]any) {
		version, _ := object["apiVersion"].(string)
		group, _, _ := strings.Cut(version, "/")
		switch kind := object["kind"]; {
		case kind == "MeshConfig" && group == v1alpha2.GroupName:
			f.configure(object)
			configured, changed = true, true
		case kind == "Namespace" && version == "v1" && join(object):
			metadata, _ := object["metadata"].(map[string]any)
			notes = append(notes, fmt.Sprintf("Namespace %v joins the mesh, as with 'outrigger namespace add %v'.", metadata["name"], metadata["name"]))
			changed = true
		default:
			gateways.Add(object)
		}
	}
	visit(object)
	if items, ok := object["items"].([]any); ok {
		for _, item := range items {
			if item, ok := item.(map[string]any); ok {
				visit(item)
			}
		}
	}
	if !changed {
		return document.Text, false, nil
	}
	encode := yaml.Marshal
	if document.Format == manifest.JSON {
		encode = json.Marshal
	}
	encoded, err := encode(object)
	if err != nil {
		return document.Text, configured, nil
	}
	return append(encoded, '\n'), configured, notes
}

// configure opens the controller's debug pages, which the lab's commands read, and sets the
// sidecar class.
func (f *folder) configure(config map[string]any) {
	put := func(section, field string, value any) {
		spec, ok := config["spec"].(map[string]any)
		if !ok {
			spec = make(map[string]any)
			config["spec"] = spec
		}
		of, ok := spec[section].(map[string]any)
		if !ok {
			of = make(map[string]any)
			spec[section] = of
		}
		of[field] = value
	}
	put("observability", "enableDebugServer", true)
	if f.class != "" {
		put("sidecar", "sidecarClass", f.class)
	}
}

// join adds a namespace to the mesh, unless its labels and annotations decide about that.
func join(namespace map[string]any) bool {
	about, ok := namespace["metadata"].(map[string]any)
	if !ok || about["name"] == meshNamespace {
		return false
	}
	labels, _ := about["labels"].(map[string]any)
	annotations, _ := about["annotations"].(map[string]any)
	for _, key := range []string{metadata.MonitoredBy, metadata.Ignore, metadata.Injection, metadata.Revision} {
		if labels[key] != nil || annotations[key] != nil {
			return false
		}
	}
	if labels == nil {
		labels = make(map[string]any)
	}
	if annotations == nil {
		annotations = make(map[string]any)
	}
	labels[metadata.MonitoredBy], annotations[metadata.Injection] = meshName, "enabled"
	about["labels"], about["annotations"] = labels, annotations
	return true
}
