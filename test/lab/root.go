package lab

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Of an image's root, a container has the folders in own for itself, and also the lab's files
// in madeEtc. Programs write into the folders below those in written, which are made anew.
var (
	own     = []string{"/dev", "/lost+found", "/proc", "/run", "/sys", "/tmp", "/var/tmp"}
	madeEtc = []string{"/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf"}
	written = []string{"/var/cache", "/var/lib", "/var/log", "/var/spool"}
)

// folder is an empty folder to make in a container.
type folder struct {
	name     string
	mode     fs.FileMode
	uid, gid int
}

// make makes the folder below the new root.
func (f folder) make() error {
	name := newRoot + f.name
	if err := os.MkdirAll(name, 0o755); err != nil {
		return err
	}
	// Another user's folder belongs to root where that user does not exist.
	if err := os.Chown(name, f.uid, f.gid); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return err
	}
	return os.Chmod(name, f.mode)
}

// addRoot adds the files of an image's root.
func (r *rootfs) addRoot(root string) error {
	real, err := filepath.Abs(root)
	if err == nil {
		// Absolute targets of links are wrong in the lab's file system.
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return err
	}
	r.folders = append(r.folders, folder{name: "/run/lock", mode: 0o777 | fs.ModeSticky})
	return r.addEntries(real, "/")
}

// addEntries adds the entries of a folder of an image's root.
func (r *rootfs) addEntries(root, dir string) error {
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		switch {
		case slices.Contains(own, name) || slices.Contains(madeEtc, name):
		case entry.Type() == fs.ModeSymlink:
			if r.links[name], err = os.Readlink(filepath.Join(root, name)); err != nil {
				return err
			}
		case slices.Contains(written, name):
			if err := r.addFolders(root, name); err != nil {
				return err
			}
		case name == "/etc" || name == "/var":
			if err := r.addEntries(root, name); err != nil {
				return err
			}
		case entry.IsDir() || entry.Type().IsRegular():
			r.image = append(r.image, mount{path.Join(machineRoot, root, name), name, true})
		}
	}
	return nil
}

// addFolders adds a folder and those directly below it, without their files.
func (r *rootfs) addFolders(root, dir string) error {
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return err
	}
	names := []string{dir}
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, path.Join(dir, entry.Name()))
		}
	}
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			return err
		}
		f := folder{name: name, mode: info.Mode() &^ fs.ModeDir}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			f.uid, f.gid = int(stat.Uid), int(stat.Gid)
		}
		r.folders = append(r.folders, f)
	}
	return nil
}
