package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is a program to run on the node. It has the machine's files except for
// /etc/hosts, which is the lab's, and the node's network.
type Process struct {
	// Name is for errors and logs. The default is the program's.
	Name string
	// Command is the program, which is looked up in PATH, and its arguments.
	Command []string
	// Env is its environment, "NAME=value"; nil means that of this program.
	Env []string
	// Dir is its working directory; empty means that of this program.
	Dir string
	// Output receives its output; nil discards it.
	Output io.Writer
}

// Running is a process on the node. Its methods are safe for concurrent use.
type Running struct {
	lab     *Lab
	name    string
	command command

	mu       sync.Mutex
	instance *instance
	closed   bool
}

// StartProcess starts a program on the node with this program's user. It is killed when
// the lab is closed.
func (l *Lab) StartProcess(ctx context.Context, p Process) (*Running, error) {
	if len(p.Command) == 0 {
		return nil, errors.New("starting a process on the node: it has no command")
	}
	r := &Running{lab: l, name: cmp.Or(p.Name, filepath.Base(p.Command[0]))}
	// Resolved by this program's PATH and directory, not by those of the process.
	file, err := exec.LookPath(p.Command[0])
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if err != nil {
		return nil, r.wrap("starting", err)
	}
	if p.Env == nil {
		p.Env = os.Environ()
	}
	if p.Dir == "" {
		if p.Dir, err = os.Getwd(); err != nil {
			return nil, r.wrap("starting", err)
		}
	}
	r.command = command{args: append([]string{file}, p.Command[1:]...), env: p.Env, dir: p.Dir, output: &output{to: p.Output}}

	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, r.wrap("starting", ErrClosed)
	}
	l.processes[r] = struct{}{}
	l.mu.Unlock()
	if err := r.Restart(ctx); err != nil {
		l.mu.Lock()
		delete(l.processes, r)
		l.mu.Unlock()
		return nil, err
	}
	return r, nil
}

// wrap adds the process to an error.
func (r *Running) wrap(doing string, err error) error {
	return fmt.Errorf("%s the process %s on the node: %w", doing, r.name, err)
}

// Restart kills the process if it runs and starts it again.
func (r *Running) Restart(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return r.wrap("starting", ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return r.wrap("starting", err)
	}
	if err := r.kill(); err != nil {
		return r.wrap("restarting", err)
	}
	namespace, err := r.lab.node.open()
	if err != nil {
		return r.wrap("starting", err)
	}
	defer func() { _ = namespace.Close() }()
	i, err := start(r.command, func(calls *calls) error {
		if err := r.lab.machine.enter(); err != nil {
			return err
		}
		if err := join(namespace, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return nodeFiles(calls)
	})
	if err != nil {
		return r.wrap("starting", err)
	}
	r.instance = i
	return nil
}

// nodeFiles gives the current thread the machine's files with the lab's /etc/hosts.
func nodeFiles(calls *calls) error {
	if err := leave(unix.CLONE_NEWNS); err != nil {
		return err
	}
	const hosts = machineRoot + "/etc/hosts"
	if err := unix.Mount("/"+nodeHosts, hosts, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting the lab's hosts on /etc/hosts: %w", err)
	}
	calls.changeRoot(machineRoot)
	return nil
}

// kill kills the process if it runs and waits for its end.
func (r *Running) kill() error {
	if r.instance == nil {
		return nil
	}
	if err := r.instance.signal(syscall.SIGKILL); err != nil && !errors.Is(err, errGone) {
		return err
	}
	<-r.instance.done
	return nil
}

func (r *Running) current() *instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.instance
}

// PID returns the process ID on this machine, even after the process has ended.
func (r *Running) PID() int { return r.current().pid }

// Done returns a channel that is closed when the current process has ended.
func (r *Running) Done() <-chan struct{} { return r.current().done }

// Signal sends the process a signal.
func (r *Running) Signal(s syscall.Signal) error {
	if err := r.current().signal(s); err != nil {
		return r.wrap("signalling", err)
	}
	return nil
}

// Kill kills the process if it runs and waits for its end. Restart starts it again.
func (r *Running) Kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.kill(); err != nil {
		return r.wrap("killing", err)
	}
	return nil
}

// Wait waits until the process has ended. An exit code other than 0 is an error, which
// contains the code and the last lines of output.
func (r *Running) Wait(ctx context.Context) error {
	i := r.current()
	select {
	case <-i.done:
	case <-ctx.Done():
		return r.wrap("waiting for", fmt.Errorf("%w; %s", ctx.Err(), r.command.output.last()))
	}
	if code := i.code(); code != 0 {
		return r.wrap("waiting for", fmt.Errorf("it ended with code %d; %s", code, r.command.output.last()))
	}
	return nil
}

// Output returns the last 8 KiB of the process's output, including earlier starts.
func (r *Running) Output() string { return r.command.output.String() }

// close kills the process for good.
func (r *Running) close() error {
	err := r.Kill()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	return err
}
