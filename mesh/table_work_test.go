//go:build !meshguard

package mesh

import (
	"fmt"
	"runtime"
	"testing"
)

// TestTableWork measures the cost of one change and of finding it. The guard adds cost,
// so it is off.
func TestTableWork(t *testing.T) {
	var with, bytes, diff [2]float64
	for i, size := range []int{100, 30_000} {
		parts := make(map[string]*item)
		for n := range size {
			parts[fmt.Sprintf("namespace/service-%05d:80", n)] = itemOf("s", 80)
		}
		table := TableOf(parts)
		change := Change[*item]{Name: "namespace/service-00042:80", Value: itemOf("s", 81)}
		next := table.With(change)
		with[i] = testing.AllocsPerRun(20, func() { table.With(change) })
		bytes[i] = bytesPerRun(200, func() { table.With(change) })
		diff[i] = testing.AllocsPerRun(20, func() {
			for range next.Diff(table) {
			}
		})
	}
	t.Logf("allocations %v, bytes %v", with, bytes)
	if with[1] > 6 || bytes[1] > 1500 {
		t.Errorf("a change of 30,000 entries takes %v allocations and %.0f bytes, want a node for each sixteenfold size: 6 and 1500 at most", with[1], bytes[1])
	}
	if diff[0] != diff[1] {
		t.Errorf("a difference takes %v allocations with 100 and with 30,000 entries, want the same", diff)
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
