package limit_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/limit"
)

const patience = 10 * time.Second

// serve starts a server and returns its address.
func serve(t *testing.T, bounds limit.Bounds, handler http.HandlerFunc, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := limit.NewServer(handler, bounds, slog.New(slog.DiscardHandler))
	s.HTTP.TLSConfig = config
	t.Cleanup(func() { s.HTTP.Close() })
	go s.Serve(listener)
	return listener.Addr().String()
}

// dial connects from a loopback address and sends data.
func dial(t *testing.T, from, to, send string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, send); err != nil {
		t.Fatal(err)
	}
	return conn
}

// answer returns everything until the server closes the connection.
func answer(t *testing.T, conn net.Conn) string {
	t.Helper()
	content, err := io.ReadAll(conn)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Fatalf("the connection is still open after %s; received %q", patience, content)
	}
	return string(content)
}

// TestUnfinishedRequests has clients stop in the middle of a request.
func TestUnfinishedRequests(t *testing.T) {
	reads := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
	ignores := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") }
	const unfinished = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbeginning"
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		send    string
		want    string
	}{
		"nothing":                           {ignores, "", ""},
		"half a head":                       {ignores, "GET / HTTP/1.1\r\nHost: a\r\n", ""},
		"half a body that is read":          {reads, unfinished, "HTTP/1.1 400 "},
		"half a body that is not":           {ignores, unfinished, "HTTP/1.1 200 "},
		"half a chunked body that is not":   {ignores, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "HTTP/1.1 200 "},
		"a body that is too long":           {reads, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 200000), "HTTP/1.1 400 "},
		"a whole request, and then nothing": {ignores, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, limit.Bounds{Request: time.Second, Idle: time.Second}, tt.handler, nil)
			if got := answer(t, dial(t, "127.0.0.1", address, tt.send)); !strings.HasPrefix(got, tt.want) || tt.want == "" && strings.Contains(got, "200") {
				t.Errorf("the answer is %q, want %q", got, tt.want)
			}
		})
	}
}

// TestHalfHandshakes has TLS clients stop after connecting.
func TestHalfHandshakes(t *testing.T) {
	tlsServer := httptest.NewTLSServer(nil)
	defer tlsServer.Close()
	address := serve(t, limit.Bounds{Request: time.Second}, nil, tlsServer.TLS)
	answer(t, dial(t, "127.0.0.1", address, "\x16\x03\x01"))
}

// TestLongAnswers has responses that take longer than requests may take to arrive.
func TestLongAnswers(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			http.Error(w, r.Context().Err().Error(), http.StatusInternalServerError)
		case <-time.After(time.Second):
			fmt.Fprint(w, "ok")
		}
	}
	certificate := httptest.NewTLSServer(nil)
	defer certificate.Close()
	client := certificate.Client()
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	bounds := limit.Bounds{Request: 200 * time.Millisecond, Answer: -1}
	for _, url := range []string{
		"http://" + serve(t, bounds, slow, nil),
		"https://" + serve(t, bounds, slow, &tls.Config{Certificates: certificate.TLS.Certificates}),
	} {
		response, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(content) != "ok" {
			t.Errorf("%s %s is answered with %q, %v", response.Proto, url, content, err)
		}
		if https := strings.HasPrefix(url, "https:"); https != (response.ProtoMajor == 2) {
			t.Errorf("%s speaks %s", url, response.Proto)
		}
	}
}

// TestConnectionsAreShared has one address open all available connections.
func TestConnectionsAreShared(t *testing.T) {
	address := serve(t, limit.Bounds{Connections: 4, Each: 3, Request: patience}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "ok") }, nil)
	ask := func(from string) string {
		return answer(t, dial(t, from, address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
	}
	var held []net.Conn
	for range 3 {
		held = append(held, dial(t, "127.0.0.2", address, "GET"))
	}
	// One more of the same address is closed.
	answer(t, dial(t, "127.0.0.2", address, ""))
	dial(t, "127.0.0.3", address, "GET")
	if got := ask("127.0.0.4"); !strings.HasSuffix(got, "ok") {
		t.Errorf("another address is answered with %q", got)
	}
	answer(t, held[2])
	for _, conn := range held[:2] {
		_ = conn.SetDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("a connection that may stay open reads %v", err)
		}
	}
}

// TestBodiesArrive sends complete bodies on one connection.
func TestBodiesArrive(t *testing.T) {
	var connections int
	address := serve(t, limit.Bounds{Body: 2000}, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, nil)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		connections++
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for range 3 {
		sent := bytes.Repeat([]byte("x"), 2000)
		response, err := client.Post("http://"+address, "text/plain", bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
	}
	if connections != 1 {
		t.Errorf("%d connections were made, want 1", connections)
	}
}
