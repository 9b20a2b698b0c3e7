package outrigger_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var packageTable = regexp.MustCompile(`(?m)^<!-- packages: (.*) -->\n(?:\n(?:\|.*\n)+)?`)

// TestArchitecture compares the tables of docs/architecture.md with the comments of the packages.
// A table has the packages that its patterns match and no earlier table has, in the order of the
// patterns; an asterisk stands for everything below a folder.
func TestArchitecture(t *testing.T) {
	const page = "docs/architecture.md"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rest := listPackages(t)
	want := packageTable.ReplaceAllStringFunc(string(content), func(table string) string {
		patterns := packageTable.FindStringSubmatch(table)[1]
		var b strings.Builder
		fmt.Fprintf(&b, "<!-- packages: %s -->\n\n| package | |\n|---|---|\n", patterns)
		for pattern := range strings.FieldsSeq(patterns) {
			rest = slices.DeleteFunc(rest, func(p listed) bool {
				name := p.ImportPath
				below, isFolder := strings.CutSuffix(pattern, "*")
				if name != pattern && (!isFolder || !strings.HasPrefix(name, below)) {
					return false
				}
				doc := strings.TrimPrefix(strings.TrimPrefix(p.Doc, "Package "+p.Name+" "), "Command ")
				fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.ReplaceAll(doc, "|", "\\|"))
				return true
			})
		}
		return b.String()
	})
	for _, p := range rest {
		t.Errorf("no table of %s has the package %s: add it to the patterns of one", page, p.ImportPath)
	}
	if want == string(content) {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s differs from the comments of the packages; run 'UPDATE=1 go test .' and review it", page)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
