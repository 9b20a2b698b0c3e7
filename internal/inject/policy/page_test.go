package policy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
)

// TestPage compares the list of pods that a policy does not inject with docs/injection.md.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/injection.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	for _, l := range policy.Limits() {
		fmt.Fprintf(&rows, "| `%s` | %s |\n", l.Name, l.When)
	}
	if !strings.Contains(string(page), "| Name | When |\n|---|---|\n"+rows.String()+"\n") {
		t.Errorf("docs/injection.md must have the rows\n%s", rows.String())
	}
}
