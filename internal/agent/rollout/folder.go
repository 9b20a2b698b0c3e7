package rollout

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

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// folder is a folder of files that is replaced atomically: a symbolic link to one of the
// version folders beside it. A version folder is named after its version, a digest of its
// files, so incomplete or modified ones are detected. The previous version stays until the
// next swap, for readers that still use it.
type folder struct {
	// link is the folder's path; prefix begins the names of the version folders beside it.
	link, prefix string
	// name is the version folder that the link points to and set its content; both are
	// empty before there is one.
	name string
	set  mirror.Set
}

// openFolder opens the folder with the version that an earlier agent left in it. If that
// version is invalid, the folder is returned without one, and why says what is wrong.
func openFolder(dir string) (f *folder, why, err error) {
	f = &folder{link: dir, prefix: "." + filepath.Base(dir) + "-"}
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("opening the mirrored folder: %w", err)
	case info.Mode()&fs.ModeSymlink == 0:
		return nil, nil, fmt.Errorf("mirror.dir %s already exists and is not a link of the agent's; choose a path that nothing else uses", dir)
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

// versionDir returns the path of a version folder.
func (f *folder) versionDir(name string) string { return filepath.Join(filepath.Dir(f.link), name) }

// load returns the content of a version folder, if it matches the version in the name.
func (f *folder) load(name string) (mirror.Set, error) {
	version, ok := f.parseVersion(name)
	if !ok {
		return mirror.Set{}, fmt.Errorf("%s points to %q, which is not one of the agent's folders", f.link, name)
	}
	var files []*mirror.File
	root := f.versionDir(name)
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

// parseVersion returns the version in the name of a version folder.
func (f *folder) parseVersion(name string) (string, bool) {
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

// stage writes a version beside the folder and returns its path. The files are flushed to
// the disk and not visible to readers before swap.
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

// fill writes the files. Unchanged files are hard-linked, so the cost depends on what has
// changed.
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
			os.Link(filepath.Join(f.versionDir(f.name), filepath.FromSlash(name)), to) == nil {
			continue
		}
		mode := fs.FileMode(0o444)
		if file.Private {
			mode = 0o400
		}
		if err := os.WriteFile(to, []byte(file.Text), mode); err != nil {
			return err
		}
		written = append(written, to)
	}
	// First start writing all files, then wait for each: the disk can write in parallel.
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

// flush writes a file or folder to the disk. Without wait it only starts to.
func flush(name string, wait bool) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	if wait {
		err = file.Sync()
	} else {
		// The call is only a hint to the kernel.
		_ = unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	}
	return errors.Join(err, file.Close())
}

// swap points the folder at a staged version.
func (f *folder) swap(staged string, set mirror.Set) error {
	name := filepath.Base(staged)
	if err := kit.ReplaceLink(name, f.link); err != nil {
		return err
	}
	before := f.name
	f.name, f.set = name, set
	f.clean(name, before)
	return flush(filepath.Dir(f.link), true)
}

// clean removes all version folders except those in keep.
func (f *folder) clean(keep ...string) {
	kit.RemoveEntries(filepath.Dir(f.link), func(name string) bool {
		_, ok := f.parseVersion(name)
		return ok && !slices.Contains(keep, name)
	})
}

// FolderReference stands for the folder of a Mirror.
const FolderReference = "${MIRROR}"

// AtFolder replaces FolderReference in a command's argument by the folder.
func AtFolder(arg, folder string) string { return strings.ReplaceAll(arg, FolderReference, folder) }
