package meshconfig_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
)

// TestMeshConfigIsTheChartsOwn checks that chart.yaml, which is used for manifests without a
// MeshConfig, is the one that the chart installs. UPDATE=1 rewrites it.
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
		if err := os.WriteFile("chart.yaml", []byte(installed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile("chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(installed, string(file)); diff != "" {
		t.Errorf("chart.yaml is not the chart's MeshConfig; run UPDATE=1 go test ./internal/meshconfig -run %s (-chart +file):\n%s", t.Name(), diff)
	}
	obj, err := meshconfig.OfChart("mesh-system")
	if err != nil {
		t.Fatal(err)
	}
	if obj.Namespace != "mesh-system" || obj.Spec.Sidecar.SidecarClass != "envoy" {
		t.Errorf("the MeshConfig is in namespace %s with class %q, want mesh-system and envoy", obj.Namespace, obj.Spec.Sidecar.SidecarClass)
	}
}
