package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/install"
	"github.com/outrigger-mesh/outrigger/internal/version"
)

// allCommands returns the complete program, with the commands that need Helm.
func allCommands() *cobra.Command { return NewRootCommand(install.Commands()...) }

// TestInitImageIsTheChartsOwn checks that pods injected offline have the init image of the
// chart's injector if nothing else names an image.
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
