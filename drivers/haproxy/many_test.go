package haproxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestManyConnectionsAtOnce opens many connections through a client's and a server's HAProxy at
// once: for requests that are answered at once, for requests that the application answers only
// when it has all of them, and for TCP. None may fail because their handshakes take long, and
// none may wait for the end of another one. HAPROXY_CONNECTIONS sets their number, with which
// the test can take minutes.
func TestManyConnectionsAtOnce(t *testing.T) {
	// More than begin at once.
	count := 300
	if n, err := strconv.Atoi(os.Getenv("HAPROXY_CONNECTIONS")); err == nil {
		count = n
	}
	ask := func(path string) func(*running) error {
		return func(r *running) error {
			conn, err := dial(r.outbound, storeAddress)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
			fmt.Fprint(conn, "GET "+path+" HTTP/1.1\r\nHost: books.example.com\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return err
			}
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("the answer is %s", response.Status)
			}
			return nil
		}
	}
	greeted := new(sync.WaitGroup)
	greeted.Add(count)
	greet := func(r *running) error {
		conn, err := dial(r.outbound, "10.96.0.10:81")
		if err == nil {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
			_, err = bufio.NewReader(conn).ReadString('\n')
		}
		// All are open until the last one is.
		greeted.Done()
		greeted.Wait()
		return err
	}
	for _, kind := range []struct {
		name string
		try  func(*running) error
	}{{"requests", ask("/")}, {"requests that are answered later", ask("/held")}, {"TCP", greet}} {
		t.Run(kind.name, func(t *testing.T) {
			r := runHolding(t, count)
			tryAtOnce(t, count, func() error { return kind.try(r) })
		})
	}
}

// runHolding runs two proxies with a service for HTTP, whose application answers requests for
// /held when it has as many of them, and one for TCP, on the next port, which greets.
func runHolding(t *testing.T, requests int) *running {
	t.Helper()
	a, greeter := newApp(t), startHolder(t)
	arrived, all := new(atomic.Int32), make(chan struct{})
	a.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/held" {
			if arrived.Add(1) == int32(requests) {
				close(all)
			}
			select {
			case <-all:
			case <-r.Context().Done():
			}
		}
		return false
	}
	s := newFixture(store)
	s.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}, {Port: greeter, Protocol: mesh.TCPServerFirst, Access: anyone}}
	server, ca := runInbound(t, s)
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, redirected(t, server.inbound, a.http)))
	f.service(servicePort("bookstore", 81), mesh.TCPServerFirst, "10.96.0.10", backend(servicePort("bookstore", 81), mesh.TCPServerFirst, store, redirected(t, server.inbound, greeter)))
	return runOutbound(t, ca, f)
}

// startHolder serves TCP on a port until the test ends: it greets each connection and keeps it,
// with one descriptor for each.
func startHolder(t *testing.T) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var held []net.Conn
		defer func() {
			for _, conn := range held {
				conn.Close()
			}
		}()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			held = append(held, conn)
			fmt.Fprintln(conn, "hello")
		}
	}()
	t.Cleanup(func() { listener.Close() })
	return portOf(listener)
}

// tryAtOnce makes the tries at once, and reports those that fail.
func tryAtOnce(t *testing.T, count int, try func() error) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	failed, failures := 0, map[string]int{}
	var group sync.WaitGroup
	for range count {
		group.Go(func() {
			if err := try(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
				failures[err.Error()]++
			}
		})
	}
	group.Wait()
	t.Logf("%d of %d succeeded, the last after %s", count-failed, count, time.Since(began).Round(time.Millisecond))
	if failed > 0 {
		t.Errorf("%d of %d failed: %v", failed, count, failures)
	}
}
