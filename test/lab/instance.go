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

// instance is a started process, which may have ended.
type instance struct {
	pid int
	// done is closed when the process has ended and its output has been read.
	done chan struct{}

	mu     sync.Mutex
	ended  bool
	status syscall.WaitStatus
}

// signal sends the process a signal. It never reaches another process that has reused its
// ID.
func (i *instance) signal(s syscall.Signal) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return errGone
	}
	return syscall.Kill(i.pid, s)
}

// running calls f with the process ID, which cannot be reused meanwhile.
func (i *instance) running(f func(pid int) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return errGone
	}
	return f(i.pid)
}

// code returns the exit code of an ended process. As for a kubelet it is 128 plus the
// signal's number if a signal ended it.
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
	// args begin with the program, by its path or by its name in the command's PATH.
	args, env []string
	dir       string
	output    *output
	// files, if not nil, are its standard input, output and error in place of output. The
	// caller closes them.
	files *[3]*os.File
	// as is the user and privileges; nil means those of this program.
	as *privilege
}

// start starts a process from a thread that prepare may change. The thread lasts as long
// as the process, so that the process is killed with this program. prepare may add calls
// that the new process makes first.
func start(c command, prepare func(*calls) error) (*instance, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	files, closing, drain, err := c.standard()
	if err != nil {
		return nil, err
	}
	i := &instance{done: make(chan struct{})}
	started := make(chan error, 1)
	onThread(func() bool {
		calls := new(calls)
		err := prepare(calls)
		if err == nil {
			c.add(calls, files)
			i.pid, err = calls.fork()
		}
		_ = closeAll(closing...)
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

// standard returns the command's standard files, those to close once it has started, and a
// function that waits, after its end, until its output has been read.
func (c *command) standard() (files [3]*os.File, closing []*os.File, drain func(), err error) {
	if c.files != nil {
		return *c.files, nil, func() {}, nil
	}
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return files, nil, nil, err
	}
	stdout, drain, err := c.output.pipe()
	if err != nil {
		return files, nil, nil, errors.Join(err, stdin.Close())
	}
	return [3]*os.File{stdin, stdout, stdout}, []*os.File{stdin, stdout}, drain, nil
}

// check rejects strings with a zero byte, at which the kernel would cut them, and empty
// commands.
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

// add adds the calls that execute the program in a new process.
func (c *command) add(to *calls, files [3]*os.File) {
	if c.as != nil {
		to.add("setting its groups", unix.SYS_SETGROUPS, uintptr(len(c.as.groups)), to.numbers(c.as.groups))
		to.add("setting its group", unix.SYS_SETRESGID, uintptr(c.as.gid), uintptr(c.as.gid), uintptr(c.as.gid))
		to.add("setting its user", unix.SYS_SETRESUID, uintptr(c.as.uid), uintptr(c.as.uid), uintptr(c.as.uid))
	}
	// Must follow the change of the user, which resets it.
	to.add("having it killed with its parent", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	to.add("making it lead a session", unix.SYS_SETSID)
	to.add("changing to its directory "+c.dir, unix.SYS_CHDIR, to.text(c.dir))
	for fd, file := range files {
		to.add("giving it its files", unix.SYS_DUP3, file.Fd(), uintptr(fd), 0)
	}
	args, env := to.texts(c.args), to.texts(c.env)
	for _, file := range c.candidates() {
		to.add("executing "+c.args[0], unix.SYS_EXECVE, to.text(file), args, env)
		to.list[len(to.list)-1].mayFail = true
	}
}

// candidates are the possible paths of the program.
func (c *command) candidates() []string {
	if strings.Contains(c.args[0], "/") {
		return c.args[:1]
	}
	var files []string
	for _, dir := range filepath.SplitList(lookupEnv(c.env, "PATH")) {
		files = append(files, path.Join("/", dir, c.args[0]))
	}
	// At least one, so that there is an error to report.
	return append(files, path.Join("/", c.args[0]))
}

// wait waits for the process. It reaps it and marks it as ended under the lock.
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
