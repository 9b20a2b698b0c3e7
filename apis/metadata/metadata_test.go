package metadata_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPage compares the names in the code with those in the tables of docs/labels.md.
func TestPage(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "metadata.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok {
			name, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
		return true
	})
	page, err := os.ReadFile("../../docs/labels.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(openservicemesh[^`]*)`").FindAllSubmatch(page, -1) {
		// The names of resources end with that of one, such as cpu.
		documented = append(documented, strings.TrimSuffix(string(row[1]), "cpu"))
	}
	slices.Sort(names)
	slices.Sort(documented)
	if !slices.Equal(names, documented) {
		t.Errorf("the code has\n%s\nand docs/labels.md has\n%s", strings.Join(names, "\n"), strings.Join(documented, "\n"))
	}
}
