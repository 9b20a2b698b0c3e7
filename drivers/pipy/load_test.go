package pipy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// load sends requests from that many clients until it is stopped. The returned function
// stops it and returns the numbers of requests and failures.
func (s *pipyPod) load(t *testing.T, clients int, url string) (stop func() (made, failed int)) {
	var group sync.WaitGroup
	var made, failed atomic.Int64
	done := make(chan struct{})
	for range clients {
		client := s.client()
		client.Transport.(*http.Transport).DisableKeepAlives = false
		group.Go(func() {
			defer client.CloseIdleConnections()
			for {
				select {
				case <-done:
					return
				default:
				}
				made.Add(1)
				response, err := client.Get(url)
				if err != nil {
					if failed.Add(1) == 1 {
						t.Log(err)
					}
					continue
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != 200 && failed.Add(1) == 1 {
					t.Log(response.Status)
				}
			}
		})
	}
	return func() (int, int) {
		close(done)
		group.Wait()
		return int(made.Load()), int(failed.Load())
	}
}

func TestSplitIsShiftedUnderLoad(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	d, one := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName))
	_, two := w.service("store-v2", 80, mesh.HTTP, "10.96.0.2", at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName), at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName))
	s.apply(t, w.view())
	stop := s.load(t, 16, "http://10.96.0.1/")
	endpoints := two.Endpoints
	for i := range 20 {
		d.Routes = []mesh.Route{{Backends: []mesh.WeightedBackend{{Backend: one.Name, Weight: uint32(i % 3)}, {Backend: two.Name, Weight: uint32((i + 1) % 3)}}}}
		two.Endpoints = endpoints[:1+i%2]
		s.apply(t, w.view())
	}
	if made, failed := stop(); failed > 0 {
		t.Errorf("%d of %d requests failed", failed, made)
	}
}

// TestOutboundKeepsNothing checks that the proxy's memory does not grow with the number of
// requests and connections.
func TestOutboundKeepsNothing(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	store := at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName)
	broken := at(s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })), storeName)
	w.service("store", 80, mesh.HTTP, "10.96.0.1", store)
	w.service("grpc", 81, mesh.GRPC, "10.96.0.1", store)
	d, _ := w.service("broken", 82, mesh.HTTP, "10.96.0.1", broken)
	d.Routes[0].Retry = &mesh.Retry{On: []string{"5xx"}, Attempts: 1, Backoff: time.Microsecond}
	d.Routes[0].Timeout = time.Minute
	w.service("nobody", 83, mesh.HTTP, "10.96.0.1", at(netip.MustParseAddrPort("198.18.0.1:9"), storeName))
	w.service("echo", 84, mesh.TCP, "10.96.0.1", at(s.listenTLS(t, storeName, greet), storeName))
	s.apply(t, w.view())
	asks := func(url string, keep bool, want int) func() func() error {
		return func() func() error {
			client := s.client()
			client.Transport.(*http.Transport).DisableKeepAlives = !keep
			return func() error {
				response, err := client.Get(url)
				if err != nil {
					return err
				}
				defer response.Body.Close()
				io.Copy(io.Discard, response.Body)
				if response.StatusCode != want {
					return fmt.Errorf("%s gives %s", url, response.Status)
				}
				return nil
			}
		}
	}
	for _, tt := range []struct {
		name string
		n    int
		one  func() func() error
	}{
		{"requests on kept connections", 4000, asks("http://10.96.0.1:80/", true, 200)},
		{"requests on new connections", 1000, asks("http://10.96.0.1:80/", false, 200)},
		{"requests by HTTP/2 to the server", 2000, asks("http://10.96.0.1:81/", true, 200)},
		{"requests that are tried again", 4000, asks("http://10.96.0.1:82/", true, 503)},
		{"requests to nobody", 4000, asks("http://10.96.0.1:83/", true, 503)},
		{"connections", 1000, func() func() error {
			return func() error {
				conn, err := s.Dial(context.Background(), "tcp", "10.96.0.1:84")
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = bufio.NewReader(conn).ReadString('\n')
				return err
			}
		}},
		{"connections that are refused", 1000, func() func() error {
			return func() error {
				conn, err := s.Dial(context.Background(), "tcp", "10.96.0.9:84")
				if err == nil {
					conn.Read(make([]byte, 1))
					conn.Close()
				}
				return nil
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const clients = 8
			run := func(clients, n int) {
				var group sync.WaitGroup
				for range clients {
					one := tt.one()
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
			// Each thread keeps pools for as many connections as it has ever had at a time. The
			// kernel spreads connections unevenly over the threads, so the warm-up needs more
			// clients for every thread to have had all that it can get in the measurement.
			run(8*clients, threads*tt.n/2)
			before := s.resident(t)
			run(clients, tt.n)
			after := s.resident(t)
			t.Logf("after %d: %d KiB, before %d KiB, %d bytes each", tt.n, after>>10, before>>10, (after-before)/tt.n)
			if (after-before)/tt.n > 500 {
				t.Errorf("each leaks %d bytes", (after-before)/tt.n)
			}
		})
	}
}
