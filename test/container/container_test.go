package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/compile"
)

// contained returns a function that runs a command in a container, in a folder.
func contained(t *testing.T) func(dir string, command ...string) (string, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: dropping the rights of root needs root")
	}
	program := filepath.Join(t.TempDir(), "container")
	if err := compile.Build(t.Context(), compile.Options{Packages: []string{"."}, Output: program}); err != nil {
		t.Fatal(err)
	}
	return func(dir string, command ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, command...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// TestRights tries what a container may do and what not.
func TestRights(t *testing.T) {
	run := contained(t)
	for command, allowed := range map[string]bool{
		"unshare --net true":                   false,
		"unshare --user true":                  false,
		"unshare --mount true":                 false,
		"nsenter --net=/proc/self/ns/net true": false,
		"mount -t tmpfs none /mnt":             false,
		"ip link add test type dummy":          false,
		"chown 1 " + t.TempDir():               true,
		"bash -c :":                            true,
	} {
		if out, err := run("", strings.Fields(command)...); (err == nil) != allowed {
			t.Errorf("%s: %v, want that it is allowed: %t\n%s", command, err, allowed, out)
		}
	}
}

// TestDemo runs the demo, which has no traffic then, and says so first.
func TestDemo(t *testing.T) {
	run := contained(t)
	root := filepath.Join("..", "..")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "test", "envoy", "install.sh")).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: there is no Envoy: %v\n%s", err, out)
	}
	bin := t.TempDir()
	if err := compile.Build(t.Context(), compile.Options{
		Folder: root, Packages: []string{"./cmd/outrigger-lab", "./cmd/outrigger-agent", "./samples/bookstore"}, Output: bin + "/",
		Env: []string{"CGO_ENABLED=0"},
	}); err != nil {
		t.Fatal(err)
	}
	out, err := run(root, filepath.Join(bin, "outrigger-lab"), "demo", "--for", "1s")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	folder := filepath.Join(root, "samples", "bookstore-smi")
	if out, err := run(root, filepath.Join(bin, "outrigger-lab"), "-f", folder); err == nil || !strings.Contains(out, "this machine cannot create pods") || !strings.Contains(out, "docker run --privileged") {
		t.Errorf("the lab ends with %v, and says\n%s", err, out)
	}
	lines := strings.Split(out, "\n")
	if first := strings.Join(lines[:min(3, len(lines))], "\n"); !strings.Contains(first, "traffic is left out") || !strings.Contains(first, "docker run --privileged") {
		t.Errorf("the first lines are\n%s", first)
	}
	for _, want := range []string{
		"bookbuyer/bookbuyer: inject (", "gets: outrigger-init, outrigger-proxy", "envoyproxy/envoy",
		"bookbuyer/bookbuyer to bookstore/bookstore:80: Allowed", "bookthief/bookthief to bookstore/bookstore:80: Denied",
		"the proxy accepts the configuration of bookstore/bookstore-v2-0", "The demo is complete",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
}
