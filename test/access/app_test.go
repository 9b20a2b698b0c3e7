package access

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// app is an application that accepts everything. It keeps the head of each request as it came, and
// answers with the header x-seen, by which the test finds it.
type app struct {
	certificate tls.Certificate
	last        atomic.Uint64
	heads       sync.Map
}

// received is the head of a request as the application got it.
type received struct {
	port           uint16
	method, target string
	// fields are names, in lower case, and values. The host is one of them, also with HTTP/2.
	fields [][2]string
}

func (r received) values(name string) []string {
	var all []string
	for _, f := range r.fields {
		if f[0] == name {
			all = append(all, f[1])
		}
	}
	return all
}

func (r received) String() string {
	return fmt.Sprintf("%q %q %q", r.method, r.target, r.fields)
}

// keep returns the name under which seen finds the head.
func (a *app) keep(r received) string {
	id := strconv.FormatUint(a.last.Add(1), 36)
	a.heads.Store(id, r)
	return id
}

// seen returns the head of the request that was answered with the ID.
func (a *app) seen(id string) (received, bool) {
	r, ok := a.heads.LoadAndDelete(id)
	if !ok {
		return received{}, false
	}
	return r.(received), true
}

// rest returns the heads that nobody has asked for, and forgets them.
func (a *app) rest() []received {
	var all []received
	a.heads.Range(func(id, head any) bool {
		a.heads.Delete(id)
		all = append(all, head.(received))
		return true
	})
	return all
}

// serve answers requests of HTTP/1.0, HTTP/1.1 and HTTP/2, in plaintext and in TLS, until the
// listener is closed.
func (a *app) serve(l net.Listener) {
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	accept(l, func(conn net.Conn) { a.handle(conn, port) })
}

// greet writes a line to each connection.
func (a *app) greet(l net.Listener) {
	accept(l, func(conn net.Conn) {
		_, _ = io.WriteString(conn, greeting)
		_, _ = io.Copy(io.Discard, conn)
	})
}

const greeting = "hello\n"

func accept(l net.Listener, handle func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Minute))
			handle(conn)
		}()
	}
}

// prefixed is a connection of which some bytes were read.
type prefixed struct {
	net.Conn
	reader *bufio.Reader
}

func (p prefixed) Read(b []byte) (int, error) { return p.reader.Read(b) }

func (a *app) handle(conn net.Conn, port uint16) {
	r := bufio.NewReader(conn)
	first, err := r.Peek(1)
	if err != nil {
		return
	}
	if first[0] == 0x16 {
		secure := tls.Server(prefixed{conn, r}, &tls.Config{Certificates: []tls.Certificate{a.certificate}, NextProtos: []string{"h2", "http/1.1"}})
		a.handle(secure, port)
		return
	}
	if preface, err := r.Peek(len(http2.ClientPreface)); err == nil && string(preface) == http2.ClientPreface {
		_, _ = r.Discard(len(preface))
		a.handleHTTP2(conn, r, port)
		return
	}
	for a.handleHTTP1(conn, r, port) {
	}
}

// handleHTTP1 answers one request, and returns false if it is the last one.
func (a *app) handleHTTP1(conn net.Conn, r *bufio.Reader, port uint16) bool {
	line, err := r.ReadString('\n')
	if err != nil {
		return false
	}
	head := received{port: port}
	rest := ""
	head.method, rest, _ = strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	at := strings.LastIndexByte(rest, ' ')
	if at < 0 {
		return false
	}
	head.target = rest[:at]
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		head.fields = append(head.fields, [2]string{strings.ToLower(name), textproto.TrimString(value)})
	}
	if err := skipBody(r, head); err != nil {
		return false
	}
	id := a.keep(head)
	if upgrades := head.values("upgrade"); len(upgrades) > 0 {
		// HAProxy compares the answer to the key.
		accept := sha1.Sum([]byte(strings.Join(head.values("sec-websocket-key"), "") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %s\r\nsec-websocket-accept: %s\r\nx-seen: %s\r\n\r\n",
			upgrades[0], base64.StdEncoding.EncodeToString(accept[:]), id)
		_, _ = io.Copy(io.Discard, r)
		return false
	}
	body := "ok"
	if head.method == "HEAD" {
		body = ""
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nx-seen: %s\r\ncontent-length: 2\r\n\r\n%s", id, body)
	return err == nil
}

func skipBody(r *bufio.Reader, head received) error {
	for _, encoding := range head.values("transfer-encoding") {
		if !strings.EqualFold(encoding, "chunked") {
			continue
		}
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return err
			}
			size, err := strconv.ParseUint(strings.TrimRight(line, "\r\n"), 16, 31)
			if err != nil {
				return err
			}
			if size > 0 {
				if _, err := r.Discard(int(size) + 2); err != nil {
					return err
				}
				continue
			}
			for line != "\r\n" {
				if line, err = r.ReadString('\n'); err != nil {
					return err
				}
			}
			return nil
		}
	}
	lengths := head.values("content-length")
	if len(lengths) == 0 {
		return nil
	}
	length, err := strconv.ParseUint(lengths[0], 10, 31)
	if err != nil {
		return err
	}
	_, err = r.Discard(int(length))
	return err
}

// handleHTTP2 answers the requests of a connection whose preface was read.
func (a *app) handleHTTP2(conn net.Conn, r *bufio.Reader, port uint16) {
	var out bytes.Buffer
	framer := http2.NewFramer(&out, r)
	framer.SetMaxReadFrameSize(1 << 20)
	flush := func() error {
		_, err := conn.Write(out.Bytes())
		out.Reset()
		return err
	}
	decoder := hpack.NewDecoder(4096, nil)
	var encoded bytes.Buffer
	encoder := hpack.NewEncoder(&encoded)
	heads := make(map[uint32]received)
	// block is that of the current headers, and ended says that no data follows.
	var block []byte
	ended := false
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
	for flush() == nil {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		stream, ends, complete := frame.Header().StreamID, frame.Header().Flags.Has(http2.FlagDataEndStream), false
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck()
			}
			continue
		case *http2.PingFrame:
			if !frame.IsAck() {
				_ = framer.WritePing(true, frame.Data)
			}
			continue
		case *http2.HeadersFrame:
			block, complete, ended = append(block[:0], frame.HeaderBlockFragment()...), frame.HeadersEnded(), ends
		case *http2.ContinuationFrame:
			block, complete = append(block, frame.HeaderBlockFragment()...), frame.HeadersEnded()
		case *http2.DataFrame:
			if n := uint32(frame.Header().Length); n > 0 {
				_ = framer.WriteWindowUpdate(0, n)
			}
		default:
			continue
		}
		if _, isData := frame.(*http2.DataFrame); !isData {
			if !complete {
				continue
			}
			fields, err := decoder.DecodeFull(block)
			if err != nil {
				return
			}
			// Trailers have no method.
			if head := headOf(fields); head.method != "" {
				heads[stream] = head
			}
			ends = ended
		}
		head, ok := heads[stream]
		upgrade := len(head.values(":protocol")) > 0
		if !ok || !ends && !(complete && upgrade) {
			continue
		}
		delete(heads, stream)
		head.port = port
		encoded.Reset()
		_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		_ = encoder.WriteField(hpack.HeaderField{Name: "x-seen", Value: a.keep(head)})
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: encoded.Bytes(), EndHeaders: true, EndStream: !upgrade})
	}
}

func headOf(fields []hpack.HeaderField) received {
	var head received
	for _, f := range fields {
		switch f.Name {
		case ":method":
			head.method = f.Value
		case ":path":
			head.target = f.Value
		case ":authority":
			head.fields = append(head.fields, [2]string{"host", f.Value})
		default:
			head.fields = append(head.fields, [2]string{strings.ToLower(f.Name), f.Value})
		}
	}
	return head
}
