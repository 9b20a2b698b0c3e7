package ends

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How long an end waits for what may never come, and after the end of a message for what must not
// come.
const (
	patience = 2 * time.Second
	quiet    = 150 * time.Millisecond
)

// seen is what the two ends of an exchange have received, and how their connections ended.
type seen struct {
	server, client           []message
	serverEvent, clientEvent string
}

// fieldName is the header by which the server finds the exchange.
const fieldName = "x-exchange"

// server plays the server's part of the exchanges.
type server struct {
	corpus []exchange

	mu   sync.Mutex
	seen map[int]*seen
}

// serve accepts connections until the listener is closed.
func (s *server) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			s.handle(conn)
		}()
	}
}

// handle plays the server's part on a connection, which may carry a part of an exchange only: a proxy
// may use several, or one for several exchanges.
func (s *server) handle(conn net.Conn) {
	r := &receiver{conn: conn, requests: true}
	for {
		head, err := r.head(time.Now().Add(time.Minute))
		if err != nil {
			return
		}
		number, err := strconv.Atoi(head.value(fieldName))
		if err != nil || number >= len(s.corpus) {
			return
		}
		e := s.corpus[number]
		k := min(s.count(number), max(len(e.answers)-1, 0))
		if e.between != "" {
			_, _ = io.WriteString(conn, e.between)
		}
		if !e.early {
			r.body(&head, time.Now().Add(patience))
		}
		event := ""
		if e.leaves {
			if event = r.end(time.Now().Add(patience)); event == open {
				event = "is not told that the client has gone"
			} else {
				event = "is told that the client has gone"
			}
		}
		if k < len(e.answers) {
			_, _ = io.WriteString(conn, e.answers[k])
		}
		if e.early && !e.closes {
			r.body(&head, time.Now().Add(patience))
		}
		s.record(number, head, event)
		if k >= len(e.answers) {
			return
		}
		if e.upgraded != "" {
			_, _ = io.CopyN(conn, io.MultiReader(bytes.NewReader(r.rest()), conn), int64(len(e.upgraded)))
		}
		if e.closes && k == len(e.answers)-1 {
			// Data that was not read would become a reset.
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
			_ = conn.SetReadDeadline(time.Now().Add(quiet))
			_, _ = io.Copy(io.Discard, conn)
			return
		}
	}
}

func (s *server) count(number int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen[number].server)
}

func (s *server) record(number int, m message, event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[number].server = append(s.seen[number].server, m)
	s.seen[number].serverEvent = event
}

// run plays all exchanges over connections of dial with the server, and returns what was seen.
func run(ctx context.Context, corpus []exchange, s *server, dial func(ctx context.Context) (net.Conn, error)) []seen {
	s.mu.Lock()
	s.seen = make(map[int]*seen)
	for i := range corpus {
		s.seen[i] = &seen{}
	}
	s.mu.Unlock()
	const atOnce = 32
	out := make([]seen, len(corpus))
	turns := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for i, e := range corpus {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			messages, event := play(ctx, e, i, dial)
			if e.leaves {
				time.Sleep(patience + 4*quiet)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			out[i] = *s.seen[i]
			if e.pipelined {
				// A proxy may forward them over several connections.
				slices.SortFunc(out[i].server, func(a, b message) int { return strings.Compare(a.start, b.start) })
			}
			out[i].client, out[i].clientEvent = messages, event
		})
	}
	group.Wait()
	return out
}

// play plays the client's part, and returns the answers and how the connection ended.
func play(ctx context.Context, e exchange, number int, dial func(ctx context.Context) (net.Conn, error)) ([]message, string) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err.Error()
	}
	defer conn.Close()
	r := &receiver{conn: conn}
	var answers []message
	send := func(k int) {
		r.methods = append(r.methods, strings.Fields(e.requests[k])[0])
		_, _ = io.WriteString(conn, withNumber(e.requests[k], number))
	}
	receive := func() bool {
		deadline := time.Now().Add(patience)
		for {
			m, err := r.head(deadline)
			if err != nil {
				return false
			}
			interim := strings.HasPrefix(m.status(), "1") && m.status() != "101"
			if !interim && m.status() != "101" {
				r.body(&m, deadline)
			}
			answers = append(answers, m)
			if e.rest != "" && interim {
				_, _ = io.WriteString(conn, e.rest)
				e.rest = ""
			}
			if !interim {
				return true
			}
		}
	}
	for k := range e.requests {
		send(k)
		last := k == len(e.requests)-1
		switch {
		case e.leaves:
			time.Sleep(quiet)
			return nil, ""
		case last && e.halfCloses:
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		case e.rest != "":
			// A client does not wait for the interim answer forever.
			timer := time.AfterFunc(patience/2, func() { _, _ = io.WriteString(conn, e.rest) })
			defer timer.Stop()
		}
		if !e.pipelined && !receive() {
			return answers, r.end(time.Now().Add(quiet))
		}
	}
	for range e.requests {
		if e.pipelined {
			receive()
		}
	}
	if e.upgraded != "" && len(answers) > 0 && answers[len(answers)-1].status() == "101" {
		_, _ = io.WriteString(conn, e.upgraded)
		echo := make([]byte, len(e.upgraded))
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		n, _ := io.ReadFull(io.MultiReader(bytes.NewReader(r.rest()), conn), echo)
		answers = append(answers, message{start: "upgraded", body: string(echo[:n])})
	}
	return answers, r.end(time.Now().Add(2 * quiet))
}

// withNumber adds the header with the number of the exchange to a request.
func withNumber(request string, number int) string {
	line, rest, _ := strings.Cut(request, "\r\n")
	return line + "\r\nX-Exchange: " + strconv.Itoa(number) + "\r\n" + rest
}

// How a connection ends.
const (
	open   = "stays open"
	closed = "is closed"
	reset  = "is reset"
)

// receiver reads messages from a connection.
type receiver struct {
	conn     net.Conn
	requests bool
	// methods are those of the requests whose answers are still to come.
	methods []string
	buffer  []byte
	err     error
}

// more reads more bytes. It returns false at the end of the connection or of the time.
func (r *receiver) more(deadline time.Time) bool {
	if r.err != nil {
		return false
	}
	_ = r.conn.SetReadDeadline(deadline)
	part := make([]byte, 64<<10)
	n, err := r.conn.Read(part)
	r.buffer = append(r.buffer, part[:n]...)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		r.err = err
	}
	return n > 0
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// rest takes the bytes that were read and belong to no message.
func (r *receiver) rest() []byte {
	rest := r.buffer
	r.buffer = nil
	return rest
}

// until takes what ends in the text.
func (r *receiver) until(end string, deadline time.Time) (string, bool) {
	for {
		if i := bytes.Index(r.buffer, []byte(end)); i >= 0 {
			text := string(r.buffer[:i])
			r.buffer = r.buffer[i+len(end):]
			return text, true
		}
		if !r.more(deadline) {
			return "", false
		}
	}
}

// take takes that many bytes, or what there is.
func (r *receiver) take(n int, deadline time.Time) (string, bool) {
	for len(r.buffer) < n && r.more(deadline) {
	}
	k := min(n, len(r.buffer))
	text := string(r.buffer[:k])
	r.buffer = r.buffer[k:]
	return text, k == n
}

// head reads the head of the next message.
func (r *receiver) head(deadline time.Time) (message, error) {
	text, ok := r.until("\r\n\r\n", deadline)
	if !ok {
		return message{}, io.ErrUnexpectedEOF
	}
	lines := strings.Split(text, "\r\n")
	m := message{start: lines[0]}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		m.fields = append(m.fields, field{name, strings.Trim(value, " \t")})
	}
	return m, nil
}

// body reads the body and the trailers of a message.
func (r *receiver) body(m *message, deadline time.Time) {
	method := ""
	if !r.requests && len(r.methods) > 0 {
		method = r.methods[0]
		r.methods = r.methods[1:]
	}
	length, err := strconv.Atoi(m.value("content-length"))
	switch status := m.status(); {
	case !r.requests && (method == "HEAD" || status == "204" || status == "304"):
	case strings.EqualFold(m.value("transfer-encoding"), "chunked"):
		m.framing = "chunks"
		m.cut = !r.chunks(m, deadline)
	case err == nil:
		m.framing = "a length"
		var whole bool
		m.body, whole = r.take(length, deadline)
		m.cut = !whole
	case !r.requests:
		m.framing = "the end of the connection"
		for r.more(deadline) {
		}
		m.body = string(r.rest())
		m.cut = r.ended() != closed
	}
}

func (r *receiver) chunks(m *message, deadline time.Time) bool {
	for {
		line, ok := r.until("\r\n", deadline)
		digits, _, _ := strings.Cut(line, ";")
		size, err := strconv.ParseInt(strings.TrimSpace(digits), 16, 32)
		if !ok || err != nil {
			return false
		}
		if size == 0 {
			break
		}
		part, ok := r.take(int(size)+2, deadline)
		m.body += strings.TrimSuffix(part, "\r\n")
		if !ok {
			return false
		}
	}
	for {
		line, ok := r.until("\r\n", deadline)
		if !ok || line == "" {
			return ok
		}
		name, value, _ := strings.Cut(line, ":")
		m.trailers = append(m.trailers, field{name, strings.Trim(value, " \t")})
	}
}

// end returns how the connection ends within the time.
func (r *receiver) end(deadline time.Time) string {
	for r.more(deadline) {
	}
	return r.ended()
}

func (r *receiver) ended() string {
	switch {
	case r.err == nil:
		return open
	case errors.Is(r.err, io.EOF):
		return closed
	case errors.Is(r.err, syscall.ECONNRESET), errors.Is(r.err, syscall.EPIPE):
		return reset
	}
	return r.err.Error()
}
