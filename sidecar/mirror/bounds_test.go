package mirror_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// pipes is a listener of in-memory connections, whose deadlines use the clock of a synctest
// bubble.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// connect serves the Feed with a server that has no timeouts, and returns a function that
// opens a connection to it.
func connect(t *testing.T, feed *mirror.Feed) func() net.Conn {
	listener := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
	listener.close = sync.OnceFunc(func() { close(listener.closed) })
	server := &http.Server{Handler: feed}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return func() net.Conn {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = near.Close() })
		listener.accepted <- far
		// If the server never answers, the test fails instead of blocking.
		_ = near.SetDeadline(time.Now().Add(time.Hour))
		return near
	}
}

// send writes a raw request.
func send(t *testing.T, conn net.Conn, format string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(conn, format, args...); err != nil {
		t.Fatal(err)
	}
}

// TestStatusThatNeverEnds sends part of a Status: the server closes the connection after 10
// seconds.
func TestStatusThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := connect(t, new(mirror.Feed))()
		began := time.Now()
		send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n{", mirror.StatusType)
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the server does not end the connection: %v", err)
		}
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the server gives up after %s, want 10s", took)
		}
	})
}

// TestChangeThatIsNotRead lets clients read a change slowly: the server sends it for at most
// a minute.
func TestChangeThatIsNotRead(t *testing.T) {
	for pause, whole := range map[time.Duration]bool{59 * time.Second: true, 61 * time.Second: false} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				feed := new(mirror.Feed)
				feed.Set(setOf(t, "a", strings.Repeat("x", 1<<20)))
				conn := connect(t, feed)()
				send(t, conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				time.Sleep(pause)
				got, _ := io.Copy(io.Discard, conn)
				if (got > 1<<20) != whole {
					t.Errorf("after a pause of %s the client gets %d bytes of a change of 1 MiB", pause, got)
				}
			})
		})
	}
}

// TestLongestWait requests a wait that is longer than MaxWait.
func TestLongestWait(t *testing.T) {
	for _, wait := range []string{"301", "100000", "2147483647"} {
		t.Run(wait, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				feed := new(mirror.Feed)
				set := setOf(t, "a", "1")
				feed.Set(set)
				conn := connect(t, feed)()
				began := time.Now()
				send(t, conn, "GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: %q\r\nPrefer: wait=%s\r\n\r\n", mirror.Version(set), wait)
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); answer.StatusCode != http.StatusNotModified || took != 5*time.Minute {
					t.Errorf("the answer is %d after %s, want 304 after 5m0s", answer.StatusCode, took)
				}
			})
		})
	}
}
