package record

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

const (
	// firstLineFD is the first file descriptor to which the proxy writes lines, after those of
	// its input and output.
	firstLineFD = 3
	// linesInPipes is the size of all pipes together, in bytes: the most that a process may
	// ask for without privileges. The kernel also limits the sum for all pods of a node, which
	// run as one user.
	linesInPipes = 1 << 20
	// maxLineSize is the longest line that is read, in bytes.
	maxLineSize = 64 << 10
	// gather is for how long lines gather before they are read, in a pipe of at least roomy
	// bytes. A smaller one could be full by then, and the lines that follow would be lost.
	gather = 20 * time.Millisecond
	roomy  = 256 << 10
)

// lines reads what the proxy writes about its requests, spans and records, from pipes.
type lines struct {
	// reads are the ends of the pipes from which lines are read, until the proxy and the agent
	// have closed the other ones, proxys.
	reads, proxys []*os.File
	// passed are those of proxys that the proxy's process gets when it starts, and names the
	// environment variables with their numbers.
	passed []*os.File
	names  []string
	// handlers get each line. They must not keep it, and may be called by several goroutines
	// at a time.
	handlers []func([]byte)
	// tooLong is called for a line that is not read.
	tooLong func(error)
	twins   *twins        // nil with one pipe
	closed  chan struct{} // closed when nothing more is read
}

// newLines makes the pipes of a Spec.
func newLines(spec *agentspec.Spec, log *slog.Logger) (*lines, error) {
	l := &lines{closed: make(chan struct{})}
	if spec.Spans != nil || spec.Records != nil && spec.Records.File == "" {
		l.names = append(l.names, agentspec.EnvSpans)
	}
	if spec.Records != nil && spec.Records.File == "" {
		l.names = append(l.names, agentspec.EnvRecords)
		l.twins = newTwins(maxSingles)
	}
	for range l.names {
		read, write, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("opening a pipe for lines of the proxy: %w", err)
		}
		if _, err := unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, linesInPipes/len(l.names)); err != nil {
			log.Warn("a pipe stays small, so spans and counts of requests may be lost under load", "error", err)
		}
		l.reads, l.proxys, l.passed = append(l.reads, read), append(l.proxys, write), append(l.passed, write)
	}
	if spec.Records != nil && spec.Records.File != "" {
		if err := l.makeFile(spec.Records.File); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// makeFile makes a named pipe and opens it for reading. The agent keeps an end for writing,
// so that the proxy can be restarted.
func (l *lines) makeFile(path string) error {
	if err := errors.Join(removeIfPresent(path), unix.Mkfifo(path, 0o600)); err != nil {
		return fmt.Errorf("making the named pipe %s: %w", path, err)
	}
	// Opening only one end would wait for the other.
	both, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer both.Close()
	read, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	write, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return errors.Join(err, read.Close())
	}
	l.reads, l.proxys = append(l.reads, read), append(l.proxys, write)
	return nil
}

func removeIfPresent(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// start reads until finish is called.
func (l *lines) start(handlers []func([]byte), tooLong func(error)) {
	l.handlers, l.tooLong = handlers, tooLong
	var readers sync.WaitGroup
	for _, from := range l.reads {
		readers.Go(func() { l.read(from) })
	}
	go func() {
		readers.Wait()
		close(l.closed)
	}()
}

func (l *lines) read(file *os.File) {
	defer file.Close()
	var in io.Reader = file
	if sizeOf(file) >= roomy {
		in = &gathering{from: file}
	}
	reader := bufio.NewReaderSize(in, maxLineSize)
	for {
		line, err := reader.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			l.tooLong(fmt.Errorf("a line has more than %d bytes", maxLineSize))
			err = skipLine(reader)
		case err == nil && !l.twins.isSecond(line):
			for _, handle := range l.handlers {
				handle(line)
			}
		}
		if err != nil {
			return
		}
	}
}

// sizeOf returns how many bytes fit into a pipe, or 0 if that is unknown.
func sizeOf(pipe *os.File) (size int) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			size = n
		}
	})
	return size
}

// gathering reads many lines at a time. To wake up for each line of a busy proxy would cost more
// than the proxy's work for the line.
type gathering struct {
	from io.Reader
	// some is true if the last read has left nothing.
	some bool
}

func (g *gathering) Read(p []byte) (int, error) {
	if g.some {
		time.Sleep(gather)
	}
	n, err := g.from.Read(p)
	g.some = n < len(p)
	return n, err
}

// skipLine reads the rest of a line.
func skipLine(reader *bufio.Reader) error {
	for {
		if _, err := reader.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// finish lets the readers end once the proxy has ended.
func (l *lines) finish() {
	for _, end := range l.proxys {
		_ = end.Close()
	}
}

// twins recognizes the lines that a proxy has written to both pipes, by their IDs. It keeps
// the IDs that have come once, of which there are few: both copies of a line are written
// one after the other.
type twins struct {
	most int

	mu        sync.Mutex
	new, aged map[lineNumber]struct{}
}

// lineNumber is a process and a number that it has given to a line.
type lineNumber struct{ process, count uint64 }

// maxSingles is for how many lines a twin is awaited, at least.
const maxSingles = 4096

func newTwins(most int) *twins {
	return &twins{most: most, new: make(map[lineNumber]struct{}), aged: make(map[lineNumber]struct{})}
}

var lineID = []byte("line=")

// isSecond reports whether a line with the same ID has come before.
func (t *twins) isSecond(line []byte) bool {
	at := bytes.Index(line, lineID)
	if t == nil || at < 0 {
		return false
	}
	var id lineNumber
	rest := line[at+len(lineID):]
	if id.process, rest = number(rest); len(rest) == 0 || rest[0] != '/' {
		return false
	}
	id.count, _ = number(rest[1:])
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range []map[lineNumber]struct{}{t.new, t.aged} {
		if _, ok := known[id]; ok {
			delete(known, id)
			return true
		}
	}
	if len(t.new) >= t.most {
		// The twins of those that are still here were lost.
		t.new, t.aged = make(map[lineNumber]struct{}), t.new
	}
	t.new[id] = struct{}{}
	return false
}

// number reads the decimal number at the start of a text, and returns the rest.
func number(text []byte) (uint64, []byte) {
	var n uint64
	i := 0
	for ; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		n = n*10 + uint64(text[i]-'0')
	}
	return n, text[i:]
}
