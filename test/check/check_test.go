package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository creates a repository with a module of three packages: b imports a, and c is
// independent. Its branch main has one commit.
func repository(t *testing.T) check {
	t.Helper()
	c := check{dir: t.TempDir(), base: "main"}
	for name, content := range map[string]string{
		"go.mod":       "module example.com/m\n\ngo 1.26.0\n",
		"root_test.go": "package m\n",
		"a/a.go":       "package a\n\nfunc A() int { return 1 }\n",
		"a/a_test.go":  "package a\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {\n\tif A() != 1 {\n\t\tt.Error(\"A is not 1\")\n\t}\n}\n\nfunc TestProxy(t *testing.T) { t.Skip(\"SKIPPED: there is no proxy here\") }\n",
		"a/data/x.txt": "x\n",
		"b/b.go":       "package b\n\nimport _ \"example.com/m/a\"\n",
		"b/b_test.go":  "package b\n\nimport \"testing\"\n\nfunc TestB(t *testing.T) {}\n",
		"c/c.go":       "package c\n",
		"c/c_test.go":  "package c\n\nimport \"testing\"\n\nfunc TestC(t *testing.T) {}\n",
	} {
		c.write(t, name, content)
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "."},
		{"-c", "user.name=nobody", "-c", "user.email=nobody@example.com", "commit", "-q", "-m", "first"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = c.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return c
}

func (c check) write(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   map[string]string
		packages []string
		base     string
		all      bool
		// ok is the result of run, and wrong a part of its error.
		ok    bool
		wrong string
		// The output contains says, and does not contain not.
		says []string
		not  string
	}{
		{
			name: "nothing has changed", ok: true,
			says: []string{"Nothing differs from main, so nothing was tested"}, not: "Left out",
		},
		{
			name: "a package is named", packages: []string{"./a"}, ok: true,
			says: []string{
				"ok  \texample.com/m/a", "packages: 1, failed: 0; tests passed: 1, failed: 0, skipped: 1",
				"- TestProxy, which skipped: there is no proxy here", "- the tests of packages that import these: ./b\n",
				"kube-apiserver and etcd (make apiserver)", "make race",
			},
			not: "m/c",
		},
		{
			name: "a file has changed that is not committed", change: map[string]string{"a/a.go": "package a\n\nfunc A() int { return 2 }\n"},
			says: []string{"Packages with files that differ from main:\n  ./a\n", "A is not 1", "--- FAIL: TestA", "packages: 1, failed: 1; tests passed: 0, failed: 1, skipped: 1"},
			not:  "m/b",
		},
		{
			name: "a package does not compile", change: map[string]string{"c/c.go": "package c\n\nvar x int = \"\"\n"},
			says: []string{"cannot use", "build failed", "packages: 1, failed: 1"},
		},
		{
			name:   "a test ends the process",
			change: map[string]string{"c/c_test.go": "package c\n\nimport \"testing\"\n\nfunc TestC(t *testing.T) {\n\tgo func() { panic(\"the goroutine fails\") }()\n\tselect {}\n}\n"},
			says:   []string{"panic: the goroutine fails", "packages: 1, failed: 1"},
		},
		{
			name: "a file of a package's is new", change: map[string]string{"a/data/deep/y.txt": "y\n"}, ok: true,
			says: []string{"differ from main:\n  ./a\n"},
		},
		{
			name: "a file of no package", change: map[string]string{"docs/page.md": "page\n"}, ok: true,
			says: []string{"differ from main:\n  .\n"},
		},
		{
			name: "all packages", all: true, ok: true,
			says: []string{
				"ok  \texample.com/m/a", "ok  \texample.com/m/b", "packages: 4, failed: 0; tests passed: 3, failed: 0, skipped: 1",
				"- TestProxy: there is no proxy here\n",
			},
			not: "import these",
		},
		{name: "there is no such package", packages: []string{"./none"}, wrong: "none"},
		{name: "there is no such branch", base: "elsewhere", wrong: "name packages, for example PKG="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := repository(t)
			var out bytes.Buffer
			c.out = &out
			c.all = tt.all
			if tt.base != "" {
				c.base = tt.base
			}
			for name, content := range tt.change {
				c.write(t, name, content)
			}
			ok, err := c.run(t.Context(), tt.packages, nil)
			if ok != tt.ok || (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("it returns %t, %v, want %t and %q\n%s", ok, err, tt.ok, tt.wrong, out.String())
			}
			for _, want := range tt.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, out.String())
				}
			}
			if tt.not != "" && strings.Contains(out.String(), tt.not) {
				t.Errorf("it says %q:\n%s", tt.not, out.String())
			}
		})
	}
}
