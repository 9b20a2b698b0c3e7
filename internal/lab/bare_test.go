package lab_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/lab"
)

// TestBare creates the image of a program that is linked to the C library, and of a file
// that is not a program.
func TestBare(t *testing.T) {
	program, err := exec.LookPath("ls")
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	image, err := lab.Bare(program, "/list")
	if err != nil {
		t.Fatal(err)
	}
	files := slices.Sorted(maps.Keys(image.Files))
	if image.Files["/list"] != program || len(files) < 3 || image.HostRoot {
		t.Errorf("the image is %+v, want the program, its loader and the C library", image)
	}
	for _, name := range files {
		if _, err := os.Stat(image.Files[name]); err != nil {
			t.Error(err)
		}
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if image, err := lab.Bare(script, "/script"); err == nil {
		t.Errorf("a script has the image %+v", image)
	}
}
