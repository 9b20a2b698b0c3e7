package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// assumedMeshConfig returns the MeshConfig to use if the manifests have none: that of
// --mesh-config, with the Problems of the file, or else the chart's. It reports the latter on
// stderr.
func (f *snapshotFlags) assumedMeshConfig(stderr io.Writer) (*v1alpha2.MeshConfig, []mesh.Problem, error) {
	if f.engine.meshConfig != "" {
		return f.givenMeshConfig()
	}
	obj, err := meshconfig.OfChart(f.engine.mesh.Namespace)
	if err != nil {
		return nil, nil, err
	}
	terminal.Fprintln(stderr, "no MeshConfig in the manifests: using the chart's defaults; name yours with --mesh-config")
	return obj, nil, nil
}

// givenMeshConfig reads the file of --mesh-config in the same way as manifests.
func (f *snapshotFlags) givenMeshConfig() (*v1alpha2.MeshConfig, []mesh.Problem, error) {
	file := f.engine.meshConfig
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	_, problems, err := dir.Load([]string{file}, dir.Options{Mapper: injector.Mapper(f.engine.mesh.Name, meshconfig.NewResolver())})
	if err != nil {
		return nil, nil, err
	}
	if obj := findMeshConfig([]offline.Source{{Name: file, Data: text}}); obj != nil {
		return obj, problems, nil
	}
	if len(problems) > 0 {
		return nil, nil, fmt.Errorf("--mesh-config %s: %s", file, problems[0])
	}
	return nil, nil, fmt.Errorf("--mesh-config %s: the file contains no MeshConfig of %s", file, v1alpha2.GroupName)
}

// findMeshConfig returns the first MeshConfig of the manifests, or nil. It skips documents that
// cannot be read, which are reported elsewhere.
func findMeshConfig(sources []offline.Source) *v1alpha2.MeshConfig {
	for _, s := range sources {
		for document := range bytes.SplitSeq(s.Data, []byte("\n---")) {
			if !bytes.Contains(document, []byte("MeshConfig")) {
				continue
			}
			var list struct {
				v1alpha2.MeshConfig
				Items []v1alpha2.MeshConfig `json:"items"`
			}
			if err := yaml.Unmarshal(document, &list); err != nil {
				continue
			}
			for _, obj := range append([]v1alpha2.MeshConfig{list.MeshConfig}, list.Items...) {
				group, _, _ := strings.Cut(obj.APIVersion, "/")
				if obj.Kind == "MeshConfig" && group == v1alpha2.GroupName {
					return &obj
				}
			}
		}
	}
	return nil
}
