package lab

import (
	"errors"
	"os"
	"syscall"
)

// Execution is a command that runs in a container, beside the container's own.
type Execution struct{ instance *instance }

// Execute starts a command in the container, with its privileges, its environment and more
// variables ("NAME=value"). The files are the command's standard input, output and error; the
// caller may close them as soon as Execute returns. The command ends with the container.
func (c *Container) Execute(args, env []string, files [3]*os.File) (*Execution, error) {
	if c == nil {
		return nil, errNoContainer
	}
	if len(args) == 0 {
		return nil, c.wrap("executing in", errors.New("there is no command"))
	}
	i, err := c.exec(args, env, new(output), &files)
	if err != nil {
		return nil, c.wrap("executing "+args[0]+" in", err)
	}
	return &Execution{i}, nil
}

// Done returns a channel that is closed when the command has ended.
func (e *Execution) Done() <-chan struct{} { return e.instance.done }

// Code returns the exit code of a command that has ended, which is 128 plus the signal's
// number if a signal ended it.
func (e *Execution) Code() int { return e.instance.code() }

// Signal sends the command a signal.
func (e *Execution) Signal(s syscall.Signal) error { return e.instance.signal(s) }
