package haproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// newEndpoint returns a server that can end before the test does.
func newEndpoint(t *testing.T, ca *authority) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(seen{Proto: r.Proto, Path: r.RequestURI})
	}))
	server.TLS = serverTLS(ca, store, nil)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = discard
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// viewOf returns the View of a client of the servers, of which the first may be draining.
func viewOf(draining bool, servers ...*httptest.Server) *mesh.View {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Listener.Addr().String())
	}
	b := backend(servicePort("bookstore", 80), mesh.HTTP, store, addresses...)
	b.Endpoints[0].Draining = draining
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", b)
	return f.view()
}

// end ends a server and its connections at once.
func end(server *httptest.Server) {
	server.Listener.Close()
	server.CloseClientConnections()
	server.Close()
}

// TestNoRequestFailsInARollout replaces the endpoints of a service one by one under load, with
// a reload for each change. An endpoint ends when no request goes to it any more, or before
// the reload by which HAProxy learns of that. No idempotent request may fail.
func TestNoRequestFailsInARollout(t *testing.T) {
	ca := newAuthority(t)
	servers := []*httptest.Server{newEndpoint(t, ca), newEndpoint(t, ca)}
	dir := t.TempDir()
	ca.writeTo(dir, buyer)
	r := start(t, dir, viewOf(false, servers...)).awaitReady()

	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 12 {
		method, h2, reconnects := []string{"GET", "PUT"}[i%2], i >= 8, i < 4
		group.Go(func() {
			c := client(r.outbound, storeAddress, nil, h2)
			defer c.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				began := time.Now()
				response, _, err := keepAsking(c, method, "/")
				if err != nil || response.StatusCode != http.StatusOK {
					t.Errorf("%s of client %d, after %s: %v, %v", method, i, time.Since(began), response, err)
				}
				if reconnects {
					c.CloseIdleConnections()
				}
			}
		})
	}
	change := func(draining bool, servers ...*httptest.Server) {
		r.configure(viewOf(draining, servers...))
		r.reload()
	}
	rounds := []bool{false, true, false, true}
	if testing.Short() {
		rounds = rounds[:2]
	}
	for _, late := range rounds {
		old, next := servers[0], newEndpoint(t, ca)
		change(false, append(slices.Clone(servers), next)...)
		if late {
			end(old)
			time.Sleep(100 * time.Millisecond)
		}
		change(true, append(slices.Clone(servers), next)...)
		if !late {
			end(old)
		}
		servers = []*httptest.Server{servers[1], next}
		change(false, servers...)
	}
	close(stop)
	group.Wait()
}

// TestOnlyIdempotentRequestsAreRepeated calls a server that reads the first request of each
// kind and closes the connection without an answer.
func TestOnlyIdempotentRequestsAreRepeated(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	var mu sync.Mutex
	arrived := map[string]int{}
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		kind := r.Method + " " + r.Header.Get("X-Request")
		if arrived[kind]++; arrived[kind] == 1 {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	r := runOutbound(t, ca, f)
	for method, times := range map[string]int{"GET": 2, "PUT": 2, "DELETE": 2, "POST": 1, "PATCH": 1} {
		for _, h2 := range []bool{false, true} {
			if h2 && times == 1 {
				// HAProxy 2.6 tells HTTP/2 clients that they may repeat it; see README.md.
				continue
			}
			c := client(r.outbound, storeAddress, nil, h2)
			response, _, err := keepAsking(c, method, "/", "X-Request", fmt.Sprint(h2))
			c.CloseIdleConnections()
			if err == nil && (response.StatusCode == http.StatusOK) != (times == 2) {
				t.Errorf("%s, HTTP/2 %v: the answer is %v", method, h2, response)
			}
			mu.Lock()
			if got := arrived[fmt.Sprint(method, " ", h2)]; got != times {
				t.Errorf("%s, HTTP/2 %v: the request arrived %d times, want %d; the answer is %v, %v", method, h2, got, times, response, err)
			}
			mu.Unlock()
		}
	}
}
