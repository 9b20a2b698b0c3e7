package haproxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// cutter breaks its answers off, and reports how requests end.
type cutter struct{ ends chan error }

func (c cutter) answer(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case strings.HasPrefix(r.URL.Path, "/upload"):
		_, err := io.Copy(io.Discard, r.Body)
		select {
		case c.ends <- err:
		default:
		}
	case r.URL.Path == "/length":
		w.Header().Set("Content-Length", "1000")
		fallthrough
	case r.URL.Path == "/chunks":
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	default:
		return false
	}
	return true
}

// cutMessages breaks answers and uploads off, with and without a length, and expects that the
// receiver notices.
func cutMessages(t *testing.T, what string, c *http.Client, scheme string, ends <-chan error) {
	t.Helper()
	if response, err := c.Get(scheme + "://books.example.com/"); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: a request gets %v, %v", what, response, err)
	}
	for _, path := range []string{"/length", "/chunks"} {
		response, err := c.Get(scheme + "://books.example.com" + path)
		if err != nil {
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK {
			t.Errorf("%s: half of the answer to %s looks complete: %q", what, path, body)
		}
	}
	for _, length := range []int64{1000, -1} {
		ctx, cancel := context.WithCancel(t.Context())
		reader, writer := io.Pipe()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://books.example.com/upload", reader)
		if err != nil {
			t.Fatal(err)
		}
		request.ContentLength = length
		go func() {
			_, _ = io.WriteString(writer, "half")
			time.Sleep(300 * time.Millisecond)
			cancel()
		}()
		if response, err := c.Do(request); err == nil {
			response.Body.Close()
		}
		reader.Close()
		cancel()
		select {
		case err := <-ends:
			if err == nil {
				t.Errorf("%s: half of an upload with the length %d looks complete", what, length)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the server is not told that an upload with the length %d was broken off", what, length)
		}
	}
}

// TestCutMessages breaks messages of HTTP/2 off at a client's and at a server's HAProxy.
func TestCutMessages(t *testing.T) {
	if !isAtLeast(t, 3, 0) {
		t.Skip("SKIPPED: HAProxy 2.6 ends messages of HTTP/2 that are broken off as if they were complete; 'make haproxy-versions' tries later ones")
	}
	a := newApp(t)
	ends := make(chan error, 1)
	a.answer = cutter{ends}.answer
	s := newFixture(store)
	s.inbound.Ports = []mesh.InboundPort{{Port: a.other, Protocol: mesh.HTTP2, Access: anyone}}
	server, ca := runInbound(t, s)
	p := newPeer(t, ca, store)
	p.answer = a.answer
	f := newFixture(buyer)
	f.service(servicePort("grpc", 80), mesh.HTTP2, "10.96.0.11", backend(servicePort("grpc", 80), mesh.HTTP2, store, p.address))
	r := runOutbound(t, ca, f)
	cutMessages(t, "client", client(r.outbound, "10.96.0.11:80", nil, true), "http", ends)
	cutMessages(t, "server", client(server.inbound, local(a.other), ca.as(buyer, store, "h2"), true), "https", ends)
}
