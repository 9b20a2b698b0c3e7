package outrigger_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackageNames refuses names that do not describe a package.
func TestPackageNames(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, name := range []string{p.Name, path.Base(p.ImportPath)} {
			if slices.Contains([]string{"util", "utils", "common", "types", "helper", "helpers", "misc", "shared"}, name) {
				t.Errorf("package %s: the name %q says nothing about what is in it", p.ImportPath, name)
			}
		}
	}
}

// TestPackageDocs requires exactly one package comment for each package.
func TestPackageDocs(t *testing.T) {
	for _, p := range listPackages(t) {
		var documented []string
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil {
				documented = append(documented, name)
			}
		}
		if len(p.GoFiles) > 0 && len(documented) != 1 {
			t.Errorf("package %s has package comments in %q, want one", p.ImportPath, documented)
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if len(documented) == 1 && !strings.HasPrefix(p.Doc, want) {
			t.Errorf("the comment of package %s begins %q, want %q", p.ImportPath, p.Doc, want)
		}
	}
}

// maxLines is the maximum length of a file, so that it can be read at once.
const maxLines = 500

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// TestFileLengths reads every file, so that the go command notices changes of
// packages for the other tests here too and runs them again.
func TestFileLengths(t *testing.T) {
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if lines := bytes.Count(text, []byte("\n")); lines > maxLines && !generated.Match(text) {
			t.Errorf("%s has %d lines, want at most %d; split it", name, lines, maxLines)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
