package cni

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// newNode returns a node with these files as its CNI configuration.
func newNode(t *testing.T, files map[string]string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{
		program: filepath.Join(dir, "program"), binDir: filepath.Join(dir, "bin"), confDir: filepath.Join(dir, "conf"),
		resultsDir: filepath.Join(dir, "results"), every: time.Millisecond, log: slog.New(slog.DiscardHandler),
	}
	for _, d := range []string{n.binDir, n.confDir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, n.program, "program 1")
	for name, text := range files {
		write(t, filepath.Join(n.confDir, name), text)
	}
	return n
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// conf returns the files of the configuration.
func conf(t *testing.T, n *node) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(n.confDir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(n.confDir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(text)
	}
	return files
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if a[name] != b[name] {
			return false
		}
	}
	return true
}

func TestInstallAndRemove(t *testing.T) {
	const single = `{"cniVersion": "0.4.0", "name": "old", "type": "bridge", "isGateway": true}`
	for name, test := range map[string]struct {
		before   map[string]string
		confName string
		active   string
	}{
		"a list":               {before: map[string]string{"10-pods.conflist": ptp, "99-loopback.conf": single}, active: "10-pods.conflist"},
		"a single plug-in":     {before: map[string]string{"10-a.conf": single, "20-b.conflist": ptp}, active: "10-a.conflist"},
		"json":                 {before: map[string]string{"10-a.json": single}, active: "10-a.conflist"},
		"the first is broken":  {before: map[string]string{"00-broken.conflist": "{", "10-pods.conflist": ptp}, active: "10-pods.conflist"},
		"a named list":         {before: map[string]string{"10-a.conflist": ptp, "20-b.conflist": ptp}, confName: "20-b.conflist", active: "20-b.conflist"},
		"a named single one":   {before: map[string]string{"10-a.conflist": ptp, "20-b.conf": single}, confName: "20-b.conf", active: "20-b.conflist"},
		"files of other kinds": {before: map[string]string{"00-README": "x", "05.conflist.bak": ptp, "10-pods.conflist": ptp}, active: "10-pods.conflist"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.before)
			n.confName = test.confName
			if err := n.ready(); err == nil {
				t.Error("ready before it is installed")
			}
			for range 2 {
				if err := n.install(); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.ready(); err != nil {
				t.Errorf("not ready after it is installed: %v", err)
			}
			got, text, err := n.active()
			if err != nil || got != test.active || strings.Count(string(text), entry) != 1 {
				t.Errorf("the active file is %s, want %s: %v\n%s", got, test.active, err, text)
			}
			program := filepath.Join(n.binDir, Name)
			info, err := os.Stat(program)
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Fatalf("the program: %v, %v", info, err)
			}
			if err := n.remove(); err != nil {
				t.Fatal(err)
			}
			if got := conf(t, n); !equal(got, test.before) {
				t.Errorf("after it is removed: %v, want %v", got, test.before)
			}
			if _, err := os.Stat(program); !os.IsNotExist(err) {
				t.Errorf("the program is still there: %v", err)
			}
		})
	}
}

// TestOthersWrite checks that the plug-in is reinstalled when another program rewrites the
// configuration, adds a file that sorts first, or removes the program.
func TestOthersWrite(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": ptp})
	for name, change := range map[string]func(){
		"nothing":           func() {},
		"written anew":      func() { write(t, filepath.Join(n.confDir, "10-pods.conflist"), ptp) },
		"another first":     func() { write(t, filepath.Join(n.confDir, "05-cilium.conflist"), ptp) },
		"program gone":      func() { os.Remove(filepath.Join(n.binDir, Name)) },
		"program different": func() { write(t, filepath.Join(n.binDir, Name), "program 0") },
	} {
		change()
		if err := n.install(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := n.ready(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := os.ReadFile(filepath.Join(n.binDir, Name)); err != nil || !bytes.Equal(text, []byte("program 1")) {
			t.Errorf("%s: the program is %q: %v", name, text, err)
		}
	}
}

// TestInstallNothing checks that nothing is written without an existing network: with a
// list that has only this plug-in the runtime would start pods.
func TestInstallNothing(t *testing.T) {
	n := newNode(t, nil)
	if err := n.install(); err == nil || !strings.Contains(err.Error(), "no CNI configuration") {
		t.Errorf("the error is %v", err)
	}
	if got := conf(t, n); len(got) != 0 {
		t.Errorf("it wrote %v", got)
	}
}
