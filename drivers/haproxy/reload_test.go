package haproxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// redirected listens like the redirection in a server's pod: it passes connections to the
// listener, with the port of the application as the original destination.
func redirected(t *testing.T, listener, port uint16) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("tcp", local(listener))
				if err != nil {
					return
				}
				defer to.Close()
				fmt.Fprintf(to, "PROXY TCP4 127.0.0.1 127.0.0.1 4321 %d\r\n", port)
				go func() {
					io.Copy(to, from)
					to.(*net.TCPConn).CloseWrite()
				}()
				io.Copy(from, to)
			}()
		}
	}()
	return l.Addr().String()
}

// TestNoRequestFailsInReloads reloads the proxies of a server and its client under load, in
// close succession.
func TestNoRequestFailsInReloads(t *testing.T) {
	a := newApp(t)
	s := newFixture(store)
	s.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}}
	server, ca := runInbound(t, s)
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, redirected(t, server.inbound, a.http)))
	r := runOutbound(t, ca, f)
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			c := client(r.outbound, storeAddress, nil, i >= 6)
			defer c.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				began := time.Now()
				response, _, err := keepAsking(c, "GET", "/")
				if err != nil || response.StatusCode != http.StatusOK {
					t.Errorf("client %d, %s after %s: %v, %v", i, time.Now().Format("05.000"), time.Since(began), response, err)
				}
			}
		})
	}
	reloads := 12
	if testing.Short() {
		reloads = 4
	}
	for i := range reloads {
		t.Log("reload at ", time.Now().Format("05.000"))
		var both sync.WaitGroup
		if i%3 != 0 {
			both.Go(server.reload)
		}
		if i%3 != 1 {
			both.Go(r.reload)
		}
		both.Wait()
		if i%4 == 3 {
			time.Sleep(500 * time.Millisecond)
		}
	}
	close(stop)
	group.Wait()
}
