package outrigger_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestDocumentedSettings compares the table of docs/templates.md with the type of the
// injection config.
func TestDocumentedSettings(t *testing.T) {
	document, err := os.ReadFile("docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(document), "## config\n")
	table, _, _ := strings.Cut(rest, "\n## ")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}

	file, err := parser.ParseFile(token.NewFileSet(), "internal/inject/config.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var inSource []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == "settings" {
			inSource = jsonNames("", spec.Type.(*ast.StructType))
		}
		return true
	})
	sorted := cmpopts.SortSlices(strings.Compare)
	if diff := cmp.Diff(inSource, documented, sorted); diff != "" {
		t.Errorf("settings (-program +document):\n%s", diff)
	}
}

// jsonNames returns the JSON names of a struct's fields, with dots for nested structs.
func jsonNames(prefix string, s *ast.StructType) []string {
	var names []string
	for _, f := range s.Fields.List {
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		if inner, ok := f.Type.(*ast.StructType); ok {
			names = append(names, jsonNames(prefix+name+".", inner)...)
		} else {
			names = append(names, prefix+name)
		}
	}
	return names
}
