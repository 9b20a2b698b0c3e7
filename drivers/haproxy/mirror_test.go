package haproxy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// recorder is a server with mesh TLS that keeps a line for each request.
type recorder struct {
	*peer
	mu    sync.Mutex
	lines []string
}

func newRecorder(t *testing.T, ca *authority) *recorder {
	t.Helper()
	r := &recorder{peer: newPeer(t, ca, store)}
	r.answer = func(w http.ResponseWriter, request *http.Request) bool {
		body, _ := io.ReadAll(request.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lines = append(r.lines, fmt.Sprintf("%s %s%s %s %s %x", request.Method, request.Host, request.RequestURI, request.Header.Get("X-Added"), request.Header["X-Twice"], sha256.Sum256(body)))
		w.Write(make([]byte, 100<<10))
		return true
	}
	return r
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.lines))
}

// TestMirrors compares the requests that a backend and two mirrors get.
func TestMirrors(t *testing.T) {
	ca := newAuthority(t)
	main, all, some := newRecorder(t, ca), newRecorder(t, ca), newRecorder(t, ca)
	f := newFixture(buyer)
	for name, p := range map[string]*recorder{"all": all, "some": some} {
		f.backends = append(f.backends, backend(servicePort(name, 80), mesh.HTTP, store, p.address))
	}
	// Nobody listens there, or accepts connections.
	stuck, closed := httptest.NewUnstartedServer(nil), httptest.NewServer(nil)
	defer stuck.Close()
	closed.Close()
	f.backends = append(f.backends, backend(servicePort("stuck", 80), mesh.HTTP, store, stuck.Listener.Addr().String()),
		backend(servicePort("closed", 80), mesh.HTTP, store, closed.Listener.Addr().String()))
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, main.address))
	d.Routes[0].Backends[0].Request.Set = []mesh.Header{{Name: "x-added", Value: "1"}}
	d.Routes[0].Rewrite = &mesh.Rewrite{Host: "other.example.com"}
	for name, share := range map[string][2]uint32{"all": {1, 1}, "some": {1, 4}, "stuck": {1, 2}, "closed": {1, 1}, "gone": {1, 1}} {
		d.Routes[0].Mirrors = append(d.Routes[0].Mirrors, mesh.Mirror{Backend: servicePort(name, 80).String(), Numerator: share[0], Denominator: share[1]})
	}
	r := runOutbound(t, ca, f)
	send := func(h2 bool, method, path string, body io.Reader) time.Duration {
		t.Helper()
		request, err := http.NewRequest(method, "http://books.example.com"+path, body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header["X-Twice"] = []string{"a", "b"}
		c := client(r.outbound, storeAddress, nil, h2)
		defer c.CloseIdleConnections()
		began := time.Now()
		response, err := c.Do(request)
		if err != nil || response.StatusCode != 200 {
			t.Fatalf("%s %s: %v, %v", method, path, response, err)
		}
		defer response.Body.Close()
		if n, err := io.Copy(io.Discard, response.Body); err != nil || n != 100<<10 {
			t.Errorf("%s %s: the answer has %d bytes, %v", method, path, n, err)
		}
		return time.Since(began)
	}
	for _, h2 := range []bool{false, true} {
		binary := strings.Repeat("\x00\xff\r\n", 10<<10)
		send(h2, "GET", "/get?a=b", nil)
		send(h2, "PUT", "/put", strings.NewReader(binary))
		send(h2, "POST", "/without-length", io.MultiReader(strings.NewReader("one "), strings.NewReader("two")))
	}
	deadline := time.Now().Add(10 * time.Second)
	for !slices.Equal(all.seen(), main.seen()) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if got, want := all.seen(), main.seen(); !slices.Equal(got, want) || len(want) != 6 || !strings.HasPrefix(want[0], "GET other.example.com/get?a=b 1 [a b]") {
		t.Errorf("the mirror got\n%s\nand the backend\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Of these, the client gets an answer before the body is complete, or the body is too long.
	for _, h2 := range []bool{false, true} {
		send(h2, "PUT", "/long", strings.NewReader(strings.Repeat("x", 50<<10)))
		send(h2, "PUT", "/longer", strings.NewReader(strings.Repeat("x", 1<<20)))
		send(h2, "POST", "/longer-without-length", io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20))))
	}
	const requests = 400
	before := len(all.seen())
	var slow int
	for range requests {
		if send(false, "GET", "/share", nil) > 500*time.Millisecond {
			slow++
		}
	}
	if slow > requests/10 {
		t.Errorf("%d of %d requests wait for a mirror that does not answer", slow, requests)
	}
	for deadline := time.Now().Add(10 * time.Second); len(all.seen()) < before+requests; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the mirror got %d of %d requests while others do not answer", len(all.seen())-before, requests)
		}
	}
	for _, line := range all.seen() {
		if strings.Contains(line, "/long") {
			t.Errorf("the mirror got %s", line)
		}
	}
	// Five standard deviations are 43, and it got some of the first twelve requests.
	time.Sleep(500 * time.Millisecond)
	if n := len(some.seen()); n < requests/4-45 || n > requests/4+45+12 {
		t.Errorf("the other mirror got %d of %d requests, want a quarter", n, requests)
	}
}

// TestStreamsAreNotMirrored has a client that waits for the answer before it sends the rest of
// its body.
func TestStreamsAreNotMirrored(t *testing.T) {
	ca := newAuthority(t)
	main, copies := newPeer(t, ca, store), newRecorder(t, ca)
	main.answer = func(w http.ResponseWriter, r *http.Request) bool {
		http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		io.Copy(w, r.Body)
		return true
	}
	f := newFixture(buyer)
	f.backends = append(f.backends, backend(servicePort("copies", 80), mesh.HTTP, store, copies.address))
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, main.address))
	d.Routes[0].Mirrors = []mesh.Mirror{{Backend: servicePort("copies", 80).String(), Numerator: 1, Denominator: 1}}
	r := runOutbound(t, ca, f)
	body, rest := io.Pipe()
	c := client(r.outbound, storeAddress, nil, true)
	defer c.CloseIdleConnections()
	request, err := http.NewRequest("POST", "http://books.example.com/stream", body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Fprint(rest, "the rest")
	rest.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != "the rest" {
		t.Errorf("the answer is %q, %v", text, err)
	}
	time.Sleep(200 * time.Millisecond)
	if got := copies.seen(); len(got) > 0 {
		t.Errorf("the mirror got %s", got)
	}
}
