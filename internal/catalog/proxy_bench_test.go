package catalog

import (
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/drivers/envoy"
	"github.com/outrigger-mesh/outrigger/internal/fact"
)

// lonely returns a joined city in which no pod has a sidecar, the facts that one of them has one
// and that it has none, and the city's function flip.
func lonely(services int) (joined *join, come, gone fact.Fact, flip func(bool) fact.Fact) {
	facts, flip := city(services, true)
	joined = newJoin(Options{})
	for _, f := range facts {
		bare := withoutProxy(f)
		if w, ok := f.Content.(*fact.Workload); ok && w.Name.Name == "svc-0-0" {
			come, gone = f, bare
		}
		joined.set(bare)
	}
	joined.snapshot()
	return joined, come, gone, flip
}

// BenchmarkProxy measures the way from an event to the complete configuration of one Envoy: join,
// View and translation.
func BenchmarkProxy(b *testing.B) {
	configure := func(b *testing.B, translator *envoy.Translator, joined *join) {
		for _, view := range joined.snapshot().Views.All() {
			if config := translator.Config(view); config.Clusters.Len() == 0 {
				b.Fatal("the proxy gets no clusters")
			}
		}
	}
	// Nothing is shared: the proxy is new, and the translator's caches are empty.
	b.Run("cold-100", func(b *testing.B) {
		joined, come, gone, _ := lonely(100)
		b.ReportAllocs()
		for b.Loop() {
			joined.set(come)
			configure(b, envoy.NewTranslator(), joined)
			joined.set(gone)
		}
	})
	for _, services := range []int{100, 1000, 3000} {
		b.Run(fmt.Sprintf("endpoint-changed-%d", services), func(b *testing.B) {
			joined, come, _, flip := lonely(services)
			joined.set(come)
			translator := envoy.NewTranslator()
			configure(b, translator, joined)
			up := false
			b.ReportAllocs()
			for b.Loop() {
				joined.set(flip(up))
				configure(b, translator, joined)
				up = !up
			}
		})
	}
}
