package pipy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// reader is an application that reads requests according to the specification, one
// connection after the other, and records them.
type reader struct {
	mu       sync.Mutex
	requests []*http.Request
	wrong    []error
}

// record runs a reader on the port.
func (w *workload) record(t *testing.T, port int) *reader {
	t.Helper()
	r := new(reader)
	sockets := w.listen(t, port)
	go func() {
		for {
			conn, err := sockets.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(20 * time.Second))
				for in := bufio.NewReader(conn); ; {
					request, err := http.ReadRequest(in)
					if err == nil {
						_, err = io.Copy(io.Discard, request.Body)
					}
					r.mu.Lock()
					if err == nil {
						r.requests = append(r.requests, request)
					} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
						r.wrong = append(r.wrong, err)
					}
					r.mu.Unlock()
					if err != nil {
						return
					}
					fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
		}
	}()
	return r
}

// take returns the requests since the last call, and an error if the rules do not allow one
// of them.
func (r *reader) take() (paths []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range r.requests {
		if request.Method == "PRI" {
			// The preface of HTTP/2, which this reader does not support.
			r.wrong = nil
			continue
		}
		paths = append(paths, request.Method+" "+request.RequestURI)
		if !strings.HasPrefix(request.RequestURI, "/public") {
			err = fmt.Errorf("it received a request for %s", request.RequestURI)
		}
		if got := request.Header.Values("X-Forwarded-Client-Cert"); len(got) != 1 || !strings.HasSuffix(got[0], ";URI="+buyer.String()) {
			err = fmt.Errorf("it received the client identity %q", got)
		}
		for name := range request.Header {
			if strings.Contains(name, " ") {
				err = fmt.Errorf("it received a header %q", name)
			}
		}
	}
	err = errors.Join(err, errors.Join(r.wrong...))
	r.requests, r.wrong = nil, nil
	return paths, err
}

// publicInbound allows everyone to request only /public.
func publicInbound() *mesh.Inbound {
	return &mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{
		Port: 9200, Protocol: mesh.HTTP, Access: rules(rule("public", []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/public"}}}, buyer)),
	}}}
}

// TestNothingIsSmuggled sends bytes that two readers could parse as different requests. The
// application must never receive "/secret", nor a header with a client's identity.
func TestNothingIsSmuggled(t *testing.T) {
	w := startWorkload(t, inboundView(publicInbound()))
	app := w.record(t, 9200)
	for name, tt := range map[string]struct {
		text string
		want []int
	}{
		"an unknown encoding":        {"POST /public HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0 /public HTTP/1.1\r\nHost: a\r\nContent-Length: 44\r\n\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n", []int{501}},
		"two lengths":                {"POST /public HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\nX: yyyy\r\n\r\n", nil},
		"both lengths":               {"POST /public HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{400}},
		"a space after a name":       {"GET /public HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert : URI=forged/secret\r\n\r\n", []int{400}},
		"a bare line feed":           {"GET /public HTTP/1.1\nHost: a\nX: /secret\n\n", nil},
		"a bare carriage return":     {"GET /public HTTP/1.1\r\nHost: a\r\nX: b\rX-Forwarded-Client-Cert: /secret\r\n\r\n", []int{400}},
		"a folded line":              {"GET /public HTTP/1.1\r\nHost: a\r\nX: b\r\n X-Forwarded-Client-Cert: /secret\r\n\r\n", []int{400}},
		"an absolute target":         {"GET http://other/secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{403}},
		"a fragment":                 {"GET /public#/../secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{400}},
		"dots":                       {"GET /public/../secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{403}},
		"an upgrade":                 {"GET /public HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nX-Forwarded-Client-Cert: /secret\r\n\r\n", nil},
		"CONNECT":                    {"CONNECT a/secret:80 HTTP/1.1\r\nHost: a\r\n\r\nGET /secret HTTP/1.1\r\n\r\n", []int{400}},
		"a method of its own":        {"PURGE /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{403}},
		"a WebSocket that is denied": {"GET /secret HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", []int{403}},
		"two hosts":                  {"GET /public HTTP/1.1\r\nHost: a/secret\r\nHost: b/secret\r\n\r\n", []int{400}},
		"no host":                    {"GET /secret HTTP/1.1\r\n\r\n", []int{400}},
		"another version":            {"GET /secret HTTP/3.0\r\nHost: a\r\n\r\n", nil},
		"a chunk with extensions":    {"POST /public HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a=\r\nx\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{200, 403}},
		"a HEAD with a body":         {"HEAD /public HTTP/1.1\r\nHost: a\r\nContent-Length: 34\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{400}},
		"a HEAD with chunks":         {"HEAD /public HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{400}},
		"a length that is no number": {"POST /public HTTP/1.1\r\nHost: a\r\nContent-Length: 0x\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{400}},
		"a length of 33 bits":        {"POST /public HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{413}},
		"a later request":            {"GET /public HTTP/1.1\r\nHost: a\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n", []int{200, 403}},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := w.call(t.Context(), 9200)
			if err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(raw, w.as(t, buyer, "http/1.1"))
			defer conn.Close()
			fmt.Fprint(conn, tt.text)
			// A peer that half-closes the connection has gone.
			time.AfterFunc(500*time.Millisecond, func() { raw.(*net.TCPConn).CloseWrite() })
			var got []int
			in := bufio.NewReader(conn)
			for {
				answer, err := http.ReadResponse(in, nil)
				if err != nil {
					break
				}
				io.Copy(io.Discard, answer.Body)
				got = append(got, answer.StatusCode)
			}
			paths, err := app.take()
			if err != nil {
				t.Errorf("the application: %v", err)
			}
			t.Logf("the application received %q, the answers are %v", paths, got)
			if tt.want != nil && !slices.Equal(got, tt.want) {
				t.Errorf("the answers are %v, want %v", got, tt.want)
			}
		})
	}
}

// TestNothingIsSmuggledByHTTP2 sends fields that, written as HTTP/1.1, would start another
// request.
func TestNothingIsSmuggledByHTTP2(t *testing.T) {
	w := startWorkload(t, inboundView(publicInbound()))
	app := w.record(t, 9200)
	const more = " HTTP/1.1\r\nHost: a\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n"
	field := func(name, value string) [2]string { return [2]string{name, value} }
	for name, fields := range map[string][][2]string{
		"method":            {field(":method", "GET /public"+more), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a")},
		"path":              {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"+more), field(":authority", "a")},
		"authority":         {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a\r\n\r\nGET /secret HTTP/1.1")},
		"value":             {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("x", "y\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n")},
		"name":              {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("x: y\r\n\r\nGET /secret HTTP/1.1\r\nz", "y")},
		"a line feed":       {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("x", "y\nx-forwarded-client-cert: /secret")},
		"another host":      {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("host", "b/secret")},
		"extended CONNECT":  {field(":method", "CONNECT"), field(":scheme", "https"), field(":path", "/secret"), field(":authority", "a")},
		"claimed identity":  {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("x-forwarded-client-cert", "URI=/secret")},
		"an encoding":       {field(":method", "POST"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("transfer-encoding", "chunked"), field("x", "/secret")},
		"the wrong length":  {field(":method", "POST"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("content-length", "0")},
		"a scheme with it":  {field(":method", "GET"), field(":scheme", "https://a/secret"), field(":path", "/public"), field(":authority", "a")},
		"cookies with CRLF": {field(":method", "GET"), field(":scheme", "https"), field(":path", "/public"), field(":authority", "a"), field("cookie", "a=b"), field("cookie", "c\r\n\r\nGET /secret HTTP/1.1\r\n\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := w.call(t.Context(), 9200)
			if err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(raw, w.as(t, buyer, "h2"))
			defer conn.Close()
			status := askFrames(conn, fields, name == "the wrong length")
			paths, err := app.take()
			if name == "another host" || name == "claimed identity" || name == "the wrong length" {
				return
			}
			if len(paths) > 0 || status != "400" && status != "403" && status != "reset" {
				t.Errorf("the application received %q (%v), the answer is %s", paths, err, status)
			}
		})
	}
}

// askFrames sends an HTTP/2 request with arbitrary fields, optionally with a body, and
// returns the status of the answer, or "reset" if there is none.
func askFrames(conn io.ReadWriter, fields [][2]string, body bool) string {
	const data, headers, settings = 0, 1, 4
	const endStream, endHeaders = 1, 4
	text := func(s string) []byte {
		// An integer with a seven-bit prefix (RFC 7541, 5.1), without Huffman coding.
		if len(s) < 127 {
			return append([]byte{byte(len(s))}, s...)
		}
		return append(append([]byte{127}, binary.AppendUvarint(nil, uint64(len(s)-127))...), s...)
	}
	var block []byte
	for _, f := range fields {
		block = slices.Concat(block, []byte{0}, text(f[0]), text(f[1]))
	}
	var out bytes.Buffer
	frame := func(kind, flags, stream byte, payload []byte) {
		out.Write([]byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, stream})
		out.Write(payload)
	}
	out.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame(settings, 0, 0, nil)
	if body {
		frame(headers, endHeaders, 1, block)
		frame(data, endStream, 1, []byte("GET /secret HTTP/1.1\r\nHost: a\r\n\r\n"))
	} else {
		frame(headers, endHeaders|endStream, 1, block)
	}
	conn.Write(out.Bytes())
	for in, head := bufio.NewReader(conn), make([]byte, 9); ; {
		if _, err := io.ReadFull(in, head); err != nil {
			return "reset"
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(in, payload); err != nil {
			return "reset"
		}
		switch {
		case head[3] == 3:
			return "reset"
		case head[3] == headers && payload[0]&0x80 != 0:
			// An entry of the static table (RFC 7541, appendix A).
			return map[byte]string{8: "200", 9: "204", 10: "206", 11: "304", 12: "400", 13: "404", 14: "500"}[payload[0]&0x7f]
		case head[3] == headers:
			// Pipy writes ":status" by its index, and the value as it is.
			return string(payload[2 : 2+int(payload[1])])
		}
	}
}

// TestConnectionsAreApart lets clients send data after a request that is never upgraded,
// and disconnect. Pipy reuses its pipelines, and the unread data must not become a request
// of the next client.
func TestConnectionsAreApart(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	for i := range 20 {
		raw, err := w.call(t.Context(), httpPort)
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, w.as(t, buyer))
		fmt.Fprint(conn, "GET /admin HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /books/stale HTTP/1.1\r\nHost: a\r\n\r\n")
		if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || response.StatusCode != http.StatusForbidden {
			t.Fatal(response, err)
		}
		conn.Close()
		if response, got, err := w.ask(httpPort, w.as(t, buyer), "/books/fresh"); err != nil || response.StatusCode != 200 || got.Path != "/books/fresh" {
			t.Fatalf("after %d others a client gets %v, %+v, %v", i+1, response, got, err)
		}
		// A client without authorization is refused, whatever another one has requested.
		if response, _, err := w.ask(httpPort, w.as(t, ops), "/books/fresh"); err != nil || response.StatusCode != http.StatusForbidden {
			t.Fatalf("after %d others a client without authorization gets %v, %v", i+1, response, err)
		}
	}
}
