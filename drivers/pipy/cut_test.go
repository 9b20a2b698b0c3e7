package pipy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// cutter answers with half of an answer, or reports how the request ended.
type cutter struct{ ends chan error }

func (c cutter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/upload") {
		_, err := io.Copy(io.Discard, r.Body)
		c.ends <- err
		return
	}
	if strings.HasPrefix(r.URL.Path, "/wait") {
		<-r.Context().Done()
		c.ends <- r.Context().Err()
		return
	}
	if r.URL.Path == "/length" {
		w.Header().Set("Content-Length", "1000")
	}
	_, _ = io.WriteString(w, "half")
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// TestCutMessages breaks messages off in both directions, by HTTP/1.1 and HTTP/2, through the
// client's side. What is cut off must end soon, and never as if it were complete.
func TestCutMessages(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	ends := make(chan error, 1)
	one, two := s.peer(t, storeName, cutter{ends}), s.peer(t, storeName, cutter{ends})
	w.service("one", 80, mesh.HTTP, "10.96.0.1", at(one, storeName))
	w.service("two", 80, mesh.HTTP2, "10.96.0.2", at(two, storeName))
	s.apply(t, w.view())
	for _, host := range []string{"10.96.0.1", "10.96.0.2"} {
		transport := &http.Transport{DialContext: s.Dial, Protocols: new(http.Protocols), DisableKeepAlives: true}
		transport.Protocols.SetHTTP1(host == "10.96.0.1")
		transport.Protocols.SetUnencryptedHTTP2(host == "10.96.0.2")
		client := &http.Client{Transport: transport, Timeout: 8 * time.Second}
		for _, path := range []string{"/length", "/chunks"} {
			response, err := client.Get("http://" + host + path)
			if err != nil {
				// The whole answer may be lost.
				continue
			}
			started := time.Now()
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil || time.Since(started) > 5*time.Second {
				t.Errorf("%s%s: half of an answer is %q, %v after %s", host, path, body, err, time.Since(started))
			}
		}
		for _, path := range []string{"/wait", "/upload"} {
			ctx, cancel := context.WithCancel(t.Context())
			reader, writer := io.Pipe()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+host+path, reader)
			if err != nil {
				t.Fatal(err)
			}
			if path == "/wait" {
				request.Body, request.ContentLength = http.NoBody, 0
			}
			go writer.Write([]byte("half"))
			time.AfterFunc(500*time.Millisecond, func() {
				cancel()
				reader.Close()
			})
			if response, err := client.Do(request); err == nil {
				response.Body.Close()
			}
			if host == "10.96.0.1" && path == "/upload" {
				// An HTTP/1.1 request is not sent before it is complete.
				select {
				case err := <-ends:
					if err == nil {
						t.Errorf("%s%s: half of a request is complete", host, path)
					}
				case <-time.After(time.Second):
				}
				continue
			}
			select {
			case err := <-ends:
				if err == nil {
					t.Errorf("%s%s: half of a request is complete", host, path)
				}
			case <-time.After(8 * time.Second):
				t.Errorf("%s%s: the server is not told that its client has gone", host, path)
			}
		}
	}
}

// TestInboundCutMessages is the same for the server's side.
func TestInboundCutMessages(t *testing.T) {
	w := startWorkload(t, inboundView(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: 9300, Protocol: mesh.HTTP, Access: anyone}, {Port: 9301, Protocol: mesh.HTTP2, Access: anyone},
	}}))
	ends := make(chan error, 1)
	for _, port := range []int{9300, 9301} {
		server := &http.Server{Protocols: new(http.Protocols), Handler: cutter{ends}}
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetUnencryptedHTTP2(true)
		go server.Serve(w.listen(t, port))
		t.Cleanup(func() { server.Close() })
		transport := &http.Transport{
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, port) },
			TLSClientConfig: w.as(t, buyer), DisableKeepAlives: true, Protocols: new(http.Protocols),
		}
		transport.Protocols.SetHTTP1(port == 9300)
		transport.Protocols.SetHTTP2(port == 9301)
		client := &http.Client{Transport: transport, Timeout: 8 * time.Second}
		for _, path := range []string{"/length", "/chunks"} {
			response, err := client.Get("https://a" + path)
			if err != nil {
				continue
			}
			started := time.Now()
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil || time.Since(started) > 5*time.Second {
				t.Errorf("%d%s: half of an answer is %q, %v after %s", port, path, body, err, time.Since(started))
			}
		}
		for _, path := range []string{"/wait", "/upload"} {
			ctx, cancel := context.WithCancel(t.Context())
			reader, writer := io.Pipe()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://a"+path, reader)
			if err != nil {
				t.Fatal(err)
			}
			if path == "/wait" {
				request.Body, request.ContentLength = http.NoBody, 0
			}
			go writer.Write([]byte("half"))
			time.AfterFunc(500*time.Millisecond, func() {
				cancel()
				reader.Close()
			})
			if response, err := client.Do(request); err == nil {
				response.Body.Close()
			}
			select {
			case err := <-ends:
				if err == nil {
					t.Errorf("%d%s: half of a request is complete", port, path)
				}
			case <-time.After(8 * time.Second):
				t.Errorf("%d%s: the application is not told that its client has gone", port, path)
			}
		}
	}
}
