package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra/doc"
)

// TestReference checks the pages of docs/reference; UPDATE=1 writes them.
func TestReference(t *testing.T) {
	// Defaults that come from the environment must not reach the pages.
	t.Setenv("POD_NAMESPACE", "")
	const dir = "../../docs/reference"
	root := allCommands()
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	generated := t.TempDir()
	if err := doc.GenMarkdownTree(root, generated); err != nil {
		t.Fatal(err)
	}
	want := read(t, generated)
	if os.Getenv("UPDATE") != "" {
		for name := range read(t, dir) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(want, read(t, dir)); diff != "" {
		t.Errorf("%s is out of date; run make generate (-want +got):\n%s", dir, diff)
	}
}

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for _, file := range files {
		// Another program's.
		if strings.HasPrefix(filepath.Base(file), "outrigger-lab") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(file)] = string(text)
	}
	return texts
}
