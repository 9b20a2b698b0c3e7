package source_test

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// TestResolver checks that all readers of a MeshConfig share one Config, and that a changed
// MeshConfig has another.
func TestResolver(t *testing.T) {
	opts := options(nil)
	resolved := 0
	opts.CheckImage = func(string, string) error {
		resolved++
		return nil
	}
	resolver := source.NewResolver(opts)
	mapper := source.NewMapper(source.MapperOptions{MeshName: "osm", Resolver: resolver})
	obj := parse(t, `sidecar: {sidecarClass: pipy, sidecarImage: "a/pipy:1", logLevel: loud}`)

	config := resolver.Resolve(obj)
	fact, _ := mapper.Fact(obj)
	if len(config.Problems()) != 1 || len(fact.Problems) != 1 || fact.Problems[0] != config.Problems()[0] {
		t.Errorf("the fact has the problems %v, and the Config %v; want that of the log level in both", fact.Problems, config.Problems())
	}
	if resolver.Resolve(obj) != config || resolved != 1 {
		t.Errorf("the MeshConfig was resolved %d times, want once", resolved)
	}

	changed := resolver.Resolve(parse(t, `sidecar: {sidecarClass: envoy}`))
	if changed.GetSidecarClass() != "envoy" {
		t.Errorf("after a change, the class is %s", changed.GetSidecarClass())
	}
	if got := resolver.Resolve(nil); got == changed || len(got.Problems()) > 0 {
		t.Errorf("without a MeshConfig, the problems are %v", got.Problems())
	}
}
