package lab

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// tailSize is how many bytes of the last output are kept.
const tailSize = 8 << 10

// output keeps the last bytes of a process's output and passes all of it on.
type output struct {
	mu   sync.Mutex
	tail []byte
	// to may be nil.
	to io.Writer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, p...)
	if extra := len(o.tail) - tailSize; extra > 0 {
		o.tail = append(o.tail[:0], o.tail[extra:]...)
	}
	if o.to != nil {
		// An error of the writer must not stop the process.
		_, _ = o.to.Write(p)
	}
	return len(p), nil
}

// String returns the last output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.tail)
}

// last returns the last lines, for an error.
func (o *output) last() string {
	text := bytes.TrimSpace([]byte(o.String()))
	if len(text) == 0 {
		return "it wrote nothing"
	}
	lines := strings.Split(string(text), "\n")
	return "its last output:\n\t" + strings.Join(lines[max(0, len(lines)-10):], "\n\t")
}

// pipe returns the write end of a pipe for a process, and a function that waits, after the
// process has ended, until its output has been read.
func (o *output) pipe() (*os.File, func(), error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = read.Close() }()
		_, _ = io.Copy(o, read)
	}()
	return write, func() {
		// Another process may have inherited the write end and keep it open.
		_ = read.SetReadDeadline(time.Now().Add(time.Second))
		<-done
	}, nil
}
