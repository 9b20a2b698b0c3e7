package servingcert

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long files must be unchanged before they are read, because
	// they may be replaced one by one.
	settleTime = 100 * time.Millisecond
	// pollInterval is how often files are read without an event: a change behind a
	// symbolic link or on a network file system causes none.
	pollInterval = 10 * time.Second
)

// Files are the paths of PEM files.
type Files struct {
	// Certificate is the chain, leaf first, Key its private key.
	Certificate, Key string
	// CA is the bundle of CAs that clients must trust.
	CA string
}

var _ Issuer = (*FileIssuer)(nil)

// FileIssuer reads the serving certificate from files that another program updates. It
// notices changes whether files are written in place, renamed into place or swapped
// by the kubelet behind a symbolic link.
type FileIssuer struct {
	files Files
	read  lastRead
}

// NewFileIssuer returns an issuer that reads the files.
func NewFileIssuer(files Files) *FileIssuer {
	return &FileIssuer{files: files}
}

// Issue returns the content of the files.
func (f *FileIssuer) Issue(context.Context) (Material, error) {
	contents, err := f.contents()
	f.read.set(contents...)
	if err != nil {
		return Material{}, err
	}
	material, err := newMaterial(contents[0], contents[1], contents[2])
	if err != nil {
		return Material{}, fmt.Errorf("the files %s, %s and %s cannot be used: %w", f.files.Certificate, f.files.Key, f.files.CA, err)
	}
	return material, nil
}

// Watch watches the files.
func (f *FileIssuer) Watch(ctx context.Context, changed func()) {
	watchFiles(ctx, f.paths(), func() {
		if contents, _ := f.contents(); f.read.differs(contents...) {
			changed()
		}
	})
}

func (f *FileIssuer) paths() []string {
	return []string{f.files.Certificate, f.files.Key, f.files.CA}
}

// contents reads the files in the order of paths, up to the first that cannot be
// read.
func (f *FileIssuer) contents() ([][]byte, error) {
	var contents [][]byte
	for _, path := range f.paths() {
		data, err := os.ReadFile(path)
		if err != nil {
			return contents, fmt.Errorf("reading the serving certificate's files: %w", err)
		}
		contents = append(contents, data)
	}
	return contents, nil
}

// watchFiles calls look whenever one of the files may have changed, until ctx
// ends.
func watchFiles(ctx context.Context, paths []string, look func()) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	settled := time.NewTimer(0)
	defer settled.Stop()

	// Without a watcher, such as when the node has run out of inotify instances, the
	// channels stay nil and only polling remains.
	var events chan fsnotify.Event
	var faults chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, faults = watcher.Events, watcher.Errors
	}
	watchFolders := func() {
		for _, path := range paths {
			if watcher != nil {
				// A missing folder is retried at the next poll.
				_ = watcher.Add(filepath.Dir(path))
			}
		}
	}

	watchFolders()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			settled.Reset(settleTime)
		case <-faults:
			settled.Reset(settleTime)
		case <-settled.C:
			look()
		case <-poll.C:
			// A folder that was deleted and created again has lost its watch.
			watchFolders()
			look()
		}
	}
}
