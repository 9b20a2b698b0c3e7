package process

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

// maxOutput is how many bytes are kept of the end of a program's output.
const maxOutput = 8 << 10

// output keeps the end of a process's output. Its methods are safe for use by many
// goroutines.
type output struct {
	pipe *os.File
	done chan struct{}

	mu  sync.Mutex
	end []byte
	cut bool
}

// readOutput copies the pipe to the writer, and keeps the end of it, until all writers have
// closed the pipe.
func readOutput(pipe *os.File, w io.Writer) *output {
	o := &output{pipe: pipe, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		defer pipe.Close()
		_, _ = io.Copy(io.MultiWriter(w, o), pipe)
	}()
	return o
}

// Write is for io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = append(o.end, p...)
	if more := len(o.end) - maxOutput; more > 0 {
		o.cut = true
		o.end = append(o.end[:0], o.end[more:]...)
	}
	return len(p), nil
}

// text returns the end of the output of a process that has ended. It waits at most a
// second for the rest, since processes left behind may hold the pipe open.
func (o *output) text() string {
	select {
	case <-o.done:
	case <-time.After(time.Second):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.ToValidUTF8(string(bytes.TrimSpace(o.end)), "")
	if o.cut {
		text = "..." + text
	}
	return text
}

// reason returns the lines of a program's output that look like the reason of its exit, or
// if there are none the last lines, as one line of at most kit.MaxLine bytes. The reason need
// not come last: a stack trace may follow it.
func reason(text string) string {
	var reasons []string
	for line := range strings.Lines(text) {
		lower := strings.ToLower(line)
		for _, word := range []string{"critical", "fatal", "panic", "alert", "emerg", "assert", "error", "cannot", "can't"} {
			if strings.Contains(lower, word) {
				reasons = append(reasons, line)
				break
			}
		}
	}
	if len(reasons) > 0 {
		text = strings.Join(reasons, " ")
	}
	if more := len(text) - kit.MaxLine; more > 0 {
		text = "..." + text[more+3:]
	}
	return kit.OneLine(text)
}
