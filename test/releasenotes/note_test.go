package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// TestChangelog compares CHANGELOG.md with the notes.
func TestChangelog(t *testing.T) {
	root := filepath.Join("..", "..")
	releases, err := read(os.DirFS(filepath.Join(root, folder)))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(changelog(releases), want) {
		t.Errorf("%s is not what the files in %s say: run 'make changelog'", page, folder)
	}
}

func TestReadRefuses(t *testing.T) {
	const good = "kind: fix\narea: cli\nnote: text\n"
	for _, test := range []struct{ name, text, want string }{
		{"0.2.0/a.yaml", good, ""},
		{"0.2.0/a.yml", good, ".yaml"},
		{"next/a.yaml", good, "not a version"},
		{"0.2.-1/a.yaml", good, "not a version"},
		{"0.2.0/a.yaml", "", `kind is ""`},
		{"0.2.0/a.yaml", "kind: fix\narea: sidecars\nnote: text\n", `area is "sidecars"`},
		{"0.2.0/a.yaml", "kind: fix\narea: cli\nnote: ' '\n", "note is empty"},
		{"0.2.0/a.yaml", good + "notes: more\n", "unknown field"},
		{"0.2.0/a.yaml", good + "kind: feature\n", "already set"},
		{"0.2.0/a.yaml", "\x00", "yaml"},
	} {
		_, err := read(fstest.MapFS{test.name: {Data: []byte(test.text)}})
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s with %q: %v", test.name, test.text, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.name)):
			t.Errorf("%s with %q: the error is %v, want %q and the file's name", test.name, test.text, err, test.want)
		}
	}
}

func TestPageOrder(t *testing.T) {
	releases, err := read(fstest.MapFS{
		"0.9.0/a.yaml":  {Data: []byte("kind: fix\narea: cli\nnote: nine\n")},
		"0.10.0/a.yaml": {Data: []byte("kind: fix\narea: cli\nnote: |\n  two\n  lines\nissue: ['12']\n")},
		"0.10.0/b.yaml": {Data: []byte("kind: security\narea: drivers\nnote: first\nupgrade: do this\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `
## 0.10.0

### Before you upgrade

- do this

### Security

- **drivers**: first

### Fixed

- **cli**: two
  lines (12)

## 0.9.0

### Fixed

- **cli**: nine
`
	if got := string(changelog(releases)); !strings.HasSuffix(got, want) {
		t.Errorf("the page is %s, want at its end %s", got, want)
	}
}

// TestUnnoted makes a repository whose commits change what users see.
func TestUnnoted(t *testing.T) {
	for _, test := range []struct {
		name    string
		commits [][2]string // file and the end of the commit's message
		want    string
	}{
		{"a field", [][2]string{{"apis/x.go", ""}}, "apis/x.go"},
		{"a field and a note", [][2]string{{"apis/x.go", ""}, {"releasenotes/0.2.0/x.yaml", ""}}, ""},
		{"a field that needs no note", [][2]string{{"apis/x.go", "\n\nRelease-note: none"}}, ""},
		{"the excuse of another commit", [][2]string{{"apis/x.go", ""}, {"docs/x.md", "\n\nRelease-note: none"}}, "apis/x.go"},
		{"a test", [][2]string{{"apis/x_test.go", ""}}, ""},
		{"the inside", [][2]string{{"internal/catalog/x.go", ""}}, ""},
		{"a value", [][2]string{{"charts/outrigger/values.yaml", ""}}, "values.yaml"},
		{"an odd name", [][2]string{{"apis/a\nb \u00e4.go", ""}}, "apis/a\nb \u00e4.go"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			git := func(args ...string) {
				t.Helper()
				cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%q: %v: %s", args, err, out)
				}
			}
			git("init", "-q", "-b", "main")
			git("commit", "-q", "--allow-empty", "-m", "first")
			git("tag", "base")
			for _, c := range test.commits {
				file := filepath.Join(dir, c[0])
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, nil, 0o644); err != nil {
					t.Fatal(err)
				}
				git("add", "-A")
				git("commit", "-q", "-m", "a change"+c[1])
			}
			commits, err := commitsSince(t.Context(), dir, "base")
			if err != nil {
				t.Fatal(err)
			}
			err = unnoted(commits)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
		})
	}
	if _, err := commitsSince(t.Context(), t.TempDir(), "none"); err == nil {
		t.Error("a folder without a repository has commits")
	}
}
