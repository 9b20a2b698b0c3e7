package pipy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestInboundLoad sends requests of many clients at a time, while documents change and
// other clients disconnect. No other request may fail, and no connection may be left.
func TestInboundLoad(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	tail := strings.Repeat("x", 1000)
	app := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/slow"):
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Second):
			}
		default:
			// Read everything first: a Go server that starts an HTTP/1.1 answer discards the
			// rest of the body.
			text, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprintf(out, "%s%s", text, tail)
		}
	})}
	app.Protocols.SetHTTP1(true)
	app.Protocols.SetUnencryptedHTTP2(true)
	go app.Serve(w.listen(t, 9200))
	t.Cleanup(func() { app.Close() })
	in := strictInbound()
	in.Ports = append(in.Ports, mesh.InboundPort{Port: 9200, Protocol: mesh.HTTP, Access: anyone})
	w.apply(t, inboundView(in))

	var group sync.WaitGroup
	var made, failed, aborted atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	for i := range 16 {
		config := w.as(t, buyer)
		transport := &http.Transport{
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, 9200) },
			TLSClientConfig: config, Protocols: new(http.Protocols), DisableKeepAlives: i%4 == 3,
		}
		if i%2 == 0 {
			config.NextProtos = []string{"h2"}
			transport.Protocols.SetHTTP2(true)
		} else {
			transport.Protocols.SetHTTP1(true)
		}
		client := &http.Client{Transport: transport}
		group.Go(func() {
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				if n%50 == 49 {
					gone, stop := context.WithTimeout(t.Context(), time.Duration(n%20)*time.Millisecond)
					request, _ := http.NewRequestWithContext(gone, http.MethodGet, "https://load/slow", nil)
					if response, err := client.Do(request); err == nil {
						response.Body.Close()
					}
					stop()
					aborted.Add(1)
					continue
				}
				made.Add(1)
				text := strings.Repeat("y", n*61%3000)
				response, err := client.Post("https://load/x", "text/plain", strings.NewReader(text))
				if err != nil {
					failed.Add(1)
					t.Log(err)
					continue
				}
				body, err := io.ReadAll(response.Body)
				response.Body.Close()
				if err != nil || response.StatusCode != 200 || string(body) != text+tail {
					failed.Add(1)
					t.Logf("%s of %d bytes for %d sent: %v", response.Status, len(body), len(text), err)
				}
			}
		})
	}
	// The proxy must not wait for clients that stop in the middle.
	for range 50 {
		conn, err := w.call(t.Context(), 9200)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write([]byte{0x16, 3, 1})
	}
	for ctx.Err() == nil {
		in.Ports[0].Access = rules(rule("x", anyRequest, buyer), rule(fmt.Sprint(time.Now()), anyRequest, ops))
		w.apply(t, inboundView(&mesh.Inbound{TLS: in.TLS, Ports: in.Ports, Others: in.Others}))
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	group.Wait()
	t.Logf("%d requests, %d aborted", made.Load(), aborted.Load())
	if made.Load() == 0 || failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), made.Load())
	}
	eventually(t, func() error {
		_, body := w.metrics(t, "/stats/prometheus")
		if want := `envoy_listener_downstream_cx_active{envoy_listener_address="inbound",envoy_port="9200"} 0` + "\n"; !strings.Contains(body, want) {
			return fmt.Errorf("connections remain: %.3000s", body)
		}
		return nil
	})
	conn, err := w.call(t.Context(), 9200)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := tls.Client(conn, w.as(t, buyer)).Handshake(); err != nil {
		t.Error(err)
	}
}
