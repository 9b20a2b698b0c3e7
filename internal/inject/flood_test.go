package inject_test

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
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// flooded is a webhook with its production server, and httptest's certificates.
type flooded struct {
	address string
	client  *tls.Config
	review  []byte
}

func newFlooded(t *testing.T) *flooded {
	t.Helper()
	certificate := httptest.NewTLSServer(nil)
	defer certificate.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := limit.NewServer(ordinary().door(t).mux, inject.Bounds, slog.New(slog.DiscardHandler))
	server.HTTP.TLSConfig = &tls.Config{Certificates: certificate.TLS.Certificates}
	t.Cleanup(func() { server.HTTP.Close() })
	go server.Serve(listener)
	return &flooded{
		address: listener.Addr().String(), client: certificate.Client().Transport.(*http.Transport).TLSClientConfig,
		review: encode(t, creation(smallPod)),
	}
}

// dial connects from an address of the loopback's.
func (f *flooded) dial(ctx context.Context, from string, protocols ...string) (*tls.Conn, error) {
	config := f.client.Clone()
	config.ServerName, config.NextProtos = "example.com", protocols
	d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: config}
	conn, err := d.DialContext(ctx, "tcp", f.address)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// asking sends reviews like an API server until the returned function is called, which
// fails the test if one was not answered.
func (f *flooded) asking(t *testing.T) (stop func()) {
	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return f.dial(ctx, "127.0.0.1", "h2", "http/1.1")
		},
	}
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	var failures []string
	asked, stopped := 0, make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer transport.CloseIdleConnections()
		for {
			asked++
			response, err := client.Post("https://"+f.address+inject.InjectPath, "application/json", bytes.NewReader(f.review))
			if err == nil {
				content, _ := io.ReadAll(response.Body)
				response.Body.Close()
				if response.StatusCode != http.StatusOK || !bytes.Contains(content, []byte(`"patch":`)) {
					err = fmt.Errorf("%s %.200s", response.Status, content)
				}
			}
			if err != nil {
				failures = append(failures, err.Error())
			}
			select {
			case <-stopped:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	return func() {
		t.Helper()
		close(stopped)
		group.Wait()
		t.Logf("%d reviews were asked for", asked)
		if len(failures) > 0 {
			t.Errorf("%d of %d reviews failed, the first: %s", len(failures), asked, failures[0])
		}
	}
}

// attackers are addresses of the loopback's.
var attackers = []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}

// heap returns the size of the live heap, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestUnfinishedReviews has unauthenticated clients send the largest bodies without their
// ends. Other reviews must be answered, memory must stay below the limit in
// docs/security.md, and the clients must be cut off.
func TestUnfinishedReviews(t *testing.T) {
	f := newFlooded(t)
	stop := f.asking(t)
	defer func() { stop() }()
	before := heap()
	const each, size = 6, 8<<20 - 1
	begin := time.Now()
	chunk := bytes.Repeat([]byte(" "), 64<<10)
	var conns []net.Conn
	for i := range each * len(attackers) {
		conn, err := f.dial(t.Context(), attackers[i%len(attackers)])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", inject.InjectPath, size)
		for sent := 0; sent+len(chunk) < size; sent += len(chunk) {
			if _, err := conn.Write(chunk); err != nil {
				break
			}
		}
	}
	if grown := int64(heap()) - int64(before); grown > 48<<20 {
		t.Errorf("%d unfinished reviews keep %d MiB, want at most 48", len(conns), grown>>20)
	}
	for _, conn := range conns {
		_, err := io.Copy(io.Discard, conn)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Fatalf("an unfinished review is open after %s", time.Since(begin).Round(time.Second))
		}
	}
}

// TestTooLongReview sends a review that is one byte too long.
func TestTooLongReview(t *testing.T) {
	f := newFlooded(t)
	conn, err := f.dial(t.Context(), attackers[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", inject.InjectPath, 8<<20+1, strings.Repeat(" ", 8<<20+1))
	response, err := io.ReadAll(io.LimitReader(conn, 12))
	if err != nil || string(response) != "HTTP/1.1 413" {
		t.Errorf("the answer is %q, %v", response, err)
	}
}
