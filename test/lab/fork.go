package lab

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls are the system calls of a new process before it executes its program. The process
// is a copy of this one with a single thread, in which no Go code may allocate, schedule
// or grow a stack. (Package syscall starts processes in the same way, but cannot mount
// /proc of a PID namespace, which is possible only from within. Executing this program
// once more for that would take longer than everything else.)
type calls struct {
	list []call
	// kept keeps the memory to which arguments point alive for the garbage collector.
	kept []any
}

type call struct {
	number    uintptr
	arguments [6]uintptr
	// mayFail is for a call that has an alternative after it.
	mayFail bool
	what    string
}

func (c *calls) add(what string, number uintptr, arguments ...uintptr) {
	next := call{number: number, what: what}
	copy(next.arguments[:], arguments)
	c.list = append(c.list, next)
}

// text returns the argument for a string. command.check rejects strings with a zero byte.
func (c *calls) text(s string) uintptr {
	bytes := append([]byte(s), 0)
	c.kept = append(c.kept, bytes)
	return uintptr(unsafe.Pointer(&bytes[0]))
}

// texts returns the argument for a list of strings, terminated by zero.
func (c *calls) texts(all []string) uintptr {
	list := make([]uintptr, len(all)+1)
	for i, s := range all {
		list[i] = c.text(s)
	}
	c.kept = append(c.kept, list)
	return uintptr(unsafe.Pointer(&list[0]))
}

func (c *calls) numbers(all []uint32) uintptr {
	if len(all) == 0 {
		return 0
	}
	c.kept = append(c.kept, all)
	return uintptr(unsafe.Pointer(&all[0]))
}

func (c *calls) mount(what, from, to, kind string, flags uintptr) {
	c.add(what, unix.SYS_MOUNT, c.text(from), c.text(to), c.text(kind), flags, 0)
}

// failure is what a new process reports before it exits.
type failure struct {
	call  int32
	errno int32
}

// fork starts a process on the current thread and returns when it has executed the program
// of the last call.
func (c *calls) fork() (int, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = read.Close() }()
	fd := write.Fd()

	// Meanwhile no file may be opened that the new program would inherit.
	syscall.ForkLock.Lock()
	pid, errno := clone(c.list, fd)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(c)
	_ = write.Close()
	if errno != 0 {
		return 0, fmt.Errorf("creating a process: %w", errno)
	}
	var failed failure
	answer := unsafe.Slice((*byte)(unsafe.Pointer(&failed)), unsafe.Sizeof(failed))
	if n, _ := read.Read(answer); n == 0 {
		return int(pid), nil
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(int(pid), &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	return 0, fmt.Errorf("%s: %w", c.list[failed.call].what, syscall.Errno(failed.errno))
}

// clone creates the process. It runs in both processes, so neither it nor its callees may
// grow the stack.
//
//go:norace
//go:nosplit
func clone(list []call, fd uintptr) (uintptr, syscall.Errno) {
	var all, before uint64
	all = ^all
	// In the new process the runtime cannot handle signals.
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&before)), unsafe.Sizeof(all), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&before)), 0, unsafe.Sizeof(all), 0, 0)
		return pid, errno
	}

	// The new process. Its program must start with no signal blocked.
	all = 0
	var failed failure
	for i := range list {
		next := &list[i]
		if next.number == unix.SYS_EXECVE {
			_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), 0, unsafe.Sizeof(all), 0, 0)
		}
		_, _, errno = syscall.RawSyscall6(next.number, next.arguments[0], next.arguments[1], next.arguments[2], next.arguments[3], next.arguments[4], next.arguments[5])
		if errno != 0 && (!next.mayFail || i == len(list)-1) {
			failed.call, failed.errno = int32(i), int32(errno)
			_, _, _ = syscall.RawSyscall6(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&failed)), unsafe.Sizeof(failed), 0, 0, 0)
			break
		}
	}
	for {
		_, _, _ = syscall.RawSyscall6(unix.SYS_EXIT_GROUP, 126, 0, 0, 0, 0, 0)
	}
}
