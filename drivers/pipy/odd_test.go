package pipy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestHalfClosedTCP has clients send and half-close before the handshake with the peer is over.
func TestHalfClosedTCP(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	count := func(conn net.Conn) {
		n, _ := io.Copy(io.Discard, conn)
		fmt.Fprintf(conn, "%d bytes", n)
	}
	w.service("count", 7, mesh.TCP, "10.96.0.1", at(s.listenTLS(t, storeName, count), storeName))
	s.apply(t, w.view())
	for i := range 10 {
		conn, err := s.Dial(t.Context(), "tcp", "10.96.0.1:7")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, strings.Repeat("a", 1+i*1000))
		if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
			t.Fatal("the connection can't be half-closed")
		}
		got, err := io.ReadAll(conn)
		if want := fmt.Sprintf("%d bytes", 1+i*1000); string(got) != want {
			t.Errorf("connection %d: the server got %q, %v, want %q", i, got, err, want)
		}
		conn.Close()
	}
}

// TestOddRequests sends what Pipy alone would lose: methods of which it does not know, bodies
// that the client keeps until it is asked, long headers, and lengths of answers.
func TestOddRequests(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	store := s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Add("Vary", "a")
		w.Header().Add("Vary", "b")
		w.Header().Set("X-Outrigger-Served", "forged")
		text := fmt.Sprintf("%s %d %q", r.Method, len(body), r.Header.Values("X-Two"))
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = io.WriteString(w, text)
	}))
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(store, storeName))
	s.apply(t, w.view())
	for _, test := range []struct {
		name, first, second string
		status              int
		body                string
	}{
		{"a method", "PROPFIND / HTTP/1.1\r\nHost: a\r\nX-Two: a\r\nx-two: b\r\n\r\n", "", 200, `PROPFIND 0 ["a, b"]`},
		{"a body on request", "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", "hello", 200, `PUT 5 []`},
		{"chunks with extensions and trailers", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n", "", 200, `POST 5 []`},
		{"a long header", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 17000) + "\r\n\r\n", "", 431, "a header is too long"},
		{"a head without a body", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "", 200, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := s.Dial(t.Context(), "tcp", "10.96.0.1:80")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(8 * time.Second))
			_, _ = io.WriteString(conn, test.first)
			method, _, _ := strings.Cut(test.first, " ")
			asked := &http.Request{Method: method}
			in := bufio.NewReader(conn)
			answer, err := http.ReadResponse(in, asked)
			if err == nil && test.second != "" {
				if answer.StatusCode != http.StatusContinue {
					t.Errorf("the first status is %d, want 100", answer.StatusCode)
				}
				_, _ = io.WriteString(conn, test.second)
				answer, err = http.ReadResponse(in, asked)
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != test.status || string(body) != test.body {
				t.Errorf("the answer is %d %q, %v, want %d %q", answer.StatusCode, body, err, test.status, test.body)
			}
			if answer.StatusCode == 200 && (answer.ContentLength < 1 || answer.Header.Get("Vary") != "a, b" || answer.Header.Get("X-Outrigger-Served") != "") {
				t.Errorf("the answer has length %d and headers %v", answer.ContentLength, answer.Header)
			}
		})
	}
}
