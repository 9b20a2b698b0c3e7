package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// children are the processes that the agent has started. It waits for every process
// below it, also for those that others have left behind: in a container it is the
// first process as a rule, and nobody else would.
type children struct {
	starts chan startRequest
	// null is their standard input.
	null *os.File

	// mu is held while a process starts, so that one that ends at once is known when it
	// is waited for.
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
}

type startRequest struct {
	argv    []string
	output  *os.File
	started chan<- startResult
}

type startResult struct {
	child *child
	err   error
}

// newChildren makes this process the one that waits for all below it. There can be one
// in a program, and nothing else in it may wait for processes.
func newChildren() (*children, error) {
	// As the first process of a container it is that already.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the reaper of left processes: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	c := &children{starts: make(chan startRequest), null: null, byPID: make(map[int]*child)}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			c.reap()
		}
	}()
	go c.serve()
	return c, nil
}

// start runs a command in a process group of its own, so that signals for the agent
// reach it in the agent's order only. It is killed if the agent is. The proxy's output
// is the agent's.
func (c *children) start(argv []string) (*child, error) { return c.startInto(argv, nil) }

// startInto is start with the output into a file, if it is not nil.
func (c *children) startInto(argv []string, output *os.File) (*child, error) {
	started := make(chan startResult, 1)
	c.starts <- startRequest{argv, output, started}
	result := <-started
	return result.child, result.err
}

// serve starts processes from one thread for good: a process's parent, for the signal
// that kills it, is the thread.
func (c *children) serve() {
	runtime.LockOSThread()
	for r := range c.starts {
		child, err := c.fork(r.argv, r.output)
		r.started <- startResult{child, err}
	}
}

func (c *children) fork(argv []string, output *os.File) (*child, error) {
	files := []*os.File{c.null, os.Stdout, os.Stderr}
	if output != nil {
		files = []*os.File{c.null, output, output}
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Env:   os.Environ(),
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
			// What it has started ends with it, or would hold its ports.
			_ = unix.Kill(-pid, unix.SIGKILL)
			child.status = status
			close(child.ended)
		}
	}
}

// signal sends a signal to the process. It is no error if it has ended.
func (p *child) signal(s unix.Signal) error {
	p.children.mu.Lock()
	defer p.children.mu.Unlock()
	if p.children.byPID[p.pid] != p {
		return nil
	}
	return unix.Kill(p.pid, s)
}

// kill ends the process and all of its group.
func (p *child) kill() {
	p.children.mu.Lock()
	defer p.children.mu.Unlock()
	if p.children.byPID[p.pid] == p {
		_ = unix.Kill(-p.pid, unix.SIGKILL)
	}
}

// how says in words how the process ended.
func (p *child) how() string {
	if p.status.Signaled() {
		return "signal: " + unix.SignalName(p.status.Signal())
	}
	return fmt.Sprintf("exit code %d", p.status.ExitStatus())
}
