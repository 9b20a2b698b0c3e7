package access

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// answer is what a client gets for a request, or for a connection to a port without HTTP.
type answer struct {
	// status is 0 if the connection ended without an answer.
	status int
	// seen is the ID by which the application knows the request. It is empty if it was not the
	// application that answered.
	seen string
	err  error
}

func (a answer) String() string {
	if a.seen != "" {
		return fmt.Sprintf("%d of the application", a.status)
	}
	return fmt.Sprintf("%d, %v", a.status, a.err)
}

// connection is a client's connection to a proxy.
type connection struct {
	net.Conn
	reader *bufio.Reader
	// stream is the last stream of HTTP/2.
	stream  uint32
	framer  *http2.Framer
	out     *bytes.Buffer
	encoder *hpack.Encoder
	encoded *bytes.Buffer
	decoder *hpack.Decoder
	// over is set if no other request may follow.
	over bool
}

// patience is how long an answer may take. A proxy may wait for the rest of an odd request.
const patience, oddPatience = 10 * time.Second, 500 * time.Millisecond

// connect connects and shakes hands, unless config is nil.
func connect(ctx context.Context, dial func(context.Context) (net.Conn, error), config *tls.Config, h2 bool) (*connection, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if config != nil {
		config = config.Clone()
		if h2 {
			config.NextProtos = []string{"h2"}
		}
		secure := tls.Client(conn, config)
		if err := secure.Handshake(); err != nil {
			conn.Close()
			return nil, err
		}
		if h2 && secure.ConnectionState().NegotiatedProtocol != "h2" {
			conn.Close()
			return nil, errNoHTTP2
		}
		conn = secure
	}
	c := &connection{Conn: conn, reader: bufio.NewReader(conn)}
	if h2 {
		c.out, c.encoded = new(bytes.Buffer), new(bytes.Buffer)
		c.framer = http2.NewFramer(c.out, c.reader)
		c.encoder, c.decoder = hpack.NewEncoder(c.encoded), hpack.NewDecoder(4096, nil)
		c.out.WriteString(http2.ClientPreface)
		_ = c.framer.WriteSettings()
	}
	return c, nil
}

// errNoHTTP2 is a server that does not speak HTTP/2.
var errNoHTTP2 = errors.New("the server does not speak HTTP/2")

// ask sends the request and returns the answer. No other one follows an odd request, whose end
// could be elsewhere for the proxy.
func (c *connection) ask(r *request, odd bool) answer {
	_ = c.SetDeadline(time.Now().Add(patience))
	if odd {
		_ = c.SetDeadline(time.Now().Add(oddPatience))
		c.over = true
	}
	if c.framer != nil {
		return c.askHTTP2(r)
	}
	if _, err := c.Write(r.bytes()); err != nil {
		// The answer may have come before the end of the request.
		c.over = true
	}
	for {
		a, interim := c.readHTTP1(r.Method)
		if !interim {
			return a
		}
	}
}

// bytes returns the request in HTTP/1.
func (r *request) bytes() []byte {
	var b bytes.Buffer
	b.WriteString(r.Method + " " + r.Target + " HTTP/" + r.Version + "\r\n")
	for _, f := range r.Fields {
		b.WriteString(f[0] + ": " + f[1] + "\r\n")
	}
	b.WriteString("\r\n" + r.Body)
	return b.Bytes()
}

// readHTTP1 reads an answer, and returns true if it is an interim one.
func (c *connection) readHTTP1(method string) (a answer, interim bool) {
	fail := func(err error) (answer, bool) {
		c.over = true
		a.err = err
		return a, false
	}
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return fail(err)
	}
	version, rest, _ := strings.Cut(line, " ")
	if len(rest) < 3 || !strings.HasPrefix(version, "HTTP/1.") {
		return fail(fmt.Errorf("the answer begins with %q", line))
	}
	if a.status, err = strconv.Atoi(rest[:3]); err != nil {
		return fail(err)
	}
	length, chunked := -1, false
	c.over = c.over || version == "HTTP/1.0"
	for {
		if line, err = c.reader.ReadString('\n'); err != nil {
			return fail(err)
		}
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "x-seen":
			a.seen = value
		case "content-length":
			if length, err = strconv.Atoi(value); err != nil {
				return fail(err)
			}
		case "transfer-encoding":
			chunked = true
		case "connection":
			c.over = c.over || strings.EqualFold(value, "close")
		}
	}
	switch {
	case a.status == 101:
		c.over = true
		return a, false
	case a.status < 200:
		return a, true
	case method == "HEAD" || a.status == 204 || a.status == 304:
	case chunked:
		if err := skipBody(c.reader, received{fields: [][2]string{{"transfer-encoding", "chunked"}}}); err != nil {
			c.over = true
		}
	case length >= 0:
		if _, err := c.reader.Discard(length); err != nil {
			c.over = true
		}
	default:
		c.over = true
	}
	return a, false
}

// greeted returns the answer of a connection whose application speaks first.
func (c *connection) greeted() answer {
	c.over = true
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "hi\n"); err != nil {
		return answer{err: err}
	}
	line, err := c.reader.ReadString('\n')
	if line == greeting {
		return answer{status: 200, seen: "greeting"}
	}
	return answer{err: err}
}

func (c *connection) askHTTP2(r *request) answer {
	if c.stream == 0 {
		c.stream = 1
	} else {
		c.stream += 2
	}
	fail := func(err error) answer {
		c.over = true
		return answer{err: err}
	}
	c.encoded.Reset()
	field := func(name, value string) { _ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) }
	field(":method", r.Method)
	scheme := "http"
	if _, ok := c.Conn.(*tls.Conn); ok {
		scheme = "https"
	}
	field(":scheme", scheme)
	field(":path", r.Target)
	if r.Protocol != "" {
		field(":protocol", r.Protocol)
	}
	host := false
	for _, f := range r.Fields {
		if !host && strings.EqualFold(f[0], "host") {
			host = true
			field(":authority", f[1])
		}
	}
	host = false
	for _, f := range r.Fields {
		if !host && strings.EqualFold(f[0], "host") {
			host = true
			continue
		}
		field(f[0], f[1])
	}
	const frame = 16384
	block := c.encoded.Bytes()
	first := block[:min(len(block), frame)]
	block = block[len(first):]
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: first, EndHeaders: len(block) == 0, EndStream: r.Body == "" && r.Protocol == ""})
	for len(block) > 0 {
		part := block[:min(len(block), frame)]
		block = block[len(part):]
		_ = c.framer.WriteContinuation(c.stream, len(block) == 0, part)
	}
	if r.Body != "" {
		_ = c.framer.WriteData(c.stream, true, []byte(r.Body))
	}
	if _, err := c.Write(c.out.Bytes()); err != nil {
		return fail(err)
	}
	c.out.Reset()
	var a answer
	var collected []byte
	for {
		got, err := c.framer.ReadFrame()
		if err != nil {
			return fail(err)
		}
		stream, ends, complete := got.Header().StreamID, false, false
		switch got := got.(type) {
		case *http2.SettingsFrame:
			if !got.IsAck() {
				_ = c.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !got.IsAck() {
				_ = c.framer.WritePing(true, got.Data)
			}
		case *http2.GoAwayFrame:
			c.over = true
			if got.LastStreamID < c.stream {
				return fail(fmt.Errorf("GOAWAY: %v", got.ErrCode))
			}
		case *http2.RSTStreamFrame:
			if stream == c.stream {
				a.err = fmt.Errorf("RST_STREAM: %v", got.ErrCode)
				return a
			}
		case *http2.HeadersFrame:
			collected, complete = append(collected[:0], got.HeaderBlockFragment()...), got.HeadersEnded()
			ends = got.StreamEnded()
		case *http2.ContinuationFrame:
			collected, complete = append(collected, got.HeaderBlockFragment()...), got.HeadersEnded()
		case *http2.DataFrame:
			if n := got.Header().Length; n > 0 {
				_ = c.framer.WriteWindowUpdate(0, n)
			}
			ends = got.StreamEnded()
		}
		if c.out.Len() > 0 {
			if _, err := c.Write(c.out.Bytes()); err != nil {
				return fail(err)
			}
			c.out.Reset()
		}
		if complete {
			fields, err := c.decoder.DecodeFull(collected)
			if err != nil {
				return fail(err)
			}
			for _, f := range fields {
				switch f.Name {
				case ":status":
					a.status, _ = strconv.Atoi(f.Value)
				case "x-seen":
					a.seen = f.Value
				}
			}
		}
		switch {
		case stream != c.stream || a.status < 200:
		case ends:
			return a
		case complete && r.Protocol != "" && a.status == 200:
			_ = c.framer.WriteRSTStream(c.stream, http2.ErrCodeCancel)
			_, _ = c.Write(c.out.Bytes())
			c.out.Reset()
			return a
		}
	}
}
