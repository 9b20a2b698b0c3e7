package outrigger_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestErrorTexts looks for the messages of docs/errors.md in the sources, where users' messages
// come from.
func TestErrorTexts(t *testing.T) {
	document, err := os.ReadFile("docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	for _, dir := range []string{"apis", "drivers", "internal", "mesh", "sidecar"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			sources.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)`( \\(Kubernetes\\))? \\|").FindAllStringSubmatch(string(document), -1)
	if len(rows) < 20 {
		t.Fatalf("docs/errors.md has %d messages", len(rows))
	}
	for _, row := range rows {
		if row[2] != "" {
			continue
		}
		for part := range strings.SplitSeq(row[1], "...") {
			if part = strings.TrimSpace(part); !strings.Contains(sources.String(), part) {
				t.Errorf("no source has the text %q of docs/errors.md", part)
			}
		}
	}
}
