package outrigger_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPrograms checks that the programs of a cluster contain nothing of the workshop, such as the
// packages that run pods on one machine, not even through others.
func TestPrograms(t *testing.T) {
	contained := func(program string) []string {
		out, err := exec.Command("go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", program, err)
		}
		var found []string
		for name := range strings.Lines(string(out)) {
			if name = inModule(strings.TrimSpace(name)); isWorkshop(name) {
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
	if found := contained("./cmd/outrigger-lab"); !slices.Contains(found, "test/lab") || !slices.Contains(found, "samples") {
		t.Errorf("outrigger-lab contains only %s: the test is broken", strings.Join(found, ", "))
	}
}

// TestVersions checks that the application of the tests of gRPC, a module of its own, has its
// modules in the versions of this one. In other versions they would be compiled again, and with
// them the packages that import them.
func TestVersions(t *testing.T) {
	versions := func(file string) map[string]string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]string)
		for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) (v\S+)`).FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = m[2]
		}
		return found
	}
	ours, shared := versions("go.mod"), 0
	for module, version := range versions(filepath.Join("test", "grpc", "go.mod")) {
		if want, ok := ours[module]; ok && version != want {
			t.Errorf("test/grpc has %s %s, and this module %s: run 'go -C test/grpc get %s@%s && go -C test/grpc mod tidy'", module, version, want, module, want)
		} else if ok {
			shared++
		}
	}
	if shared < 10 {
		t.Errorf("only %d modules are in both: the test is broken", shared)
	}
}
