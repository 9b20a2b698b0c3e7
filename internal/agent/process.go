package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// children are the processes that the agent has started. The agent reaps all its
// descendants, including orphans of its children: in a container it is usually process 1,
// so nothing else would.
type children struct {
	forks chan func()
	null  *os.File // their standard input
	env   []string
	// lines are the pipes to which the proxy writes spans and records.
	lines []*os.File

	// mu is held while a process starts, so that a process that ends at once is registered
	// before it is reaped.
	mu    sync.Mutex
	byPID map[int]*child
}

// child is a process that was started.
type child struct {
	pid      int
	children *children
	// ended is closed when the process has ended; status is valid from then on.
	ended  chan struct{}
	status unix.WaitStatus
	output *output
}

// newChildren makes this process the reaper of its descendants. A program must call it at
// most once and must not wait for processes elsewhere. The children's environment is the
// agent's plus env.
func newChildren(env []agentspec.EnvVar) (*children, error) {
	// Process 1 of a container is a reaper anyway.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the reaper of orphaned processes: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	c := &children{forks: make(chan func()), null: null, env: os.Environ(), byPID: make(map[int]*child)}
	for _, v := range env {
		c.env = slices.DeleteFunc(c.env, func(have string) bool { return strings.HasPrefix(have, v.Name+"=") })
		c.env = append(c.env, v.Name+"="+v.Value)
	}
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

// start starts a command in its own process group, so that only the agent signals it. The
// process is killed if the agent is. Its output goes where the agent's does and the end of
// its standard error is kept. With quiet, standard output is also kept and nothing is
// printed, and the command gets none of the pipes for lines.
func (c *children) start(argv []string, quiet bool) (*child, error) {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	pipe, into, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer into.Close()
	stdout, copied := os.Stdout, io.Writer(os.Stderr)
	if quiet {
		stdout, copied = into, io.Discard
	}
	files := []*os.File{c.null, stdout, into}
	if !quiet {
		files = append(files, c.lines...)
	}
	var child *child
	done := make(chan struct{})
	c.forks <- func() {
		child, err = c.fork(program, argv, files...)
		close(done)
	}
	<-done
	if err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	child.output = readOutput(pipe, copied)
	return child, nil
}

func (c *children) fork(program string, argv []string, files ...*os.File) (*child, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env:   c.env,
		Files: files,
		Sys:   &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return nil, err
	}
	started := &child{pid: p.Pid, children: c, ended: make(chan struct{})}
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

// signal sends a signal to the process. If it has ended, signal does nothing.
func (p *child) signal(s unix.Signal) error {
	p.children.mu.Lock()
	defer p.children.mu.Unlock()
	if p.children.byPID[p.pid] != p {
		return nil
	}
	return unix.Kill(p.pid, s)
}

// kill kills the process and its process group.
func (p *child) kill() {
	p.children.mu.Lock()
	defer p.children.mu.Unlock()
	if p.children.byPID[p.pid] == p {
		_ = unix.Kill(-p.pid, unix.SIGKILL)
	}
}

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

// run runs a command and waits until it ends. The error of a command that fails or times
// out contains the end of its output.
func (c *children) run(ctx context.Context, argv []string, within time.Duration) error {
	child, err := c.start(argv, true)
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
		how = "the agent is shutting down"
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
