package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// children are the processes that the agent has started. It waits for every process
// below it, also for those that others have left behind: in a container it is the
// first process as a rule, and nobody else would.
type children struct {
	starts chan startRequest
	// null is their standard input, and env their environment.
	null *os.File
	env  []string

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
	// said is the end of what it has printed as errors; nil if nobody listens.
	said *lastWords
}

type startRequest struct {
	argv []string
	// output and errors are where its output goes; nil for that of the agent.
	output, errors *os.File
	started        chan<- startResult
}

type startResult struct {
	child *child
	err   error
}

// newChildren makes this process the one that waits for all below it. There can be one
// in a program, and nothing else in it may wait for processes. They have the variables
// beside the agent's own.
func newChildren(env []agentspec.EnvVar) (*children, error) {
	// As the first process of a container it is that already.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the reaper of left processes: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	c := &children{starts: make(chan startRequest), null: null, env: os.Environ(), byPID: make(map[int]*child)}
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
	go c.serve()
	return c, nil
}

// start runs a command in a process group of its own, so that signals for the agent
// reach it in the agent's order only. It is killed if the agent is. The proxy's output
// is the agent's, which listens to its errors.
func (c *children) start(argv []string) (*child, error) {
	output, into, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer into.Close()
	child, err := c.startWith(startRequest{argv: argv, errors: into})
	if err != nil {
		return nil, errors.Join(err, output.Close())
	}
	child.said = listen(output)
	return child, nil
}

// startInto runs a command with all of its output into a file.
func (c *children) startInto(argv []string, output *os.File) (*child, error) {
	return c.startWith(startRequest{argv: argv, output: output, errors: output})
}

func (c *children) startWith(r startRequest) (*child, error) {
	started := make(chan startResult, 1)
	r.started = started
	c.starts <- r
	result := <-started
	return result.child, result.err
}

// serve starts processes from one thread for good: a process's parent, for the signal
// that kills it, is the thread.
func (c *children) serve() {
	runtime.LockOSThread()
	for r := range c.starts {
		child, err := c.fork(r)
		r.started <- startResult{child, err}
	}
}

func (c *children) fork(r startRequest) (*child, error) {
	files := []*os.File{c.null, cmp.Or(r.output, os.Stdout), cmp.Or(r.errors, os.Stderr)}
	program, err := exec.LookPath(r.argv[0])
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := os.StartProcess(program, r.argv, &os.ProcAttr{
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

// killed reports whether somebody else has ended the process, such as a kernel without
// memory. One that ends with its worker says so by its exit code.
func (p *child) killed() bool {
	return p.status.Signaled() && p.status.Signal() == unix.SIGKILL || p.status.ExitStatus() == 128+int(unix.SIGKILL)
}

// how says in words how the process ended.
func (p *child) how() string {
	if p.status.Signaled() {
		return "signal: " + unix.SignalName(p.status.Signal())
	}
	return fmt.Sprintf("exit code %d", p.status.ExitStatus())
}
