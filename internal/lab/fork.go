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

// calls is what a new process does before it becomes another program: a list of
// system calls. It is a copy of this program with one thread, in which no Go code
// that allocates, schedules or grows a stack can run. (package syscall starts
// processes in the same way, but /proc of a PID namespace can only be mounted from
// within that namespace, which is more than it offers. To execute this program once
// more for that would take longer than all the rest.)
type calls struct {
	list []call
	// kept holds what the calls' arguments point to, where the collector sees it.
	kept []any
}

type call struct {
	number    uintptr
	arguments [6]uintptr
	// mayFail is for a call after which there is another way.
	mayFail bool
	what    string
}

func (c *calls) add(what string, number uintptr, arguments ...uintptr) {
	next := call{number: number, what: what}
	copy(next.arguments[:], arguments)
	c.list = append(c.list, next)
}

// text returns the argument for a string. One with a zero byte in it ends there,
// which check finds.
func (c *calls) text(s string) uintptr {
	bytes := append([]byte(s), 0)
	c.kept = append(c.kept, bytes)
	return uintptr(unsafe.Pointer(&bytes[0]))
}

// texts returns the argument for a list of strings that ends with zero.
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

// failure is what a new process tells before it ends.
type failure struct {
	call  int32
	errno int32
}

// fork starts a process on the thread that runs and returns when it has become the
// program of the last call.
func (c *calls) fork() (int, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = read.Close() }()
	fd := write.Fd()

	// No file may be open meanwhile that would be left open in the new program.
	syscall.ForkLock.Lock()
	pid, errno := clone(c.list, fd)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(c)
	_ = write.Close()
	if errno != 0 {
		return 0, fmt.Errorf("making a process: %w", errno)
	}
	var told failure
	answer := unsafe.Slice((*byte)(unsafe.Pointer(&told)), unsafe.Sizeof(told))
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
	return 0, fmt.Errorf("%s: %w", c.list[told.call].what, syscall.Errno(told.errno))
}

// clone makes the process. Its code runs in both processes, so nothing here or in
// what it calls may grow the stack.
//
//go:norace
//go:nosplit
func clone(list []call, fd uintptr) (uintptr, syscall.Errno) {
	var all, before uint64
	all = ^all
	// A signal would find a runtime in the new process that does not work.
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&before)), unsafe.Sizeof(all), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&before)), 0, unsafe.Sizeof(all), 0, 0)
		return pid, errno
	}

	// The new process. Its program begins with no signal held back.
	all = 0
	var told failure
	for i := range list {
		next := &list[i]
		if next.number == unix.SYS_EXECVE {
			_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), 0, unsafe.Sizeof(all), 0, 0)
		}
		_, _, errno = syscall.RawSyscall6(next.number, next.arguments[0], next.arguments[1], next.arguments[2], next.arguments[3], next.arguments[4], next.arguments[5])
		if errno != 0 && (!next.mayFail || i == len(list)-1) {
			told.call, told.errno = int32(i), int32(errno)
			_, _, _ = syscall.RawSyscall6(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&told)), unsafe.Sizeof(told), 0, 0, 0)
			break
		}
	}
	for {
		_, _, _ = syscall.RawSyscall6(unix.SYS_EXIT_GROUP, 126, 0, 0, 0, 0, 0)
	}
}
