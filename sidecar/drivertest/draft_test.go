package drivertest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestVariants holds that each variant asks for its feature and for nothing else, and
// that no feature is forgotten.
func TestVariants(t *testing.T) {
	if needs := plain().view().Needs(); len(needs) > 0 {
		t.Errorf("a plain View asks for %v", needs)
	}
	asked := map[mesh.Feature]bool{mesh.FeatureWebSocket: true}
	for _, v := range variants() {
		asked[v.feature] = true
		base := v.view(nil).Needs()
		want := append(slices.Clone(base), v.feature)
		slices.SortFunc(want, func(a, b mesh.Feature) int {
			return slices.Index(mesh.Features(), a) - slices.Index(mesh.Features(), b)
		})
		if diff := cmp.Diff(want, v.view(v.asks).Needs()); diff != "" {
			t.Errorf("%s: what it asks for (-want +got):\n%s", v, diff)
		}
		if slices.Contains(v.view(v.closed).Needs(), v.feature) || slices.Contains(v.view(v.ignored).Needs(), v.feature) {
			t.Errorf("%s: what is left of it asks for the feature too", v)
		}
	}
	for _, f := range mesh.Features() {
		if !asked[f] {
			t.Errorf("no variant asks for %s", f)
		}
	}
	needs := everything().view().Needs()
	for _, v := range variants() {
		if !v.alone && !slices.Contains(needs, v.feature) {
			t.Errorf("the View that asks for everything does not ask for %s", v.feature)
		}
	}
}
