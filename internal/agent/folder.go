package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// folder is a folder of files that is swapped in one step: a link to one of the folders
// beside it, each of which holds one version. Their names say which, and a version is a
// digest, so what was written half, or was changed later, is not taken for it. The
// version before stays until the next swap, for readers who are on their way.
type folder struct {
	// link is the folder's path, and prefix begins the names of the versions' folders
	// beside it.
	link, prefix string
	// name is the version's folder that the link leads to, and set what is in it; empty
	// before there is one.
	name string
	set  mirror.Set
}

// openFolder returns the folder with the version that it was left with, or with none if
// that is not good any more; why then says so.
func openFolder(dir string) (f *folder, why, err error) {
	f = &folder{link: dir, prefix: "." + filepath.Base(dir) + "-"}
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("opening the mirrored folder: %w", err)
	case info.Mode()&fs.ModeSymlink == 0:
		return nil, nil, fmt.Errorf("mirror.dir %s is there already and is no link of the agent's; name a path that nobody else uses", dir)
	}
	name, err := os.Readlink(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the mirrored folder: %w", err)
	}
	set, why := f.load(name)
	if why == nil {
		f.name, f.set = name, set
	}
	return f, why, nil
}

// beside returns the path of one of the versions' folders.
func (f *folder) beside(name string) string { return filepath.Join(filepath.Dir(f.link), name) }

// load returns what is in a version's folder, if that is the version that its name says.
func (f *folder) load(name string) (mirror.Set, error) {
	version, ok := f.versionOf(name)
	if !ok {
		return mirror.Set{}, fmt.Errorf("%s leads to %q, which is no folder of the agent's", f.link, name)
	}
	var files []*mirror.File
	root := f.beside(name)
	left := int64(mirror.MaxChange)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%s is not a file", path)
		}
		text, err := readMost(path, left)
		if err != nil {
			return err
		}
		left -= int64(len(text))
		inside, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		file, err := mirror.NewFile(inside, text)
		files = append(files, file)
		return err
	})
	if err != nil {
		return mirror.Set{}, err
	}
	set := mirror.NewSet(files...)
	if got := mirror.Version(set); got != version {
		return mirror.Set{}, fmt.Errorf("the files in %s are version %s, not %s", root, got, version)
	}
	return set, nil
}

// versionOf returns the version that the name of a version's folder says.
func (f *folder) versionOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, f.prefix)
	if !ok || strings.ContainsAny(name, "/\x00") {
		return "", false
	}
	version, _, ok := strings.Cut(rest, "-")
	return version, ok && len(version) == 2*len(mesh.Digest{})
}

func readMost(path string, most int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(file, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("%s makes the folder larger than %d MiB", path, mirror.MaxChange>>20)
	}
	return b.String(), err
}

// stage writes a version beside the folder and returns its path. It is on the disk, and
// nobody looks at it before swap.
func (f *folder) stage(set mirror.Set) (string, error) {
	parent := filepath.Dir(f.link)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, f.prefix+mirror.Version(set)+"-")
	if err != nil {
		return "", err
	}
	if err := f.fill(dir, set); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// fill writes the files. What the folder holds already is linked, so that the work is
// that of what has changed.
func (f *folder) fill(dir string, set mirror.Set) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	var written []string
	folders := map[string]bool{dir: true}
	for name, file := range set.All() {
		to := filepath.Join(dir, filepath.FromSlash(name))
		for above := filepath.Dir(to); !folders[above]; above = filepath.Dir(above) {
			folders[above] = true
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if was, ok := f.set.Get(name); ok && was.Digest() == file.Digest() &&
			os.Link(filepath.Join(f.beside(f.name), filepath.FromSlash(name)), to) == nil {
			continue
		}
		if err := os.WriteFile(to, []byte(file.Text), 0o444); err != nil {
			return err
		}
		written = append(written, to)
	}
	// The disk may write all of them while the first is waited for.
	for _, wait := range []bool{false, true} {
		for _, name := range written {
			if err := flush(name, wait); err != nil {
				return err
			}
		}
	}
	for name := range folders {
		if err := flush(name, true); err != nil {
			return err
		}
	}
	return nil
}

// flush has a file or folder written to the disk, and waits until it is there.
func flush(name string, wait bool) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	if wait {
		err = file.Sync()
	} else {
		// It is no more than a hint.
		_ = unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	}
	return errors.Join(err, file.Close())
}

// swap makes a staged version that of the folder.
func (f *folder) swap(staged string, set mirror.Set) error {
	name := filepath.Base(staged)
	next := f.link + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(name, next); err != nil {
		return err
	}
	if err := os.Rename(next, f.link); err != nil {
		return err
	}
	before := f.name
	f.name, f.set = name, set
	f.clean(name, before)
	return flush(filepath.Dir(f.link), true)
}

// clean removes the versions' folders but those to keep. What cannot be removed is
// tried again with the next swap.
func (f *folder) clean(keep ...string) {
	entries, err := os.ReadDir(filepath.Dir(f.link))
	if err != nil {
		return
	}
	for _, e := range entries {
		if _, ok := f.versionOf(e.Name()); ok && !slices.Contains(keep, e.Name()) {
			_ = os.RemoveAll(f.beside(e.Name()))
		}
	}
}
