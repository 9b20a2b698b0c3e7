package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// maxCheckOutput is how much of the end of a command's output is told.
const maxCheckOutput = 4 << 10

// notStartedError is that of a command that could not be started, which says nothing
// about what it would have looked at.
type notStartedError struct{ error }

// Unwrap is for package errors.
func (e *notStartedError) Unwrap() error { return e.error }

// run runs a command and waits for its end. The error of one that does not end well, or
// not in time, holds the end of what it has printed.
func (c *children) run(ctx context.Context, argv []string, within time.Duration) error {
	output, into, err := os.Pipe()
	if err != nil {
		return err
	}
	defer output.Close()
	child, err := c.startInto(argv, into)
	into.Close()
	if err != nil {
		return &notStartedError{err}
	}
	printed := make(chan string, 1)
	go func() {
		var end tail
		_, _ = io.Copy(&end, output)
		printed <- end.text()
	}()
	limit := time.NewTimer(within)
	defer limit.Stop()
	how := ""
	select {
	case <-child.ended:
		if child.status != 0 {
			how = child.how()
		}
	case <-limit.C:
		how = fmt.Sprintf("it has not ended within %v", within)
	case <-ctx.Done():
		how = "the agent ends"
	}
	child.kill()
	// What it has left behind may hold the pipe open.
	_ = output.SetReadDeadline(time.Now().Add(time.Second))
	text := <-printed
	switch {
	case how == "":
		return nil
	case text == "":
		return fmt.Errorf("%s: %s", argv[0], how)
	}
	return fmt.Errorf("%s: %s: %s", argv[0], how, text)
}

// tail keeps the end of what is written to it.
type tail struct {
	kept []byte
	cut  bool
}

// Write is for io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if more := len(t.kept) - maxCheckOutput; more > 0 {
		t.cut = true
		t.kept = append(t.kept[:0], t.kept[more:]...)
	}
	return len(p), nil
}

func (t *tail) text() string {
	text := strings.ToValidUTF8(string(bytes.TrimSpace(t.kept)), "")
	if t.cut {
		text = "..." + text
	}
	return text
}
