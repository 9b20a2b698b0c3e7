package localmesh_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// bareImage returns an image that contains only a program, at the path to, and the loader and
// libraries that it is linked to.
func bareImage(program, to string) (lab.Image, error) {
	image := lab.Image{Files: map[string]string{to: program}}
	loader, err := loaderOf(program)
	if err != nil {
		return lab.Image{}, fmt.Errorf("finding the libraries of %s: %w", program, err)
	}
	if loader == "" {
		return image, nil
	}
	libraries, err := librariesOf(loader, program)
	if err != nil {
		return lab.Image{}, fmt.Errorf("finding the libraries of %s: %w", program, err)
	}
	for _, file := range append(libraries, loader) {
		image.Files[file] = file
	}
	return image, nil
}

// loaderOf returns the path of a program's loader, or "" if it is linked statically.
func loaderOf(program string) (string, error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, part.Filesz)
		if _, err := part.ReadAt(name, 0); err != nil {
			return "", err
		}
		return string(bytes.TrimRight(name, "\x00")), nil
	}
	return "", nil
}

// librariesOf returns the files that the loader would load.
func librariesOf(loader, program string) ([]string, error) {
	// musl's loader supports this option too.
	out, err := exec.Command(loader, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", loader, err)
	}
	var files []string
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/libc.so.6 (0x...)". Lines without an arrow are for the loader
		// and libraries without a file.
		name, found, ok := strings.Cut(line, " => ")
		if !ok {
			continue
		}
		file, _, _ := strings.Cut(strings.TrimSpace(found), " (")
		if !filepath.IsAbs(file) {
			return nil, fmt.Errorf("the library %s: %w", strings.TrimSpace(name), errors.New(file))
		}
		if file != loader && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files, nil
}

// TestBareImageFiles creates the image of a program that is linked to the C library, and of a file
// that is not a program.
func TestBareImageFiles(t *testing.T) {
	program, err := exec.LookPath("ls")
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	image, err := bareImage(program, "/list")
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
	if image, err := bareImage(script, "/script"); err == nil {
		t.Errorf("a script has the image %+v", image)
	}
}
