package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/install"
	"github.com/outrigger-mesh/outrigger/internal/version"
)

// allCommands returns the whole program, with the commands that need Helm.
func allCommands() *cobra.Command { return NewRootCommand(install.Commands()...) }

// TestInitImageIsTheChartsOwn holds that what is injected offline, with no word about
// images, has the init image of the chart's injector.
func TestInitImageIsTheChartsOwn(t *testing.T) {
	release, err := chart.Render(t.Context(), "osm-system", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"initContainerImage: " + version.InitImage() + "\n", "value: \"" + version.InitImage() + "\"\n"} {
		if !strings.Contains(strings.Join(release.Objects, "\n"), what) {
			t.Errorf("nothing of the chart's says %s", what)
		}
	}
}

// TestMeshConfigIsTheChartsOwn holds that manifests without a MeshConfig are read with the
// one that the chart installs. UPDATE=1 writes its file.
func TestMeshConfigIsTheChartsOwn(t *testing.T) {
	release, err := chart.Render(t.Context(), "osm-system", nil)
	if err != nil {
		t.Fatal(err)
	}
	var installed string
	for _, object := range release.Objects {
		if strings.Contains(object, "\nkind: MeshConfig\n") {
			installed = strings.TrimSpace(object) + "\n"
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("meshconfig.yaml", []byte(installed), 0o644); err != nil {
			t.Fatal(err)
		}
		meshConfigFile = []byte(installed)
	}
	if diff := cmp.Diff(installed, string(meshConfigFile)); diff != "" {
		t.Errorf("meshconfig.yaml is not the chart's MeshConfig; run UPDATE=1 go test ./internal/cli -run %s (-chart +file):\n%s", t.Name(), diff)
	}
	obj, err := chartMeshConfig("mesh-system")
	if err != nil {
		t.Fatal(err)
	}
	if obj.Namespace != "mesh-system" || obj.Spec.Sidecar.SidecarClass != "envoy" {
		t.Errorf("the MeshConfig is in namespace %s with class %q, want mesh-system and envoy", obj.Namespace, obj.Spec.Sidecar.SidecarClass)
	}
}
