package localmesh

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// vendored is a vendor's driver, whose proxy's path its test sets.
type vendored struct{ program func() (string, error) }

func (vendored) Patch(context.Context) error                  { return nil }
func (vendored) Start(context.Context) (health.Probes, error) { return nil, nil }
func (v vendored) FindProxy() (string, error)                 { return v.program() }

func TestFindProxies(t *testing.T) {
	var program string
	failed := errors.New("the disk is on fire")
	sidecar.Register("Vendored", vendored{func() (string, error) {
		if program == "" {
			return "", driver.ErrNoProxy
		}
		return program, nil
	}})
	// Other tests use the driver too.
	defer func() { program = "" }()
	sidecar.Register("burning", vendored{func() (string, error) { return "", failed }})
	program = "/opt/vendored"
	proxies, missing := FindProxies()
	if proxies["vendored"] != program {
		t.Errorf("the vendor's program is %q, want %q", proxies["vendored"], program)
	}
	if !errors.Is(missing["burning"], failed) {
		t.Errorf("the driver's error is %v, want its own", missing["burning"])
	}
	if proxies["null"] != "" || missing["null"] != nil {
		t.Errorf("a driver that is no Finder has the program %q, %v; want neither", proxies["null"], missing["null"])
	}
	if proxies["envoy"] == "" && !errors.Is(missing["envoy"], driver.ErrNoProxy) {
		t.Errorf("of Envoy there is no program, and the reason is %v", missing["envoy"])
	}
}

// TestBuildProgramsOwn uses a vendor's control plane, compiled or not.
func TestBuildProgramsOwn(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "mesh")
	if err := os.WriteFile(ready, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := BuildPrograms(t.Context(), t.TempDir(), ready)
	if err != nil {
		t.Fatal(err)
	}
	if p.Outrigger != ready {
		t.Errorf("the control plane is %s, want %s", p.Outrigger, ready)
	}
	own := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/own\n", "main.go": "package main\n\nfunc main() { print(\"own\") }\n"} {
		if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "outrigger")
	if err := build(t.Context(), own, program, "."); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), "", nil, program); err != nil {
		t.Errorf("the vendor's program does not run: %v", err)
	}
	if _, err := BuildPrograms(t.Context(), t.TempDir(), "./none"); err == nil {
		t.Error("a package that is not there is no error")
	}
}

// TestFolderOf checks that a program is in a pod under the name of its class and its own.
func TestFolderOf(t *testing.T) {
	m := &Mesh{options: Options{Dir: t.TempDir()}}
	program := filepath.Join(t.TempDir(), "envoy-1.9")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Twice, as when a mesh continues an earlier one.
	for range 2 {
		folder, err := m.folderOf("envoy", program)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"envoy", "envoy-1.9"} {
			found, err := filepath.EvalSymlinks(filepath.Join(folder, name))
			if err != nil || filepath.Base(found) != "envoy" {
				t.Errorf("%s is %s, %v; want the program by the name of its class", name, found, err)
			}
		}
	}
	named := filepath.Join(filepath.Dir(program), "envoy")
	if err := os.Rename(program, named); err != nil {
		t.Fatal(err)
	}
	if folder, err := m.folderOf("envoy", named); err != nil || folder != filepath.Dir(named) {
		t.Errorf("the folder is %s, %v; want the program's own", folder, err)
	}
}
