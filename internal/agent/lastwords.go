package agent

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// lastWords is the end of what a process prints as errors, which is passed on to the
// agent's own. Its methods may be called from many goroutines.
type lastWords struct {
	mu   sync.Mutex
	end  tail
	done chan struct{}
}

// listen reads what is written into the pipe until nobody holds it open any more.
func listen(output *os.File) *lastWords {
	l := &lastWords{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer output.Close()
		_, _ = io.Copy(io.MultiWriter(os.Stderr, l), output)
	}()
	return l
}

// Write is for io.Writer.
func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end.Write(p)
}

// after waits a moment for the rest of what a process that has ended has printed, and
// returns what of it people should read, in one line.
func (l *lastWords) after() string {
	select {
	case <-l.done:
	case <-time.After(time.Second):
		// What it has left behind holds the pipe open.
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return reason(l.end.text())
}

// reason returns the last lines of a program's output that say why it has ended, as one
// line of at most maxLine bytes. A stack trace may follow them. If there are none it is
// the end.
func reason(text string) string {
	var telling []string
	for line := range strings.Lines(text) {
		lower := strings.ToLower(line)
		for _, word := range []string{"critical", "fatal", "panic", "alert", "emerg", "assert", "error", "cannot", "can't"} {
			if strings.Contains(lower, word) {
				telling = append(telling, line)
				break
			}
		}
	}
	if len(telling) > 0 {
		text = strings.Join(telling, " ")
	}
	if more := len(text) - maxLine; more > 0 {
		text = "..." + text[more+3:]
	}
	return inOneLine(text)
}
