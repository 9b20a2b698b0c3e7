//go:build !meshguard

package catalog

import (
	"runtime"
	"testing"
)

// TestWorkOfOneEndpoint checks that a change of one endpoint costs the same in a small
// mesh and in a large one.
func TestWorkOfOneEndpoint(t *testing.T) {
	for _, tt := range []struct {
		name     string
		policies bool
		// large is the number of services of the large mesh; the small one has 100.
		large int
	}{
		{"one proxy", false, 3000},
		{"all proxies and policies", true, 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() {
				tt.large = 300
			}
			var runs [2]uint64
			var allocs, bytes [2]float64
			changed := 0
			for i, services := range []int{100, tt.large} {
				j, change := builtCity(services, tt.policies, !tt.policies)
				former, before := j.snapshot(), j.graph.Runs()
				if tt.policies && former.Problems.Len() > 0 {
					t.Fatalf("the policies have Problems: %s", problemsText(t, former))
				}
				change()
				runs[i] = j.graph.Runs() - before
				changed = len(changedViews(j.snapshot().Views, former.Views))
				if changed == 0 {
					t.Error("the change changes no View")
				}
				allocs[i] = testing.AllocsPerRun(200, change)
				bytes[i] = bytesPerRun(200, change)
				t.Logf("%d services: %d functions run, %d Views changed, %.0f allocations of %.0f bytes", services, runs[i], changed, allocs[i], bytes[i])
			}
			if runs[0] != runs[1] {
				t.Errorf("%d functions run with 100 services, and %d with %d", runs[0], runs[1], tt.large)
			}
			// A Table of more Views is a level deeper. With the race detector, pools drop some
			// values at random, which averages out over many runs.
			if allocs[1] > allocs[0]+1.2*float64(changed)+4 {
				t.Errorf("there are %v allocations with 100 services, and %v with %d", allocs[0], allocs[1], tt.large)
			}
			if bytes[1] > bytes[0]*1.2 {
				t.Errorf("%.0f bytes are allocated with 100 services, and %.0f with %d", bytes[0], bytes[1], tt.large)
			}
		})
	}
}

// bytesPerRun returns how many bytes a call of f allocates.
func bytesPerRun(runs int, f func()) float64 {
	var before, after runtime.MemStats
	f()
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / float64(runs)
}
