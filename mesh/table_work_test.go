//go:build !meshguard

package mesh

import (
	"fmt"
	"testing"
)

// TestTableWork measures the work of one change and of finding it. The guard works
// more, so it is not measured.
func TestTableWork(t *testing.T) {
	var with, diff [2]float64
	for i, size := range []int{100, 10_000} {
		parts := make(map[string]*Service)
		for n := range size {
			parts[fmt.Sprintf("namespace/service-%05d:80", n)] = service("s", 80)
		}
		table := TableOf(parts)
		change := Change[*Service]{Name: "namespace/service-00042:80", Value: service("s", 81)}
		next := table.With(change)
		with[i] = testing.AllocsPerRun(20, func() { table.With(change) })
		diff[i] = testing.AllocsPerRun(20, func() {
			for range next.Diff(table) {
			}
		})
	}
	if with[0] != with[1] || with[0] > 12 {
		t.Errorf("a change takes %v allocations with 100 and with 10,000 entries, want the same few", with)
	}
	if diff[0] != diff[1] {
		t.Errorf("a difference takes %v allocations with 100 and with 10,000 entries, want the same", diff)
	}
}
