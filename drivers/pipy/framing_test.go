package pipy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dop251/goja"
	"github.com/google/go-cmp/cmp"
)

// read is what a reader makes of a client's or a server's bytes.
type read struct {
	// Passed is what it passes on, with "END" where it ends the stream.
	Passed string
	// Refused is the status with which it answers, and Failure why it ends the stream.
	Refused int
	Failure string
}

// readParts has a reader read the parts.
func (e *engine) readParts(reader goja.Value, parts ...string) read {
	e.t.Helper()
	var out read
	for _, part := range parts {
		numbers := make([]any, len(part))
		for i := range len(part) {
			numbers[i] = int64(part[i])
		}
		data, err := e.vm.New(e.vm.Get("Data"), e.vm.NewArray(numbers...))
		e.must(err)
		for _, event := range e.events(e.call("./framing.js", "read", reader, data)) {
			out.Passed += event
		}
	}
	r := reader.ToObject(e.vm)
	out.Failure = r.Get("failure").String()
	e.must(e.vm.Set("reader", reader))
	refused, err := e.vm.RunString("reader.heads.filter(h => h.refused).map(h => h.refused.status)[0] || 0")
	e.must(err)
	out.Refused = int(refused.ToInteger())
	return out
}

// events returns the data of events, and "END" for an end of the stream.
func (e *engine) events(v goja.Value) []string {
	if goja.IsUndefined(v) {
		return nil
	}
	e.must(e.vm.Set("events", v))
	value, err := e.vm.RunString("(events instanceof Array ? events : [events]).map(e => e instanceof Data ? e.bytes : null)")
	e.must(err)
	var list [][]byte
	e.must(e.vm.ExportTo(value, &list))
	out := make([]string, len(list))
	for i, content := range list {
		if out[i] = string(content); content == nil {
			out[i] = "END"
		}
	}
	return out
}

func (e *engine) readRequests(parts ...string) read {
	return e.readParts(e.call("./framing.js", "newRequestReader"), parts...)
}

// readAnswer reads the answer to a request with the method.
func (e *engine) readAnswer(method string, parts ...string) read {
	reader := e.call("./framing.js", "newAnswerReader")
	e.call("./framing.js", "expect", reader, method)
	return e.readParts(reader, parts...)
}

// refusedRequest is the request that the decoder gets in place of a refused one.
const refusedRequest = "GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n"

// TestRequestsAreChecked has requests read that Pipy's decoder would misread.
func TestRequestsAreChecked(t *testing.T) {
	const get, post = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "POST /a HTTP/1.1\r\nHost: a\r\n"
	chunked := func(body string) string { return post + "transfer-encoding: chunked\r\n\r\n" + body }
	refused := func(status int) read { return read{Passed: refusedRequest, Refused: status} }
	e := newEngine(t)
	for raw, want := range map[string]read{
		get + get:               {Passed: get + get},
		"\r\n\r\n" + get:        {Passed: get},
		"GET /a HTTP/1.1\r\nHo": {},
		post + "Content-Length: 3\r\n\r\nabc" + get:                                {Passed: post + "Content-Length: 3\r\n\r\nabc" + get},
		chunked("5;abc=def\r\nhello\r\n0;x\r\n\r\n") + get:                         {Passed: chunked("5\r\nhello\r\n0\r\n\r\n") + get},
		chunked("0000A \t;a=\"b\"\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\n") + get: {Passed: chunked("a\r\n0123456789\r\n0\r\n\r\n") + get},
		chunked("64;0000000000000000\r\n") + strings.Repeat("a", 100):              {Passed: chunked("64\r\n") + strings.Repeat("a", 100)},
		chunked("5\r\nhelloX"):                                     {Passed: chunked("5\r\nhello")},
		chunked("5\r\nhelloXY0"):                                   {Passed: chunked("5\r\nhello") + "END", Failure: "an invalid chunk"},
		chunked("5\nhello"):                                        {Passed: chunked("") + "END", Failure: "an invalid chunk"},
		chunked("5 \r\nhello"):                                     {Passed: chunked("") + "END", Failure: "an invalid chunk"},
		chunked("80000000\r\n"):                                    {Passed: chunked("") + "END", Failure: "an invalid chunk"},
		chunked("0\r\nX\r\n\r\n"):                                  {Passed: chunked("0\r\n") + "END", Failure: "an invalid trailer"},
		post + "Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n":       {Passed: chunked("0\r\n\r\n")},
		post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n": refused(501),
		post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n":    refused(400),
		post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello":                 refused(400),
		post + "Content-Length: +5\r\n\r\nhello":                                     refused(400),
		post + "Content-Length : 5\r\n\r\nhello":                                     refused(400),
		post + "X: a\r\n b\r\n\r\n":                                                  refused(400),
		post + "X: a\rb\r\n\r\n":                                                     refused(400),
		post + "X: a\x00b\r\n\r\n":                                                   refused(400),
		"GET /a HTTP/1.1\nHost: a\n\n":                                               refused(400),
		"GET  /a HTTP/1.1\r\nHost: a\r\n\r\n" + get:                                  refused(400),
		"GET /a HTTP/1.2\r\nHost: a\r\n\r\n":                                         refused(505),
		"HEAD /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello":              refused(400),
		"GET /a HTTP/1.1\r\nX: " + strings.Repeat("a", 17000) + "\r\n\r\n":           refused(431),
		"GET /a HTTP/1.1\r\n" + strings.Repeat("X: a\r\n", 20000):                    refused(431),
		"PURGE /a HTTP/1.1\r\nHost: a\r\n\r\n":                                       {Passed: "POST /a HTTP/1.1\r\nHost: a\r\n\r\n"},
		"GET /a HTTP/1.1\r\nA: 1\r\nb: 2\r\na: 3\r\nCookie: x\r\nCookie: y\r\n\r\n":  {Passed: "GET /a HTTP/1.1\r\nA: 1, 3\r\nb: 2\r\nCookie: x\r\nCookie: y\r\n\r\n"},
		"GET /a HTTP/1.1\r\nX-Outrigger-Session: 1\r\nb: 2\r\n\r\n":                  {Passed: "GET /a HTTP/1.1\r\nb: 2\r\n\r\n"},
		"GET /a HTTP/1.1\r\nX: \xe9\r\n\r\n":                                         {Passed: "GET /a HTTP/1.1\r\nX: \xe9\r\n\r\n"},
		"GET /a HTTP/1.1\r\nUpgrade: TLS/1.2\r\nConnection: upgrade\r\n\r\n" + get:   {Passed: "GET /a HTTP/1.1\r\nConnection: upgrade\r\n\r\n" + get},
		"GET /a HTTP/1.1\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n" + get: {Passed: "GET /a HTTP/1.1\r\nConnection: Upgrade\r\nupgrade: websocket\r\n\r\n"},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00":                                   {Passed: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00"},
	} {
		if diff := cmp.Diff(want, e.readRequests(raw)); diff != "" {
			t.Errorf("%.200q (-want +got):\n%s", raw, diff)
		}
		for _, parts := range [][]string{strings.Split(raw, ""), cut(raw, 1), cut(raw, 2)} {
			if len(raw) < 2000 {
				if diff := cmp.Diff(want, e.readRequests(parts...)); diff != "" {
					t.Errorf("%.200q in %d parts (-want +got):\n%s", raw, len(parts), diff)
				}
			}
		}
	}
}

// cut divides a text into up to four parts.
func cut(text string, seed uint64) []string {
	random := rand.New(rand.NewPCG(seed, 0))
	at := []int{0, random.IntN(len(text) + 1), random.IntN(len(text) + 1), random.IntN(len(text) + 1), len(text)}
	slices.Sort(at)
	var parts []string
	for i := range 4 {
		parts = append(parts, text[at[i]:at[i+1]])
	}
	return parts
}

// TestAnswersAreChecked is the same for answers.
func TestAnswersAreChecked(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	e := newEngine(t)
	unasked := "data that no request has asked for"
	for _, test := range []struct {
		method, raw string
		want        read
	}{
		{"GET", ok + "Content-Length: 2\r\n\r\nab", read{Passed: ok + "Content-Length: 2\r\n\r\nab"}},
		{"GET", ok + "Content-Length: 2\r\n\r\nab" + ok, read{Passed: ok + "Content-Length: 2\r\n\r\nab" + "END", Failure: unasked}},
		{"HEAD", ok + "Content-Length: 2\r\n\r\nab", read{Passed: ok + "Content-Length: 2\r\n\r\n" + "END", Failure: unasked}},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", read{Passed: "HTTP/1.1 304 Not Modified\r\n\r\n"}},
		{"GET", ok + "\r\nto the end" + ok, read{Passed: ok + "\r\nto the end" + ok}},
		{"GET", ok + "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n", read{Passed: ok + "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"}},
		{"GET", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", read{Passed: "HTTP/1.1 100 Continue\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n"}},
		{"GET", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", read{Passed: "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"}},
		{"GET", ok + "Vary: a\r\nVary: b\r\nSet-Cookie: c\r\nSet-Cookie: d\r\nContent-Length: 0\r\n\r\n", read{Passed: ok + "Vary: a, b\r\nSet-Cookie: c\r\nSet-Cookie: d\r\nContent-Length: 0\r\n\r\n"}},
		{"GET", "HTTP/1.1 999 High\r\nContent-Length: 0\r\n\r\n", read{Passed: "END", Failure: "an invalid answer"}},
		{"GET", "220 mail ESMTP\r\n\r\n", read{Passed: "END", Failure: "an invalid answer"}},
		{"GET", ok + "X: " + strings.Repeat("a", 17000) + "\r\n\r\n", read{Passed: "END", Failure: "a header is too long"}},
		{"GET", ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", read{Passed: "END", Failure: "both a content-length and a transfer-encoding"}},
		{"GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x00", read{Passed: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x00"}},
	} {
		for _, parts := range [][]string{{test.raw}, cut(test.raw, 3), cut(test.raw, 4)} {
			if diff := cmp.Diff(test.want, e.readAnswer(test.method, parts...)); diff != "" {
				t.Errorf("%s: %.200q in %d parts (-want +got):\n%s", test.method, test.raw, len(parts), diff)
			}
		}
	}
}

// FuzzRequestReader checks that what a reader passes on has one meaning: Pipy's decoder and
// Go's find the same requests in it, however the bytes arrive.
func FuzzRequestReader(f *testing.F) {
	for _, raw := range []string{
		"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: b\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\nGET /b HTTP/1.1\r\nHost: b\r\n\r\n", "PURGE /a HTTP/1.0\r\nX: a\r\nX: b\r\n\r\n",
	} {
		f.Add([]byte(raw), uint64(1))
	}
	f.Fuzz(func(t *testing.T, raw []byte, seed uint64) {
		if len(raw) > 4096 || bytes.Contains(raw, []byte("PRI * HTTP/2.0")) || bytes.Contains(bytes.ToLower(raw), []byte("websocket")) {
			return
		}
		e := newEngine(t)
		got := e.readRequests(string(raw))
		if other := e.readRequests(cut(string(raw), seed)...); other != got {
			t.Errorf("in one part %+v, in several %+v", got, other)
		}
		passed, ended := strings.CutSuffix(got.Passed, "END")
		pipys, err := pipysRequests(passed)
		if err != nil {
			t.Errorf("Pipy's decoder fails with %q: %v", passed, err)
		}
		if gos := gosRequests(passed); !slices.Equal(pipys, gos) && !ended {
			t.Errorf("Pipy's decoder finds %q and Go's %q in %q", pipys, gos, passed)
		}
	})
}

// gosRequests returns the targets of the complete requests that Go finds in the text.
func gosRequests(text string) []string {
	var out []string
	for r := bufio.NewReader(strings.NewReader(text)); ; {
		request, err := http.ReadRequest(r)
		if err != nil {
			return out
		}
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return out
		}
		out = append(out, request.RequestURI)
	}
}

// pipysRequests is what Pipy's decoder does with a text: each line ends at a line feed, and
// every hexadecimal digit in a chunk's first line belongs to its size.
func pipysRequests(text string) ([]string, error) {
	var out []string
	line := func() (string, bool) {
		found, rest, ok := strings.Cut(text, "\n")
		if ok {
			text = rest
		}
		return strings.TrimSuffix(found, "\r"), ok
	}
	for {
		first, ok := line()
		if !ok {
			return out, nil
		}
		parts := strings.Split(first, " ")
		if len(parts) != 3 || !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"}, parts[0]) {
			return out, fmt.Errorf("the line %q", first)
		}
		length, chunked := 0, false
		for {
			field, ok := line()
			if !ok {
				return out, nil
			}
			if field == "" {
				break
			}
			name, value, _ := strings.Cut(field, ":")
			switch strings.ToLower(name) {
			case "content-length":
				_, _ = fmt.Sscanf(strings.TrimSpace(value), "%d", &length)
			case "transfer-encoding":
				chunked = strings.HasPrefix(strings.TrimSpace(value), "chunked")
			}
		}
		for size := 1; chunked && size > 0; {
			field, ok := line()
			if !ok {
				return out, nil
			}
			size = 0
			for _, c := range field {
				if digit := strings.IndexRune("0123456789abcdef", c); digit >= 0 {
					size = size<<4 + digit
				} else if digit := strings.IndexRune("ABCDEF", c); digit >= 0 {
					size = size<<4 + 10 + digit
				}
			}
			if size > len(text) {
				return out, nil
			}
			text = text[size:]
			if _, ok := line(); !ok {
				return out, nil
			}
		}
		if !chunked {
			if length > len(text) {
				return out, nil
			}
			text = text[length:]
		}
		out = append(out, parts[1])
	}
}

// TestResetsAreSeen watches frames that arrive in any parts.
func TestResetsAreSeen(t *testing.T) {
	frame := func(kind, size int, payload string) string {
		return string([]byte{byte(size >> 16), byte(size >> 8), byte(size), byte(kind), 0, 0, 0, 0, 1}) + payload
	}
	reset := frame(3, 4, "\x00\x00\x00\x08")
	data := frame(0, 300, strings.Repeat("\x03", 300))
	text := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, "") + data + reset + data + data[:100]
	e := newEngine(t)
	for seed := range uint64(20) {
		w := e.call("./frames.js", "newWatch", true)
		all, resets := "", 0
		for _, part := range cut(text, seed) {
			numbers := make([]any, len(part))
			for i := range len(part) {
				numbers[i] = int64(part[i])
			}
			event, err := e.vm.New(e.vm.Get("Data"), e.vm.NewArray(numbers...))
			e.must(err)
			for _, passed := range e.events(e.call("./frames.js", "watch", w, event)) {
				e.call("./frames.js", "pass", w)
				if all += passed; w.ToObject(e.vm).Get("cut").ToBoolean() {
					resets++
					if passed != reset {
						t.Errorf("%q is taken for a reset", passed)
					}
				}
			}
		}
		if resets != 1 || !strings.HasPrefix(text, all) || len(text)-len(all) >= 9 {
			t.Errorf("with seed %d there are %d resets in %d of %d bytes", seed, resets, len(all), len(text))
		}
	}
}
