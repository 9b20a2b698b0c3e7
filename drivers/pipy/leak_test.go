package pipy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// resident returns the proxy's resident memory in bytes.
func (s *pipyPod) resident(t *testing.T) int {
	t.Helper()
	pids, err := s.Container("pipy").PIDs("pipy")
	if err != nil || len(pids) != 1 {
		t.Fatal(pids, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("there is no VmRSS in %s", status)
	return 0
}

// TestInboundKeepsNothing checks that the proxy's memory does not grow with the number of
// requests and connections.
func TestInboundKeepsNothing(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound(), func(_ *mesh.Proxy, s *mesh.Settings) {
		s.Tracing = &mesh.Tracing{Protocol: "zipkin", Host: "198.18.0.1", Port: 9411, Sampled: 1000}
	}))
	configs := map[string]*tls.Config{"http/1.1": w.as(t, buyer, "http/1.1"), "h2": w.as(t, buyer, "h2"), "": w.as(t, buyer)}
	client := func(alpn string, port int, keep bool) *http.Client {
		transport := &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return w.lab.Node().Dial(ctx, "tcp", fmt.Sprintf("%s:%d", storeAddress, port))
			},
			TLSClientConfig: configs[alpn].Clone(), Protocols: new(http.Protocols), DisableKeepAlives: !keep,
		}
		transport.Protocols.SetHTTP1(alpn != "h2")
		transport.Protocols.SetHTTP2(alpn == "h2")
		return &http.Client{Transport: transport, Timeout: 20 * time.Second}
	}
	asks := func(alpn string, port int, keep bool, path string, want int) func(int) func() error {
		return func(int) func() error {
			c := client(alpn, port, keep)
			return func() error {
				response, err := c.Get("https://books" + path)
				if err != nil {
					return err
				}
				defer response.Body.Close()
				io.Copy(io.Discard, response.Body)
				if response.StatusCode != want {
					return fmt.Errorf("%s gives %s", path, response.Status)
				}
				return nil
			}
		}
	}
	for _, tt := range []struct {
		name string
		n    int
		one  func(client int) func() error
	}{
		{"requests on kept connections", 4000, asks("http/1.1", httpPort, true, "/books/1?x=y", 200)},
		{"requests by HTTP/2", 4000, asks("h2", httpPort, true, "/books/1", 200)},
		{"requests on new connections", 1000, asks("http/1.1", httpPort, false, "/books/1", 200)},
		{"requests that are denied", 2000, asks("http/1.1", httpPort, true, "/admin", 403)},
		{"requests to nobody", 1000, asks("http/1.1", nobodyPort, true, "/", 503)},
		{"connections", 1000, func(int) func() error {
			return func() error {
				raw, err := w.call(context.Background(), helloPort)
				if err != nil {
					return err
				}
				conn := tls.Client(raw, configs[""])
				defer conn.Close()
				_, err = bufio.NewReader(conn).ReadString('\n')
				return err
			}
		}},
		{"connections that are refused", 1000, func(int) func() error {
			return func() error {
				conn, err := w.call(context.Background(), helloPort)
				if err != nil {
					return err
				}
				defer conn.Close()
				fmt.Fprint(conn, "x")
				if n, _ := conn.Read(make([]byte, 1)); n > 0 {
					return fmt.Errorf("it sends data")
				}
				return nil
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const clients, most = 8, 2 << 20
			run := func(n int) {
				var group sync.WaitGroup
				for i := range clients {
					one := tt.one(i)
					group.Go(func() {
						for range n / clients {
							if err := one(); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				group.Wait()
			}
			// The first requests fill pools and caches, which are kept.
			run(tt.n / 4)
			before := w.resident(t)
			started := time.Now()
			run(tt.n)
			after := w.resident(t)
			t.Logf("%d took %s: %d KiB, before %d KiB, %d bytes each", tt.n, time.Since(started).Round(time.Millisecond), after>>10, before>>10, (after-before)/tt.n)
			if grown := after - before; grown > most {
				t.Errorf("%d of them leak %d bytes", tt.n, grown)
			}
		})
	}
}
