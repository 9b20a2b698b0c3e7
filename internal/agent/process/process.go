package process

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

// Host starts processes in a container: the agent's own, or that of a successor.
type Host interface {
	// Start starts a command whose output goes where the agent's does, and keeps the end of
	// its standard error. With quiet, standard output is also kept and nothing is printed,
	// and the command gets none of the pipes for lines.
	Start(argv []string, quiet bool) (*Child, error)
	// Signal sends a signal to a process, or to its process group. If the process has ended,
	// it does nothing.
	Signal(of *Child, s unix.Signal, group bool) error
	// Below returns the IDs of the child processes of a process.
	Below(of *Child) []int
	// Sockets returns the inodes of the sockets of a process and its child processes, or of
	// those child processes only whose IDs are given.
	Sockets(of *Child, only ...int) ([]uint64, error)
	// Dismiss says that no process is needed there any longer. The reason is empty if the host
	// has served.
	Dismiss(reason string)
}

// Children are the processes that the agent has started. The agent reaps all its
// descendants, including orphans of its children: in a container it is usually process 1,
// so nothing else would.
type Children struct {
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
	byPID map[int]*Child
}

// Child is a process that was started.
type Child struct {
	PID  int
	Host Host
	// Ended is closed when the process has ended; status is valid from then on.
	Ended  chan struct{}
	Status unix.WaitStatus
	output *output
}

// NewChildren makes this process the reaper of its descendants. A program must call it at
// most once and must not wait for processes elsewhere. The children's environment is the
// agent's plus added, as NAME=VALUE; the proxy also gets the pipes for lines.
func NewChildren(added []string, lines []*os.File) (*Children, error) {
	// Process 1 of a container is a reaper anyway.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the reaper of orphaned processes: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	c := &Children{forks: make(chan func()), null: null, added: added, lines: lines, byPID: make(map[int]*Child)}
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

// Start is for host. The process is in its own process group, so that only the agent signals
// it, and is killed if the agent is.
func (c *Children) Start(argv []string, quiet bool) (*Child, error) {
	return c.WithOutput(quiet, func(files []*os.File) (*Child, error) { return c.Launch(argv, c.added, files) })
}

// WithOutput calls start with the files of a process, from standard output on.
func (c *Children) WithOutput(quiet bool, start func([]*os.File) (*Child, error)) (*Child, error) {
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

// Launch starts a command with the agent's environment and variables that override it, and
// with files from standard output on.
func (c *Children) Launch(argv, added []string, files []*os.File) (*Child, error) {
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
	var child *Child
	done := make(chan struct{})
	c.forks <- func() {
		child, err = c.fork(program, argv, env, append([]*os.File{c.null}, files...))
		close(done)
	}
	<-done
	return child, err
}

func (c *Children) fork(program string, argv, env []string, files []*os.File) (*Child, error) {
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
	started := NewChild(p.Pid, c)
	c.byPID[p.Pid] = started
	return started, p.Release()
}

// reap collects every process that has ended.
func (c *Children) reap() {
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
			child.End(status)
		}
	}
}

// Signal is for host.
func (c *Children) Signal(child *Child, s unix.Signal, group bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPID[child.PID] != child {
		return nil
	}
	if group {
		return unix.Kill(-child.PID, s)
	}
	return unix.Kill(child.PID, s)
}

// Below is for host.
func (c *Children) Below(child *Child) []int { return processesBelow(child.PID) }

// Sockets is for host.
func (c *Children) Sockets(child *Child, only ...int) ([]uint64, error) {
	all := make(map[uint64]bool)
	processes := append([]int{child.PID}, processesBelow(child.PID)...)
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

// Dismiss is for host: the agent's own container stays.
func (c *Children) Dismiss(string) {}

// Env returns the variables that override the agent's, as NAME=VALUE.
func (c *Children) Env() []string { return c.added }

// NewChild returns a process that a host has started.
func NewChild(pid int, host Host) *Child {
	return &Child{PID: pid, Host: host, Ended: make(chan struct{})}
}

// End notes that the process has ended. Its host calls it once.
func (p *Child) End(status unix.WaitStatus) {
	p.Status = status
	close(p.Ended)
}

// LastWords returns why a process has ended or is not ready, as far as its output says it.
func (p *Child) LastWords() string { return reason(p.output.text()) }

// Signal sends a signal to the process. If it has ended, signal does nothing.
func (p *Child) Signal(s unix.Signal) error { return p.Host.Signal(p, s, false) }

// Kill kills the process and its process group.
func (p *Child) Kill() { _ = p.Host.Signal(p, unix.SIGKILL, true) }

// Killed reports whether the process ended by SIGKILL, such as the kernel's when it is out
// of memory. A master process that exits because its worker was killed shows that by its
// exit code.
func (p *Child) Killed() bool {
	return p.Status.Signaled() && p.Status.Signal() == unix.SIGKILL || p.Status.ExitStatus() == 128+int(unix.SIGKILL)
}

// How describes how the process ended.
func (p *Child) How() string {
	if p.Status.Signaled() {
		return "signal: " + unix.SignalName(p.Status.Signal())
	}
	return fmt.Sprintf("exit code %d", p.Status.ExitStatus())
}

// ErrShuttingDown is why something was not finished.
var ErrShuttingDown = errors.New("the agent is shutting down")

// NotStartedError reports that a command could not be started, which says nothing about
// the files it should have checked.
type NotStartedError struct{ error }

// Unwrap is for package errors.
func (e *NotStartedError) Unwrap() error { return e.error }

// runOn runs a command on a host and waits until it ends. The error of a command that fails or
// times out contains the end of its output.
func runOn(ctx context.Context, h Host, argv []string, within time.Duration) error {
	_, err := outputOn(ctx, h, argv, within)
	return err
}

// outputOn is like runOn, and returns the end of the command's output.
func outputOn(ctx context.Context, h Host, argv []string, within time.Duration) (string, error) {
	child, err := h.Start(argv, true)
	if err != nil {
		return "", &NotStartedError{err}
	}
	how := ""
	select {
	case <-child.Ended:
		if child.Status != 0 {
			how = child.How()
		}
	case <-time.After(within):
		how = fmt.Sprintf("it did not finish within %v", within)
	case <-ctx.Done():
		how = ErrShuttingDown.Error()
	}
	child.Kill()
	_ = child.output.pipe.SetReadDeadline(time.Now().Add(time.Second))
	text := child.output.text()
	switch {
	case how == "":
		return text, nil
	case text == "":
		return "", fmt.Errorf("%s: %s", argv[0], how)
	default:
		return text, fmt.Errorf("%s: %s: %s", argv[0], how, text)
	}
}
