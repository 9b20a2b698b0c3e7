package lab

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadOnlyRoot creates the files of containers while the program starts other
// processes, which inherit open files until they execute their programs.
func TestReadOnlyRoot(t *testing.T) {
	if err := Available(); errors.Is(err, ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	}()
	over := make(chan struct{})
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := forkSlowly(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer forks.Wait()
	defer close(over)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if err := m.do(makeReadOnly); err != nil {
			t.Fatal(err)
		}
	}
}

// forkSlowly starts a process that executes its program with a delay, as on a busy machine.
func forkSlowly() error {
	return onNewThread(func() error {
		slow := new(calls)
		// A struct timespec of no seconds and 20 ms.
		slow.add("waiting", unix.SYS_NANOSLEEP, slow.numbers([]uint32{0, 0, 20e6, 0}), 0)
		slow.add("executing true", unix.SYS_EXECVE, slow.text("/bin/true"), slow.texts([]string{"true"}), slow.texts(nil))
		pid, err := slow.fork()
		if err != nil {
			return err
		}
		_, err = unix.Wait4(pid, nil, 0, nil)
		return err
	})
}

// makeReadOnly creates a container's files and makes its root read-only, like a new
// container.
func makeReadOnly() error {
	if err := leave(unix.CLONE_NEWNS); err != nil {
		return err
	}
	files := &rootfs{
		hosts: "/" + nodeHosts, readOnly: true,
		etc: map[string]string{"hostname": "pod\n", "resolv.conf": resolvConf},
	}
	if err := files.make(new(calls)); err != nil {
		return err
	}
	if err := unix.Mount("", newRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("making the root read-only: %w", err)
	}
	if err := os.WriteFile(newRoot+"/etc/hostname", nil, 0o644); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("writing to a read-only root: %w", err)
	}
	return nil
}
