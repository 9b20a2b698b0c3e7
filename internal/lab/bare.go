package lab

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Bare returns an image that contains only a program, at the path to, and the loader and
// libraries that it is linked to.
func Bare(program, to string) (Image, error) {
	image := Image{Files: map[string]string{to: program}}
	loader, err := loaderOf(program)
	if err != nil {
		return Image{}, fmt.Errorf("finding the libraries of %s: %w", program, err)
	}
	if loader == "" {
		return image, nil
	}
	libraries, err := librariesOf(loader, program)
	if err != nil {
		return Image{}, fmt.Errorf("finding the libraries of %s: %w", program, err)
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
