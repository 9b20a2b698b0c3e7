package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Folders and files of a lab's own file system.
const (
	// machineRoot holds the machine's files.
	machineRoot = "/host"
	// podsDir has a folder for each pod.
	podsDir = "pods"
	// newRoot is where a container's root is assembled.
	newRoot = "/root"
	// nodeHosts is /etc/hosts of the node's processes.
	nodeHosts = "hosts"
)

// machine holds the namespaces from which all containers and processes of a lab are
// started: a mount namespace whose root is a tmpfs, with the machine's files in a folder,
// and an IPC namespace, by which the guard finds the lab's processes.
type machine struct {
	mounts *os.File
	ipc    *os.File
	// files is the root of the file system.
	files *os.Root
}

func newMachine() (*machine, error) {
	m := &machine{}
	err := onNewThread(func() error {
		if err := leave(unix.CLONE_NEWNS | unix.CLONE_NEWIPC); err != nil {
			return err
		}
		// The machine's later mounts and unmounts propagate into the lab, which otherwise
		// would keep file systems busy, but the lab's mounts do not propagate back.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("separating the mounts from the machine's: %w", err)
		}
		// Any folder that surely exists: the mount becomes the root anyway.
		const anyDir = "/proc"
		if err := unix.Mount("lab", anyDir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=0755"); err != nil {
			return fmt.Errorf("mounting a tmpfs: %w", err)
		}
		if err := unix.Chdir(anyDir); err != nil {
			return fmt.Errorf("changing to the tmpfs: %w", err)
		}
		for _, dir := range []string{machineRoot, newRoot, podsDir} {
			if err := os.Mkdir(path.Join(".", dir), 0o755); err != nil {
				return err
			}
		}
		if err := unix.PivotRoot(".", "."+machineRoot); err != nil {
			return fmt.Errorf("changing the root: %w", err)
		}
		if err := unix.Chdir("/"); err != nil {
			return fmt.Errorf("changing to the root: %w", err)
		}
		if err := os.WriteFile(nodeHosts, nil, 0o644); err != nil {
			return err
		}
		var err error
		if m.files, err = os.OpenRoot("/"); err != nil {
			return err
		}
		if m.mounts, err = os.Open(machineRoot + "/proc/thread-self/ns/mnt"); err != nil {
			return err
		}
		m.ipc, err = os.Open(machineRoot + "/proc/thread-self/ns/ipc")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *machine) close() error {
	var err error
	if m.files != nil {
		err = m.files.Close()
	}
	return errors.Join(err, closeAll(m.mounts, m.ipc))
}

// enter moves the current thread into the machine's namespaces. Its working directory is
// then the root of the lab's file system.
func (m *machine) enter() error {
	// A thread that shares its working directory with others may not join.
	if err := leave(unix.CLONE_FS); err != nil {
		return err
	}
	return errors.Join(join(m.mounts, unix.CLONE_NEWNS), join(m.ipc, unix.CLONE_NEWIPC))
}

// do runs f on a thread in the machine's mount namespace.
func (m *machine) do(f func() error) error {
	return onNewThread(func() error {
		if err := m.enter(); err != nil {
			return err
		}
		return f()
	})
}

// writeFile replaces the content of a file in place, because it is mounted in containers.
func (m *machine) writeFile(name string, content []byte) error {
	f, err := m.files.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Truncate(int64(len(content))), f.Chmod(0o644), f.Close())
}

// mkdir creates a folder with exactly this mode.
func (m *machine) mkdir(name string, mode fs.FileMode) error {
	if err := m.files.Mkdir(name, 0o700); err != nil {
		return err
	}
	return m.files.Chmod(name, mode)
}
