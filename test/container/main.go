// Command container runs a command with the rights that a container has by default: as the
// same user, with Docker's default capabilities and a seccomp filter that denies new
// namespaces and mounts. So dev containers and CI runners can be tested without one:
//
//	go run ./test/container go test ./internal/agent
//
// It needs root. The files, the network and the environment stay those of the machine. The
// exit code is the command's.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: container COMMAND [ARGUMENT]...")
		os.Exit(2)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

// run replaces this process by the command.
func run(command []string) error {
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	// The filter and the capabilities belong to a thread, which execve makes the only one.
	runtime.LockOSThread()
	if err := deny(); err != nil {
		return fmt.Errorf("installing the seccomp filter, which needs root: %w", err)
	}
	if err := drop(); err != nil {
		return err
	}
	return unix.Exec(program, command, os.Environ())
}

// capabilities are those of a container without other settings.
var capabilities = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_MKNOD, unix.CAP_NET_RAW, unix.CAP_SETGID,
	unix.CAP_SETUID, unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE,
}

// drop removes all other capabilities from the programs that this thread executes. Root
// gets those of the bounding set.
func drop() error {
	keep := map[int]bool{}
	for _, c := range capabilities {
		keep[c] = true
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if keep[c] {
			continue
		}
		// EINVAL: an older kernel does not have it.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	return nil
}

// denied are system calls that fail with EPERM. clone3 fails with ENOSYS, since a filter
// can't read its flags; programs use clone then.
var denied = []uint32{
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSMOUNT,
	unix.SYS_FSCONFIG, unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR, unix.SYS_BPF,
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
}

const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Offsets in seccomp_data.
const (
	offsetCall = 0
	offsetArg0 = 16
)

// deny installs the filter for this thread.
func deny() error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// ifEqual skips its answer unless the comparison holds.
	ifEqual := func(value, result uint32) []unix.SockFilter {
		return []unix.SockFilter{
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: 0, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: result},
		}
	}
	fail := func(err unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(err) }

	filter := []unix.SockFilter{load(offsetCall)}
	for _, call := range denied {
		filter = append(filter, ifEqual(call, fail(unix.EPERM))...)
	}
	filter = append(filter, ifEqual(unix.SYS_CLONE3, fail(unix.ENOSYS))...)
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE, Jt: 0, Jf: 3},
		load(offsetArg0),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: namespaces, Jt: 0, Jf: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: fail(unix.EPERM)},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
