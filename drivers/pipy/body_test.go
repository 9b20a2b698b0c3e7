package pipy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// pieces reads a content in parts of random length. It pauses before the first ones, so
// that these get their own TCP segments.
type pieces struct {
	content []byte
	pauses  int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.content) == 0 {
		return 0, io.EOF
	}
	if p.pauses > 0 {
		p.pauses--
		time.Sleep(time.Millisecond)
	}
	n := copy(to, p.content[:1+rand.IntN(min(len(p.content), 20_000))])
	p.content = p.content[n:]
	return n, nil
}

// sendBack reads the complete body and returns it in pieces.
func sendBack(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	parts := &pieces{content: content}
	buffer := make([]byte, 32<<10)
	for n, err := parts.Read(buffer); err == nil; n, err = parts.Read(buffer) {
		w.Write(buffer[:n])
		http.NewResponseController(w).Flush()
	}
}

// wantBodies sends many kinds of bodies concurrently, and checks that they come back
// unchanged.
func wantBodies(t *testing.T, url string, transports []*http.Transport) {
	t.Helper()
	var group sync.WaitGroup
	var made, size atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for i, transport := range transports {
		client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
		group.Go(func() {
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				content := make([]byte, []int{0, 1, 700, 5_000, 70_000, 400_000}[n%6]*(1+rand.IntN(100))/100)
				for j := range content {
					content[j] = byte(i*31 + n*7 + j*13 + j>>8)
				}
				request, _ := http.NewRequest(http.MethodPost, url, &pieces{content, n % 4})
				if n%3 > 0 {
					request.ContentLength = int64(len(content))
				}
				if request.ContentLength == 0 && n%3 > 0 {
					request.Body = http.NoBody
				}
				response, err := client.Do(request)
				if err != nil {
					t.Errorf("request %d of client %d: %v", n, i, err)
					return
				}
				back, err := io.ReadAll(response.Body)
				response.Body.Close()
				if err != nil || response.StatusCode != 200 || !bytes.Equal(back, content) {
					t.Errorf("request %d of client %d gets %s with %d bytes, %v; it sent %d", n, i, response.Status, len(back), err, len(content))
					return
				}
				made.Add(1)
				size.Add(int64(len(content)))
			}
		})
	}
	group.Wait()
	t.Logf("%d requests with %d KiB", made.Load(), size.Load()>>10)
}

// TestBodiesOutbound checks that bodies arrive unchanged, whichever threads have the
// connections and however the bodies are split.
func TestBodiesOutbound(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(sendBack)), storeName), at(s.peer(t, storeName, http.HandlerFunc(sendBack)), storeName))
	s.apply(t, w.view())
	var transports []*http.Transport
	for i := range 12 {
		transports = append(transports, &http.Transport{DialContext: s.Dial, DisableKeepAlives: i%4 == 3})
	}
	wantBodies(t, "http://10.96.0.1/", transports)
}

// TestBodiesInbound does the same for calls to the application, by HTTP/1.1 and HTTP/2.
func TestBodiesInbound(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	app := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(sendBack)}
	app.Protocols.SetHTTP1(true)
	app.Protocols.SetUnencryptedHTTP2(true)
	go app.Serve(w.listen(t, 9200))
	t.Cleanup(func() { app.Close() })
	in := strictInbound()
	in.Ports = append(in.Ports, mesh.InboundPort{Port: 9200, Protocol: mesh.HTTP, Access: anyone})
	w.apply(t, inboundView(in))
	for _, protocol := range []string{"http/1.1", "h2"} {
		t.Run(protocol, func(t *testing.T) {
			var transports []*http.Transport
			for i := range 12 {
				transport := &http.Transport{
					DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, 9200) },
					TLSClientConfig: w.as(t, buyer, protocol), Protocols: new(http.Protocols), DisableKeepAlives: i%4 == 3,
				}
				transport.Protocols.SetHTTP1(protocol != "h2")
				transport.Protocols.SetHTTP2(protocol == "h2")
				transports = append(transports, transport)
			}
			wantBodies(t, fmt.Sprintf("https://load/%s", protocol), transports)
		})
	}
}
