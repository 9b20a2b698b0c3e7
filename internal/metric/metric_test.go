package metric

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestDocumented looks for every metric in the documentation. A table may shorten names of the
// same beginning to their last two words.
func TestDocumented(t *testing.T) {
	var pages string
	for _, name := range []string{"debug.md", "agent.md"} {
		text, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pages += string(text)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "metric.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok {
			return true
		}
		name, err := strconv.Unquote(literal.Value)
		if err != nil || !strings.HasPrefix(name, "outrigger_") {
			return true
		}
		found++
		words := strings.Split(name, "_")
		short := "..._" + strings.Join(words[len(words)-2:], "_")
		if !strings.Contains(pages, "`"+name+"`") && !strings.Contains(pages, "`"+short+"`") {
			t.Errorf("neither docs/debug.md nor docs/agent.md has %s", name)
		}
		return true
	})
	if found == 0 {
		t.Error("found no names: the test is broken")
	}
}
