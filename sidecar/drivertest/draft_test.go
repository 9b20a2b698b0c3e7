package drivertest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestVariants checks that each variant requires only its feature, and that every feature
// has a variant.
func TestVariants(t *testing.T) {
	if needs := plain().view().Needs(); len(needs) > 0 {
		t.Errorf("a plain View requires %v", needs)
	}
	asked := map[mesh.Feature]bool{mesh.FeatureWebSocket: true, mesh.FeatureOpenConnections: true}
	for _, v := range variants() {
		asked[v.feature] = true
		base := v.view(nil).Needs()
		want := append(slices.Clone(base), v.feature)
		if v.feature == mesh.FeatureHTTP2 {
			asked[mesh.FeatureHTTP2Resets] = true
			want = append(want, mesh.FeatureHTTP2Resets)
		}
		slices.SortFunc(want, func(a, b mesh.Feature) int {
			return slices.Index(mesh.Features(), a) - slices.Index(mesh.Features(), b)
		})
		if diff := cmp.Diff(want, v.view(v.asks).Needs()); diff != "" {
			t.Errorf("%s: required features (-want +got):\n%s", v, diff)
		}
		if slices.Contains(v.view(v.closed).Needs(), v.feature) || slices.Contains(v.view(v.ignored).Needs(), v.feature) {
			t.Errorf("%s: ignored or closed requires the feature too", v)
		}
	}
	for _, f := range mesh.Features() {
		if !asked[f] {
			t.Errorf("no variant requires %s", f)
		}
	}
	needs := everything().view().Needs()
	for _, v := range variants() {
		if !v.alone && !slices.Contains(needs, v.feature) {
			t.Errorf("the View that requires everything does not require %s", v.feature)
		}
	}
}
