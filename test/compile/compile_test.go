package compile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inner is a test of another module that runs a program of it. Its own package does not
// import the library.
const inner = `package inner

import (
	"os/exec"
	"path/filepath"
	"testing"

	"example.com/m/compile"
)

func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "p")
	if err := compile.Build(t.Context(), compile.Options{Folder: "..", Packages: []string{"./cmd"}, Output: program}); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program).Output(); err != nil || string(out) != "good" {
		t.Fatalf("%q, %v", out, err)
	}
}
`

// TestCached runs a test that runs a program, whose cached result must count only while the
// program's sources stay as they are.
func TestCached(t *testing.T) {
	own, err := os.ReadFile("compile.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"go.mod":              "module example.com/m\n\ngo 1.26.0\n",
		"compile/compile.go":  string(own),
		"library/library.go":  "package library\n\nimport _ \"embed\"\n\n//go:embed text\nvar Text string\n",
		"library/text":        "good",
		"cmd/main.go":         "package main\n\nimport \"example.com/m/library\"\n\nfunc main() { print1(library.Text) }\n",
		"cmd/print.go":        "package main\n\nimport \"os\"\n\nfunc print1(s string) { os.Stdout.WriteString(s) }\n",
		"inner/inner_test.go": inner,
	} {
		write(name, text)
	}
	run := func() (string, error) {
		cmd := exec.Command("go", "test", "./inner")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	// The go command caches no result that depends on a file of the last two seconds.
	old := func() {
		t.Helper()
		if out, err := exec.Command("find", dir, "-exec", "touch", "-d", "2020-01-01", "{}", "+").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	old()
	for i := range 2 {
		out, err := run()
		if err != nil || strings.Contains(out, "(cached)") != (i == 1) {
			t.Fatalf("run %d: %v\n%s", i, err, out)
		}
	}
	write("library/text", "bad!")
	if out, err := run(); err == nil {
		t.Errorf("the result is from the cache, although the program has changed:\n%s", out)
	}
}
