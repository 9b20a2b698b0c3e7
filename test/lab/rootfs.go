package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// mount is a folder or a file to mount in a container.
type mount struct {
	// from is a path in the lab's file system, and to one in the container.
	from, to string
	readOnly bool
}

// rootfs are the files of a container.
type rootfs struct {
	// image are the image's files, and volumes the pod's, which are mounted later.
	image, volumes []mount
	links          map[string]string
	// folders are the empty folders of an image's root.
	folders []folder
	// hosts is the pod's /etc/hosts in the lab's file system, and etc the content of
	// other files in /etc.
	hosts    string
	etc      map[string]string
	dir      string
	readOnly bool
}

// hostDirs are the machine's folders that dynamically linked programs need, and hostFiles
// the files that their libraries read.
var (
	hostDirs  = []string{"/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin"}
	hostFiles = []string{"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"}
)

// addImage adds an image's files. Relative paths on the machine are relative to this
// program's working directory.
func (r *rootfs) addImage(image Image) error {
	r.links = make(map[string]string)
	if image.Root != "" {
		if err := r.addRoot(image.Root); err != nil {
			return fmt.Errorf("the image's root %s: %w", image.Root, err)
		}
	} else if image.HostRoot {
		for _, name := range slices.Concat(hostDirs, hostFiles) {
			info, err := os.Lstat(name)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				return err
			case info.Mode().Type() == fs.ModeSymlink:
				if r.links[name], err = os.Readlink(name); err != nil {
					return err
				}
			default:
				r.image = append(r.image, mount{path.Join(machineRoot, name), name, true})
			}
		}
	}
	for _, to := range slices.Sorted(maps.Keys(image.Files)) {
		from, err := filepath.Abs(image.Files[to])
		if err == nil {
			// Absolute targets of links are wrong in the lab's file system.
			from, err = filepath.EvalSymlinks(from)
		}
		if err != nil {
			return fmt.Errorf("the image's file %s: %w", to, err)
		}
		if !path.IsAbs(to) {
			return fmt.Errorf("the image's file %q: its path in the container is not absolute", to)
		}
		r.image = append(r.image, mount{path.Join(machineRoot, from), path.Clean(to), true})
	}
	return nil
}

// make assembles the container's root in the current thread's mount namespace, and adds
// the calls by which the new process changes to it.
func (r *rootfs) make(calls *calls) error {
	unix.Umask(0)
	defer unix.Umask(0o022)
	if err := unix.Mount("root", newRoot, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=0755,size=256m"); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	for _, dir := range []string{"/dev/shm", "/etc", "/proc", "/run", "/sys", "/var"} {
		if err := os.MkdirAll(newRoot+dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if err := os.Mkdir(newRoot+dir, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(newRoot+dir, 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	for link, to := range r.links {
		if err := os.Symlink(to, newRoot+link); err != nil {
			return err
		}
	}
	for _, f := range r.folders {
		if err := f.make(); err != nil {
			return err
		}
	}
	for _, m := range r.image {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := r.mountEtc(); err != nil {
		return err
	}
	if err := mountDev(); err != nil {
		return err
	}
	slices.SortStableFunc(r.volumes, func(a, b mount) int { return cmp.Compare(a.to, b.to) })
	for _, m := range r.volumes {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if r.dir != "" {
		// A missing working directory is created if possible.
		_ = os.MkdirAll(newRoot+r.dir, 0o755)
	}
	if err := calls.mountProc(); err != nil {
		return err
	}
	calls.changeRoot(newRoot)
	if r.readOnly {
		calls.mount("making its root read-only", "", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID)
	}
	return nil
}

// mount mounts m below the new root. It creates the folder or file that is the mount
// point.
func (m mount) mount() error {
	target := newRoot + m.to
	info, err := os.Stat(m.from)
	if err != nil {
		return fmt.Errorf("mounting %s: %w", m.to, err)
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else {
		err = touch(target)
	}
	if err != nil {
		return fmt.Errorf("mounting %s: %w", m.to, err)
	}
	if err := unix.Mount(m.from, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", m.to, err)
	}
	// The machine's setuid programs must not work in containers.
	attributes := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}
	if m.readOnly {
		attributes.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	err = unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, attributes)
	if errors.Is(err, unix.ENOSYS) {
		// Linux before 5.12: submounts are not changed.
		err = m.remount(target)
	}
	if err != nil {
		return fmt.Errorf("mounting %s: %w", m.to, err)
	}
	return nil
}

func (m mount) remount(target string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(target, &stat); err != nil {
		return err
	}
	// Flags that are already set may not be cleared. They have the same bits in Statfs_t.
	const kept = unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY
	flags := uintptr(stat.Flags)&kept | unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID
	if m.readOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", target, "", flags, "")
}

// touch creates an empty file if it does not exist.
func touch(name string) error {
	if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func (r *rootfs) mountEtc() error {
	for name, content := range r.etc {
		if err := writeUnshared(newRoot+"/etc/"+name, content); err != nil {
			return err
		}
	}
	return mount{from: r.hosts, to: "/etc/hosts"}.mount()
}

// writeUnshared writes a file while this program starts no process. A new process would
// inherit the open file until it executes its program, and the kernel cannot remount a
// file system read-only while a file on it is open for writing.
func writeUnshared(name, content string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, []byte(content), 0o644)
}

func mountDev() error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		target := newRoot + "/dev/" + name
		if err := touch(target); err != nil {
			return err
		}
		if err := unix.Mount(machineRoot+"/dev/"+name, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting /dev/%s: %w", name, err)
		}
	}
	for name, to := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+to, newRoot+"/dev/"+name); err != nil {
			return err
		}
	}
	if err := unix.Mount("shm", newRoot+"/dev/shm", "tmpfs", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, "mode=1777,size=64m"); err != nil {
		return fmt.Errorf("mounting /dev/shm: %w", err)
	}
	return nil
}

// mountProc mounts /proc of the new process's PID namespace, which only a process in that
// namespace can do. Files that control the machine are read-only.
func (c *calls) mountProc() error {
	const (
		proc  = newRoot + "/proc"
		flags = unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	)
	c.mount("mounting its /proc", "proc", proc, "proc", flags)
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs"} {
		if ok, err := machineHas("/proc/" + name); err != nil {
			return err
		} else if !ok {
			continue
		}
		target := path.Join(proc, name)
		c.mount("mounting its /proc/"+name, target, target, "", unix.MS_BIND)
		c.mount("making its /proc/"+name+" read-only", "", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags)
	}
	for _, name := range []string{"kcore", "keys"} {
		if ok, err := machineHas("/proc/" + name); err != nil {
			return err
		} else if ok {
			c.mount("hiding its /proc/"+name, machineRoot+"/dev/null", path.Join(proc, name), "", unix.MS_BIND)
		}
	}
	return nil
}

func machineHas(name string) (bool, error) {
	_, err := os.Lstat(machineRoot + name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// changeRoot makes a mount the root and unmounts the old root.
func (c *calls) changeRoot(dir string) {
	c.add("changing to "+dir, unix.SYS_CHDIR, c.text(dir))
	// With the same folder twice the old root ends up on top of the new one.
	c.add("changing its root", unix.SYS_PIVOT_ROOT, c.text("."), c.text("."))
	c.add("unmounting the old root", unix.SYS_UMOUNT2, c.text("."), unix.MNT_DETACH)
	c.add("changing to its root", unix.SYS_CHDIR, c.text("/"))
}
