package cli

import (
	"strings"
	"testing"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
)

// TestInitImageIsTheChartsOwn holds that what is injected offline, with no word about
// images, has the init image of the chart's injector.
func TestInitImageIsTheChartsOwn(t *testing.T) {
	release, err := chart.Render(t.Context(), "osm-system", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"initContainerImage: " + initImage + "\n", "value: \"" + initImage + "\"\n"} {
		if !strings.Contains(strings.Join(release.Objects, "\n"), what) {
			t.Errorf("nothing of the chart's says %s", what)
		}
	}
}
