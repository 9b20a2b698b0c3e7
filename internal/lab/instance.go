package lab

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// instance is a process that was started, from its start to its end.
type instance struct {
	pid int
	// done is closed when the process has ended and its output is read.
	done chan struct{}

	mu     sync.Mutex
	ended  bool
	status syscall.WaitStatus
}

// signal sends the process a signal. It never reaches another process that has got
// the same number since.
func (i *instance) signal(s syscall.Signal) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return errGone
	}
	return syscall.Kill(i.pid, s)
}

// running calls f with the number of the process while it has not been waited for.
func (i *instance) running(f func(pid int) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return errGone
	}
	return f(i.pid)
}

// code returns the exit code of a process that has ended, 128 and the signal's
// number if a signal ended it, as a kubelet reports it.
func (i *instance) code() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.status.Signaled() {
		return 128 + int(i.status.Signal())
	}
	return i.status.ExitStatus()
}

// command is a process to start.
type command struct {
	// args begin with the program, as the new process finds it: by its path or in PATH.
	args, env []string
	dir       string
	output    *output
	// as is who it runs as; nil is the user of this program.
	as *privilege
}

// start starts a process from a thread that prepare may change, and that lasts as
// long as the process: when the program is killed, so is the process. prepare may
// add calls that the new process makes first.
func start(c command, prepare func(*calls) error) (*instance, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	stdout, drain, err := c.output.pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close())
	}
	i := &instance{done: make(chan struct{})}
	started := make(chan error, 1)
	onThread(func() bool {
		calls := new(calls)
		err := prepare(calls)
		if err == nil {
			c.add(calls, stdin, stdout)
			i.pid, err = calls.fork()
		}
		_ = closeAll(stdin, stdout)
		if err != nil {
			drain()
			started <- err
			return false
		}
		started <- nil
		i.wait()
		drain()
		close(i.done)
		return false
	})
	if err := <-started; err != nil {
		return nil, err
	}
	return i, nil
}

// check finds what the kernel would take for something else.
func (c *command) check() error {
	for _, text := range slices.Concat(c.args, c.env, []string{c.dir}) {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("%q has a zero byte in it", text)
		}
	}
	if len(c.args) == 0 || c.args[0] == "" {
		return errors.New("it has no command")
	}
	return nil
}

// add adds what turns a new process into the program.
func (c *command) add(to *calls, stdin, stdout *os.File) {
	if c.as != nil {
		to.add("setting its groups", unix.SYS_SETGROUPS, uintptr(len(c.as.groups)), to.numbers(c.as.groups))
		to.add("setting its group", unix.SYS_SETRESGID, uintptr(c.as.gid), uintptr(c.as.gid), uintptr(c.as.gid))
		to.add("setting its user", unix.SYS_SETRESUID, uintptr(c.as.uid), uintptr(c.as.uid), uintptr(c.as.uid))
	}
	// After the user has been changed, which takes it back.
	to.add("having it killed with its parent", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	to.add("making it lead a session", unix.SYS_SETSID)
	to.add("changing to its directory "+c.dir, unix.SYS_CHDIR, to.text(c.dir))
	for fd, file := range []*os.File{stdin, stdout, stdout} {
		to.add("giving it its files", unix.SYS_DUP3, file.Fd(), uintptr(fd), 0)
	}
	args, env := to.texts(c.args), to.texts(c.env)
	for _, file := range c.candidates() {
		to.add("executing "+c.args[0], unix.SYS_EXECVE, to.text(file), args, env)
		to.list[len(to.list)-1].mayFail = true
	}
}

// candidates are the paths that the program may have.
func (c *command) candidates() []string {
	if strings.Contains(c.args[0], "/") {
		return c.args[:1]
	}
	var files []string
	for _, dir := range filepath.SplitList(lookupEnv(c.env, "PATH")) {
		files = append(files, path.Join("/", dir, c.args[0]))
	}
	// One at least, so that there is an error to tell.
	return append(files, path.Join("/", c.args[0]))
}

// wait waits for the process and marks it as ended in the same moment as its number
// becomes free.
func (i *instance) wait() {
	for {
		err := unix.Waitid(unix.P_PID, i.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		_, err := syscall.Wait4(i.pid, &i.status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	i.ended = true
}
