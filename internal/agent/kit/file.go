package kit

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile writes a file atomically, creating its folder if needed.
func WriteFile(name string, content io.Reader, mode fs.FileMode) error {
	dir, base := filepath.Dir(name), filepath.Base(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+base+".*")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// ReplaceLink creates a symbolic link, atomically replacing an existing one.
func ReplaceLink(target, name string) error {
	next := name + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, name)
}

// RemoveEntries removes the entries of a folder whose names match. The next swap retries
// removals that fail.
func RemoveEntries(dir string, match func(name string) bool) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if match(e.Name()) {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}
