package cli

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExplainPage checks the output in docs/explain.md, which follows every explain command;
// UPDATE=1 writes it.
func TestExplainPage(t *testing.T) {
	t.Chdir("../..")
	t.Setenv("KUBECONFIG", "none")
	const (
		page   = "docs/explain.md"
		indent = "    "
		prompt = indent + "$ outrigger "
	)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	shown := false
	for line := range strings.Lines(string(text)) {
		if shown = shown && strings.HasPrefix(line, indent); shown {
			continue
		}
		got.WriteString(line)
		if command, ok := strings.CutPrefix(line, prompt); ok && strings.HasPrefix(command, "explain ") {
			shown = true
			for out := range strings.Lines(runCommand(t, strings.Fields(command)...)) {
				got.WriteString(indent + out)
			}
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(page, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), got.String()); diff != "" {
		t.Errorf("%s is out of date; run the test with UPDATE=1 (-page +program):\n%s", page, diff)
	}
}

// runCommand returns what a command prints to standard output.
func runCommand(t *testing.T, args ...string) string {
	t.Helper()
	var stdout strings.Builder
	cmd := NewRootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(t.Output())
	if err := cmd.ExecuteContext(t.Context()); err != nil && !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
	return stdout.String()
}
