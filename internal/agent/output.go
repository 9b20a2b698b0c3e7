package agent

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	maxOutput = 4 << 10 // how much of the end of a program's output is kept
	maxLine   = 1 << 10 // how much of a program's output goes into logs and reports
)

// output keeps the end of what a process prints. Its methods may be called from many
// goroutines.
type output struct {
	pipe *os.File
	done chan struct{}

	mu  sync.Mutex
	end []byte
	cut bool
}

// readOutput reads what is written into the pipe until nobody holds it open any more, and
// passes it on.
func readOutput(pipe *os.File, to io.Writer) *output {
	o := &output{pipe: pipe, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		defer pipe.Close()
		_, _ = io.Copy(io.MultiWriter(to, o), pipe)
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

// text returns the end of the output of a process that has ended, of which it waits for
// the rest. Processes that it left behind may hold the pipe open.
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

// reason returns the lines of a program's output that give the reason of its end, or if
// there are none its last ones, as one line of at most maxLine bytes. A stack trace may
// follow such lines.
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
	if more := len(text) - maxLine; more > 0 {
		text = "..." + text[more+3:]
	}
	return inOneLine(text)
}

// inOneLine returns a program's text for logs and reports: printable, on one line, and at
// most maxLine bytes long.
func inOneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + "..."
	}
	return text
}
