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

// Bare returns an image that holds a program, which containers have at the path to, and
// what it is linked to: its loader and its libraries. There is nothing else in it, and no
// other program but the loader.
func Bare(program, to string) (Image, error) {
	image := Image{Files: map[string]string{to: program}}
	loader, err := loaderOf(program)
	if err != nil {
		return Image{}, fmt.Errorf("what the program %s is linked to: %w", program, err)
	}
	if loader == "" {
		return image, nil
	}
	libraries, err := librariesOf(loader, program)
	if err != nil {
		return Image{}, fmt.Errorf("what the program %s is linked to: %w", program, err)
	}
	for _, file := range append(libraries, loader) {
		image.Files[file] = file
	}
	return image, nil
}

// loaderOf returns the path of the loader that a program names, or "" for a static one.
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

// librariesOf asks the loader which files it would load.
func librariesOf(loader, program string) ([]string, error) {
	// Loaders of musl know what they are to do by their name or by this option as well.
	out, err := exec.Command(loader, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", loader, err)
	}
	var files []string
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/libc.so.6 (0x...)", or without the arrow what has no file, and
		// the loader.
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
