package podtemplate

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestRememberedSpec compares the values of specs in random order with values that are encoded
// anew.
func TestRememberedSpec(t *testing.T) {
	var s specs
	g := rand.New(rand.NewPCG(3, 4))
	text := func() string {
		return []string{"", "a", "$(b) ${c} $", `,"probes":[{"path":"/the-place-of-probes"}]`, "/the-place-of-probes", "<ü>\n", strings.Repeat("x", 20<<10)}[g.IntN(7)]
	}
	for range 2000 {
		spec := &agentspec.Spec{Command: []string{text()}, ReadyURL: text(), DisabledMTLS: g.IntN(2) == 0}
		if g.IntN(2) == 0 {
			spec.Files = []agentspec.File{{Path: text(), Content: text()}}
		}
		for range g.IntN(3) {
			spec.Probes = append(spec.Probes, agentspec.Probe{Path: text(), Port: int32(g.IntN(3)), URL: text()})
		}
		got, err := s.value(spec)
		if err != nil {
			t.Fatal(err)
		}
		want, err := agentspec.EnvValue(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("the value is %.300s, want %.300s", got, want)
		}
		if len(s.last) > maxSpecs || len(s.whole) > maxWhole {
			t.Fatalf("%d specs and %d values are remembered", len(s.last), len(s.whole))
		}
	}
	for key, value := range s.whole {
		if len(key.probes) > maxProbes {
			t.Errorf("probes of %d bytes are remembered, with %d bytes", len(key.probes), len(value))
		}
	}
}
