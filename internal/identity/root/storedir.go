package root

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

// defaultPoll is how often files are looked at. They are few and small.
const defaultPoll = 500 * time.Millisecond

// maxSecretFile bounds a file of a Secret, in bytes, as Kubernetes bounds a Secret.
const maxSecretFile = 1 << 20

// DirStore keeps each Secret as a folder with a file for each key, which only their
// owner may read. One process at a time may change them; any number may fill them first.
type DirStore struct {
	// Poll is how often Watch looks at the files; NewDirStore sets half a second.
	Poll time.Duration

	dir string
	mu  sync.Mutex
	// updates counts what was written here.
	updates atomic.Int64
}

var _ SecretStore = (*DirStore)(nil)

// NewDirStore returns a store in a folder, which is made if it is missing.
func NewDirStore(dir string) (*DirStore, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the folder of the CA: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of the CA: %w", err)
	}
	return &DirStore{Poll: defaultPoll, dir: dir}, nil
}

// Describe returns the folder.
func (s *DirStore) Describe(name string) string { return filepath.Join(s.dir, name) }

// folder returns where a Secret is. Names come from users' objects.
func (s *DirStore) folder(name string) (string, error) {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\\\x00") {
		return "", fmt.Errorf("%q is not the name of a Secret", name)
	}
	return filepath.Join(s.dir, name), nil
}

// Get reads a folder; one that is missing is an empty Secret. Files that begin with a dot
// and folders are none of it.
func (s *DirStore) Get(_ context.Context, name string) (Secret, error) {
	folder, err := s.folder(name)
	if err != nil {
		return Secret{}, err
	}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return Secret{empty: true}, nil
	}
	if err != nil {
		return Secret{}, fmt.Errorf("reading the Secret: %w", err)
	}
	data := make(map[string][]byte)
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		info, err := os.Stat(path) // A link counts as what it leads to.
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
	return Secret{Data: data, version: digest(data)}, nil
}

// create makes the folder beside its place and moves it there.
func (s *DirStore) create(folder string, data map[string][]byte) error {
	made, err := os.MkdirTemp(s.dir, ".new-")
	if err != nil {
		return fmt.Errorf("making %s: %w", folder, err)
	}
	defer os.RemoveAll(made)
	for key, content := range data {
		if err := writeSynced(filepath.Join(made, key), content, 0o600); err != nil {
			return fmt.Errorf("making %s: %w", folder, err)
		}
	}
	// To rename a folder onto one that has files fails, as it should, and onto an empty
	// one it does not.
	if _, err := os.Lstat(folder); err == nil {
		return fmt.Errorf("making %s: %w", folder, ErrConflict)
	}
	err = os.Rename(made, folder)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making %s: %w", folder, ErrConflict)
	}
	if err != nil {
		return fmt.Errorf("making %s: %w", folder, err)
	}
	return nil
}

// Update makes a folder that was not there as a whole, and else replaces the files, each
// at once. Files of other keys go last.
func (s *DirStore) Update(ctx context.Context, name string, old Secret, data map[string][]byte) error {
	folder, err := s.folder(name)
	if err != nil {
		return err
	}
	defer s.updates.Add(1)
	if old.version == "" {
		return s.create(folder, data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.Get(ctx, name)
	if err == nil && now.version != old.version {
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

// Watch looks at the files again and again. What is written here and taken away at once
// is a change too, though the files are as they were.
func (s *DirStore) Watch(ctx context.Context, name string, changed func()) {
	poll(ctx, s.Poll, func() string {
		secret, err := s.Get(ctx, name)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(s.updates.Load(), secret.version)
	}, changed)
}

// poll calls changed whenever what state returns has changed.
func poll(ctx context.Context, period time.Duration, state func() string, changed func()) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	last := state()
	// Something may have changed since the caller looked.
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

// WriteFile replaces a file whole or not at all, also if the machine stops meanwhile.
func WriteFile(path string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	temporary := f.Name()
	defer os.Remove(temporary)
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// writeSynced writes a file that nobody looks at yet.
func writeSynced(path string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// digest is a hash of data, the same for the same data.
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
