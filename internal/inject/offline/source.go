package offline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// MaxFileSize bounds a file, in bytes.
const MaxFileSize = 32 << 20

// stdinName is the Name of the Source read from standard input.
const stdinName = "<stdin>"

// Source is one file of manifests.
type Source struct {
	// Name is the path that the user gave, for the report.
	Name string
	// Relative is the file's path below the folder that was read; empty for standard
	// input and for files given by name.
	Relative string
	// Data is the whole text.
	Data []byte
}

// ErrStdinTwice is returned if "-" is given to Read more than once.
var ErrStdinTwice = errors.New("standard input (-) can be read only once")

// Read reads files, folders and, for "-", standard input, in the order given. From a
// folder it reads all .yaml, .yml and .json files at any depth, sorted by path.
func Read(names []string, stdin io.Reader) ([]Source, error) {
	var sources []Source
	for i, name := range names {
		if name == "-" {
			if slices.Contains(names[:i], name) {
				return nil, ErrStdinTwice
			}
			data, err := readAll(stdin)
			if err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
			sources = append(sources, Source{Name: stdinName, Data: data})
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			source, err := readFile(name, "")
			if err != nil {
				return nil, err
			}
			sources = append(sources, source)
			continue
		}
		below, err := readFolder(name)
		if err != nil {
			return nil, err
		}
		sources = append(sources, below...)
	}
	return sources, nil
}

func readFolder(folder string) ([]Source, error) {
	var sources []Source
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || !manifest.IsFile(path) {
			return nil
		}
		// Links are followed; pipes and devices are skipped.
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		source, err := readFile(path, relative)
		sources = append(sources, source)
		return err
	})
	if err == nil && len(sources) == 0 {
		err = fmt.Errorf("folder %s contains no .yaml, .yml or .json file", folder)
	}
	return sources, err
}

func readFile(name, relative string) (Source, error) {
	f, err := os.Open(name)
	if err != nil {
		return Source{}, err
	}
	defer f.Close()
	data, err := readAll(f)
	if err != nil {
		return Source{}, fmt.Errorf("%s: %w", name, err)
	}
	return Source{Name: name, Relative: relative, Data: data}, nil
}

// readAll reads at most one byte more than is allowed: Parse reports files that are
// too large.
func readAll(r io.Reader) ([]byte, error) {
	var b bytes.Buffer
	_, err := b.ReadFrom(io.LimitReader(r, MaxFileSize+1))
	return b.Bytes(), err
}
