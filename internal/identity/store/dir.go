package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// defaultPoll is how often files, which are few and small, are checked for changes.
const defaultPoll = 500 * time.Millisecond

// maxSecretFile limits the size of a file, in bytes; it is Kubernetes' limit for a Secret.
const maxSecretFile = 1 << 20

// Dir stores each Secret as a folder with a file per key, readable only by its owner.
// Only one process at a time may change Secrets, but any number may compete to create one.
type Dir struct {
	// Poll is how often Watch checks the files; NewDir sets half a second.
	Poll time.Duration

	dir string
	mu  sync.Mutex
	// updates counts the calls of Update.
	updates atomic.Int64
}

var _ Secrets = (*Dir)(nil)

// NewDir returns a store in a folder, which it creates if it is missing.
func NewDir(dir string) (*Dir, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the folder of the CA: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder of the CA: %w", err)
	}
	return &Dir{Poll: defaultPoll, dir: dir}, nil
}

// Describe returns the folder.
func (s *Dir) Describe(name string) string { return filepath.Join(s.dir, name) }

// folder returns the path of a Secret. It validates the name, which is user input.
func (s *Dir) folder(name string) (string, error) {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\\\x00") {
		return "", fmt.Errorf("%q is not the name of a Secret", name)
	}
	return filepath.Join(s.dir, name), nil
}

// Get reads a folder. If it is missing, the Secret is empty. Folders in it and files whose
// names begin with a dot are ignored.
func (s *Dir) Get(_ context.Context, name string) (Secret, error) {
	folder, err := s.folder(name)
	if err != nil {
		return Secret{}, err
	}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return Secret{Empty: true}, nil
	}
	if err != nil {
		return Secret{}, fmt.Errorf("reading the Secret: %w", err)
	}
	data := make(map[string][]byte)
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		info, err := os.Stat(path) // It follows links.
		if strings.HasPrefix(e.Name(), ".") || errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		if err == nil && info.Size() > maxSecretFile {
			err = fmt.Errorf("%s has more than %d bytes", path, maxSecretFile)
		}
		if err == nil {
			data[e.Name()], err = os.ReadFile(path)
		}
		if err != nil {
			return Secret{}, fmt.Errorf("reading the Secret: %w", err)
		}
	}
	return Secret{Data: data, Version: digest(data)}, nil
}

// create atomically creates a folder: under another name first.
func (s *Dir) create(folder string, data map[string][]byte) error {
	made, err := os.MkdirTemp(s.dir, ".new-")
	if err != nil {
		return fmt.Errorf("creating %s: %w", folder, err)
	}
	defer os.RemoveAll(made)
	for key, content := range data {
		if err := writeSynced(filepath.Join(made, key), content, 0o600); err != nil {
			return fmt.Errorf("creating %s: %w", folder, err)
		}
	}
	// Rename fails if the target folder has files, but would replace an empty one.
	if _, err := os.Lstat(folder); err == nil {
		return fmt.Errorf("creating %s: %w", folder, ErrConflict)
	}
	err = os.Rename(made, folder)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("creating %s: %w", folder, ErrConflict)
	}
	if err != nil {
		return fmt.Errorf("creating %s: %w", folder, err)
	}
	return nil
}

// Update creates a missing folder atomically. In an existing one it replaces each file
// atomically and then deletes the files of other keys.
func (s *Dir) Update(ctx context.Context, name string, old Secret, data map[string][]byte) error {
	folder, err := s.folder(name)
	if err != nil {
		return err
	}
	defer s.updates.Add(1)
	if old.Version == "" {
		return s.create(folder, data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.Get(ctx, name)
	if err == nil && now.Version != old.Version {
		return fmt.Errorf("changing %s: %w", folder, ErrConflict)
	}
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if err := WriteFile(filepath.Join(folder, key), data[key], 0o600); err != nil {
			return err
		}
	}
	for key := range now.Data {
		if _, ok := data[key]; !ok {
			if err := os.Remove(filepath.Join(folder, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("changing %s: %w", folder, err)
			}
		}
	}
	return nil
}

// Watch polls the files. An Update also counts as a change if it was reverted before the
// next poll.
func (s *Dir) Watch(ctx context.Context, name string, changed func()) {
	state := func() string {
		secret, err := s.Get(ctx, name)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(s.updates.Load(), secret.Version)
	}
	ticker := time.NewTicker(s.Poll)
	defer ticker.Stop()
	last := state()
	// There may have been a change since the caller last read.
	changed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if now := state(); now != last {
				last = now
				changed()
			}
		}
	}
}

// WriteFile replaces a file atomically, even if the machine crashes meanwhile.
func WriteFile(path string, content []byte, mode fs.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err == nil {
		defer os.Remove(temporary.Name())
		err = fill(temporary, content, mode)
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// writeSynced creates a file, not atomically, and flushes it to the disk.
func writeSynced(path string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	return fill(f, content, mode)
}

// fill writes a new file, flushes it to the disk and closes it.
func fill(f *os.File, content []byte, mode fs.FileMode) error {
	_, err := f.Write(content)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// digest returns a hash of data.
func digest(data map[string][]byte) string {
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		content := sha256.Sum256(data[key])
		name := sha256.Sum256([]byte(key))
		sum.Write(name[:])
		sum.Write(content[:])
	}
	return hex.EncodeToString(sum.Sum(nil))
}
