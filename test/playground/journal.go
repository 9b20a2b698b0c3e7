package playground

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"time"
)

// maxJournal bounds the number of lines that are kept of a container's output.
const maxJournal = 5000

// Journals keep the latest output of each container.
type Journals struct {
	mu sync.Mutex
	// of has them by pod, namespace/name, and container.
	of map[[2]string]*journal
}

// NewJournals returns journals without output.
func NewJournals() *Journals { return &Journals{of: map[[2]string]*journal{}} }

// get returns the journal of a container, which is empty if it has written nothing.
func (j *Journals) get(pod, container string) *journal {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := [2]string{pod, container}
	if j.of[key] == nil {
		j.of[key] = &journal{changed: make(chan struct{})}
	}
	return j.of[key]
}

// Writer returns a writer for the output of a container of a pod, namespace/name. It keeps the
// lines, and passes everything on.
func (j *Journals) Writer(pod, container string, to io.Writer) io.Writer {
	kept := j.get(pod, container)
	return io.MultiWriter(&Lines{Take: kept.add}, to)
}

// journal has the latest lines of a container's output.
type journal struct {
	mu    sync.Mutex
	lines []entry
	// dropped is how many lines came before these.
	dropped int
	// changed is closed when there is another line.
	changed chan struct{}
}

type entry struct {
	at   time.Time
	text []byte
}

func (j *journal) add(line []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) >= maxJournal {
		// Several at once, so that not every line moves the others.
		j.dropped += maxJournal / 10
		j.lines = append([]entry(nil), j.lines[maxJournal/10:]...)
	}
	j.lines = append(j.lines, entry{time.Now(), bytes.Clone(line)})
	close(j.changed)
	j.changed = make(chan struct{})
}

// from returns the text of the lines since a time, of which the first n lines are left out, how
// many lines there are in all, and a channel that is closed when there are more.
func (j *journal) from(n int, since time.Time) (text string, all int, changed <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out strings.Builder
	for _, e := range j.lines[max(n-j.dropped, 0):] {
		if !e.at.Before(since) {
			out.Write(e.text)
			out.WriteByte('\n')
		}
	}
	return out.String(), j.dropped + len(j.lines), j.changed
}
