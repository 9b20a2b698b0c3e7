package outrigger_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestPrograms checks that the programs of a cluster do not contain the packages that run pods on
// one machine, not even through others.
func TestPrograms(t *testing.T) {
	workshop := []string{"internal/lab", "internal/localmesh", "internal/playground", "internal/demo", "internal/compile", "samples"}
	contained := func(program string) []string {
		out, err := exec.Command("go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", program, err)
		}
		var found []string
		for name := range strings.Lines(string(out)) {
			if name = inModule(strings.TrimSpace(name)); slices.Contains(workshop, name) {
				found = append(found, name)
			}
		}
		return found
	}
	for _, program := range []string{"./app", "./cmd/outrigger", "./cmd/outrigger-core", "./cmd/outrigger-agent", "./cmd/outrigger-cni"} {
		if found := contained(program); len(found) > 0 {
			t.Errorf("%s contains %s, which belong to outrigger-lab", program, strings.Join(found, ", "))
		}
	}
	if found := contained("./cmd/outrigger-lab"); len(found) != len(workshop) {
		t.Errorf("outrigger-lab contains only %s: the test is broken", strings.Join(found, ", "))
	}
}
