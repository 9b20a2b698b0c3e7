package haproxy

import (
	"context"
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

// TestAuthorizationFails checks requests while there is no service that answers as it must.
func TestAuthorizationFails(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, stop := j.serve(t, "127.0.0.1:0")
	r, ca := runInbound(t, authorized(a, port, false))
	w := ticket{r, ca, a}
	apply := func(f *fixture) {
		r.configure(f.view())
		r.reload()
	}
	w.answers(200)
	stop()
	w.answers(403)
	// The service is used again as soon as it is back.
	j.serve(t, fmt.Sprintf("127.0.0.1:%d", port))
	w.answers(200)
	for name, serve := range map[string]func(net.Conn){
		"that never answers": func(conn net.Conn) { io.Copy(io.Discard, conn) },
		"that closes": func(conn net.Conn) {
			conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			io.Copy(io.Discard, conn)
		},
		"of HTTP/1.1": func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") },
		"of garbage":  func(conn net.Conn) { io.WriteString(conn, strings.Repeat("\x00\x01garbage", 1000)) },
	} {
		listener := listen(t, serve)
		apply(authorized(a, portOf(listener), false))
		began := time.Now()
		w.answers(403)
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("with a service %s two answers took %s", name, took)
		}
		apply(authorized(a, portOf(listener), true))
		w.answers(200)
	}
	for _, host := range []string{"", "no host", "nowhere.invalid", "::", "[", "127.0.0.1:1", "0.0.0.0"} {
		f := strict(a)
		f.settings.Authorization = &mesh.Authorization{Host: host}
		apply(f)
		w.answers(403)
	}
	apply(authorized(a, 0, true))
	w.answers(200)
	if response, _, err := w.ask("http/1.1", "/admin", "x-case", "allow"); err != nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("while the service fails a request against the rules gets %v, %v", response, err)
	}
}

// listen serves raw connections until the test ends.
func listen(t *testing.T, serve func(net.Conn)) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return listener
}

// TestUnusableVerdicts has a service whose answers are no successful calls with one message.
func TestUnusableVerdicts(t *testing.T) {
	a := newApp(t)
	var answer atomic.Pointer[func(http.ResponseWriter)]
	service := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		(*answer.Load())(w)
	})}
	service.Protocols.SetUnencryptedHTTP2(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go service.Serve(listener)
	t.Cleanup(func() { service.Close() })
	r, ca := runInbound(t, authorized(a, portOf(listener), false))
	w := ticket{r, ca, a}
	message := func(status, code int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "grpc-status")
			w.WriteHeader(status)
			io.WriteString(w, body)
			w.Header().Set("grpc-status", fmt.Sprint(code))
		}
	}
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter)
		want   int
	}{
		"empty message":            {message(200, 0, "\x00\x00\x00\x00\x00"), 200},
		"status 0":                 {message(200, 0, "\x00\x00\x00\x00\x04\x0a\x02\x08\x00"), 200},
		"unknown fields":           {message(200, 0, "\x00\x00\x00\x00\x10\x21aaaaaaaa\x35aaaa\x3a\x00"), 200},
		"status 7":                 {message(200, 0, "\x00\x00\x00\x00\x04\x0a\x02\x08\x07"), 403},
		"negative status":          {message(200, 0, "\x00\x00\x00\x00\x0d\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 403},
		"an error of the service":  {message(200, 0, "\x00\x00\x00\x00\x02\x2a\x00"), 403},
		"no message":               {message(200, 0, ""), 403},
		"two messages":             {message(200, 0, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 403},
		"a truncated message":      {message(200, 0, "\x00\x00\x00\x00\x04\x0a\x02"), 403},
		"a compressed message":     {message(200, 0, "\x01\x00\x00\x00\x00"), 403},
		"an invalid message":       {message(200, 0, "\x00\x00\x00\x00\x02\x0f\x00"), 403},
		"a field that is too long": {message(200, 0, "\x00\x00\x00\x00\x02\x0a\x7f"), 403},
		"a field of another type":  {message(200, 0, "\x00\x00\x00\x00\x02\x08\x00"), 403},
		"a failed call":            {message(200, 13, "\x00\x00\x00\x00\x00"), 403},
		"another status":           {message(500, 0, "\x00\x00\x00\x00\x00"), 403},
		"an endless answer":        {message(200, 0, strings.Repeat("\x00", 1<<20)), 403},
		"no trailers":              {func(w http.ResponseWriter) { io.WriteString(w, "\x00\x00\x00\x00\x00") }, 403},
		"a reset": {func(w http.ResponseWriter) {
			io.WriteString(w, "\x00\x00\x00\x00\x00")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 403},
	} {
		answer.Store(&tt.answer)
		if response, _, err := w.ask("http/1.1", "/books/1"); err != nil || response.StatusCode != tt.want {
			t.Errorf("%s: the answer is %v, %v, want %d", name, response, err, tt.want)
		}
	}
}

// TestManyAuthorizations has many requests wait for the service at once.
func TestManyAuthorizations(t *testing.T) {
	const n = 2000
	a, j := newApp(t), &judge{release: make(chan struct{})}
	port, _ := j.serve(t, "127.0.0.1:0")
	f := authorized(a, port, false)
	f.settings.Authorization.Timeout = 5 * time.Minute
	f.settings.AccessLog = mesh.AccessLog{}
	r, ca := runInbound(t, f)
	var clients []*http.Client
	for range 40 {
		c := client(r.inbound, local(a.http), ca.as(buyer, store, "h2"), true)
		c.Timeout = 5 * time.Minute
		// Otherwise the connection ends before the client's time is over.
		c.Transport.(*http.Transport).DialContext = patient(r.inbound, local(a.http))
		// HAProxy closes connections whose handshake does not end in time, as beside so many requests.
		if response, _, err := keepAsking(c, http.MethodGet, "/books/1", "x-case", "allow"); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("the first answer is %v, %v", response, err)
		}
		clients = append(clients, c)
	}
	var group sync.WaitGroup
	for i := range n {
		c := clients[i%len(clients)]
		group.Go(func() {
			if response, _, err := keepAsking(c, http.MethodGet, "/books/1", "x-case", "wait"); err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("the answer is %v, %v", response, err)
			}
		})
	}
	await(t, &j.waiting, n, "requests wait")
	close(j.release)
	group.Wait()
	for _, c := range clients {
		c.CloseIdleConnections()
	}
}

// await waits until the counter has reached a number.
func await(t *testing.T, counter *atomic.Int32, n int32, what string) {
	t.Helper()
	// It takes two seconds on an idle machine, and much longer beside other tests.
	for deadline := time.Now().Add(2 * time.Minute); counter.Load() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d of %d %s", counter.Load(), n, what)
			return
		}
	}
}

// TestAuthorizationOfClientsThatLeave checks that the service is not kept busy by requests
// whose clients have given up.
func TestAuthorizationOfClientsThatLeave(t *testing.T) {
	const n = 200
	a, j := newApp(t), &judge{release: make(chan struct{})}
	port, _ := j.serve(t, "127.0.0.1:0")
	f := authorized(a, port, false)
	f.settings.Authorization.Timeout = time.Hour
	r, ca := runInbound(t, f)
	c := client(r.inbound, local(a.http), ca.as(buyer, store, "h2"), true)
	c.Timeout = 0
	ctx, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			request, _ := http.NewRequestWithContext(ctx, "GET", "https://books.example.com/books/1", nil)
			request.Header.Set("X-Case", "wait")
			if response, err := c.Do(request); err == nil {
				t.Errorf("the answer is %v", response)
				response.Body.Close()
			}
		})
	}
	await(t, &j.waiting, n, "requests wait")
	leave()
	group.Wait()
	await(t, &j.given, n, "calls have ended")
	ticket{r, ca, a}.answers(200)
}

// TestReloadsWithAuthorization reloads HAProxy under load: no request may fail, and none
// may pass that the service denies.
func TestReloadsWithAuthorization(t *testing.T) {
	a, j := newApp(t), new(judge)
	port, _ := j.serve(t, "127.0.0.1:0")
	f := authorized(a, port, false)
	f.settings.Authorization.Timeout = 20 * time.Second
	r, ca := runInbound(t, f)
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 8 {
		name, want := "allow", 200
		if i%2 == 0 {
			name, want = "explain", 401
		}
		group.Go(func() {
			c := client(r.inbound, local(a.http), ca.as(buyer, store), i >= 4)
			if i >= 4 {
				c = client(r.inbound, local(a.http), ca.as(buyer, store, "h2"), true)
			}
			defer c.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				if response, _, err := keepAsking(c, http.MethodGet, "/books/1", "x-case", name); err != nil || response.StatusCode != want {
					t.Errorf("%s of client %d: %v, %v", name, i, response, err)
				}
			}
		})
	}
	for range 4 {
		r.configure(f.view())
		r.reload()
	}
	close(stop)
	group.Wait()
}
