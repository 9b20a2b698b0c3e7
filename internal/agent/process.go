package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
)

// host starts processes in a container: the agent's own, or that of a successor.
type host interface {
	// start starts a command whose output goes where the agent's does, and keeps the end of
	// its standard error. With quiet, standard output is also kept and nothing is printed,
	// and the command gets none of the pipes for lines.
	start(argv []string, quiet bool) (*child, error)
	// signal sends a signal to a process, or to its process group. If the process has ended,
	// it does nothing.
	signal(of *child, s unix.Signal, group bool) error
	// below returns the IDs of the child processes of a process.
	below(of *child) []int
	// sockets returns the inodes of the sockets of a process and its child processes, or of
	// those child processes only whose IDs are given.
	sockets(of *child, only ...int) ([]uint64, error)
}

// children are the processes that the agent has started. The agent reaps all its
// descendants, including orphans of its children: in a container it is usually process 1,
// so nothing else would.
type children struct {
	forks chan func()
	null  *os.File // their standard input
	// added are variables of their environment that the agent's own does not have or that
	// override it.
	added []string
	// lines are the pipes to which the proxy writes spans and records.
	lines []*os.File

	// mu is held while a process starts, so that a process that ends at once is registered
	// before it is reaped.
	mu    sync.Mutex
	byPID map[int]*child
}

// child is a process that was started.
type child struct {
	pid  int
	host host
	// ended is closed when the process has ended; status is valid from then on.
	ended  chan struct{}
	status unix.WaitStatus
	output *output
}

// newChildren makes this process the reaper of its descendants. A program must call it at
// most once and must not wait for processes elsewhere. The children's environment is the
// agent's plus added, as NAME=VALUE; the proxy also gets the pipes for lines.
func newChildren(added []string, lines []*os.File) (*children, error) {
	// Process 1 of a container is a reaper anyway.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the reaper of orphaned processes: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	c := &children{forks: make(chan func()), null: null, added: added, lines: lines, byPID: make(map[int]*child)}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			c.reap()
		}
	}()
	go func() {
		// Pdeathsig kills a child when the thread that started it ends.
		runtime.LockOSThread()
		for fork := range c.forks {
			fork()
		}
	}()
	return c, nil
}

// start is for host. The process is in its own process group, so that only the agent signals
// it, and is killed if the agent is.
func (c *children) start(argv []string, quiet bool) (*child, error) {
	return c.withOutput(quiet, func(files []*os.File) (*child, error) { return c.launch(argv, c.added, files) })
}

// withOutput calls start with the files of a process, from standard output on.
func (c *children) withOutput(quiet bool, start func([]*os.File) (*child, error)) (*child, error) {
	pipe, into, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer into.Close()
	stdout, copied := os.Stdout, io.Writer(os.Stderr)
	if quiet {
		stdout, copied = into, io.Discard
	}
	files := []*os.File{stdout, into}
	if !quiet {
		files = append(files, c.lines...)
	}
	child, err := start(files)
	if err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	child.output = readOutput(pipe, copied)
	return child, nil
}

// launch starts a command with the agent's environment and variables that override it, and
// with files from standard output on.
func (c *children) launch(argv, added []string, files []*os.File) (*child, error) {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	for _, v := range added {
		name, _, _ := strings.Cut(v, "=")
		env = slices.DeleteFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		env = append(env, v)
	}
	var child *child
	done := make(chan struct{})
	c.forks <- func() {
		child, err = c.fork(program, argv, env, append([]*os.File{c.null}, files...))
		close(done)
	}
	<-done
	return child, err
}

func (c *children) fork(program string, argv, env []string, files []*os.File) (*child, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env:   env,
		Files: files,
		Sys:   &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return nil, err
	}
	started := &child{pid: p.Pid, host: c, ended: make(chan struct{})}
	c.byPID[p.Pid] = started
	return started, p.Release()
}

// reap collects every process that has ended.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if child := c.byPID[pid]; child != nil {
			delete(c.byPID, pid)
			// Its own children would keep its ports in use.
			_ = unix.Kill(-pid, unix.SIGKILL)
			child.status = status
			close(child.ended)
		}
	}
}

// signal is for host.
func (c *children) signal(of *child, s unix.Signal, group bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPID[of.pid] != of {
		return nil
	}
	if group {
		return unix.Kill(-of.pid, s)
	}
	return unix.Kill(of.pid, s)
}

// below is for host.
func (c *children) below(of *child) []int { return processesBelow(of.pid) }

// sockets is for host.
func (c *children) sockets(of *child, only ...int) ([]uint64, error) {
	all := make(map[uint64]bool)
	processes := append([]int{of.pid}, processesBelow(of.pid)...)
	if len(only) > 0 {
		processes = slices.DeleteFunc(processes, func(pid int) bool { return !slices.Contains(only, pid) })
	}
	for _, pid := range processes {
		some, err := socket.Of(strconv.Itoa(pid))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		maps.Copy(all, some)
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// signal sends a signal to the process. If it has ended, signal does nothing.
func (p *child) signal(s unix.Signal) error { return p.host.signal(p, s, false) }

// kill kills the process and its process group.
func (p *child) kill() { _ = p.host.signal(p, unix.SIGKILL, true) }

// killed reports whether the process ended by SIGKILL, such as the kernel's when it is out
// of memory. A master process that exits because its worker was killed shows that by its
// exit code.
func (p *child) killed() bool {
	return p.status.Signaled() && p.status.Signal() == unix.SIGKILL || p.status.ExitStatus() == 128+int(unix.SIGKILL)
}

// how describes how the process ended.
func (p *child) how() string {
	if p.status.Signaled() {
		return "signal: " + unix.SignalName(p.status.Signal())
	}
	return fmt.Sprintf("exit code %d", p.status.ExitStatus())
}

// notStartedError reports that a command could not be started, which says nothing about
// the files it should have checked.
type notStartedError struct{ error }

// Unwrap is for package errors.
func (e *notStartedError) Unwrap() error { return e.error }

// runOn runs a command on a host and waits until it ends. The error of a command that fails or
// times out contains the end of its output.
func runOn(ctx context.Context, h host, argv []string, within time.Duration) error {
	child, err := h.start(argv, true)
	if err != nil {
		return &notStartedError{err}
	}
	how := ""
	select {
	case <-child.ended:
		if child.status != 0 {
			how = child.how()
		}
	case <-time.After(within):
		how = fmt.Sprintf("it did not finish within %v", within)
	case <-ctx.Done():
		how = errShuttingDown.Error()
	}
	child.kill()
	_ = child.output.pipe.SetReadDeadline(time.Now().Add(time.Second))
	switch text := child.output.text(); {
	case how == "":
		return nil
	case text == "":
		return fmt.Errorf("%s: %s", argv[0], how)
	default:
		return fmt.Errorf("%s: %s: %s", argv[0], how, text)
	}
}
