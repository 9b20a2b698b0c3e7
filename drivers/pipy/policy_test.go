package pipy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// counted is a server that counts its requests.
type counted struct {
	requests atomic.Int64
	answer   func(n int64, w http.ResponseWriter, r *http.Request)
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := c.requests.Add(1)
	if c.answer != nil {
		c.answer(n, w, r)
	}
}

func fails(times int64, status int) *counted {
	return &counted{answer: func(n int64, w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if n <= times {
			w.WriteHeader(status)
		}
		fmt.Fprintf(w, "%d %s", n, body)
	}}
}

func TestRetries(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	nobody := at(netip.MustParseAddrPort("198.18.0.1:9"), storeName)
	hung := &counted{answer: func(n int64, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			<-r.Context().Done()
		}
	}}
	cut := &counted{answer: func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			panic(http.ErrAbortHandler)
		}
	}}
	for i, tt := range []struct {
		name     string
		server   *counted
		extra    []mesh.Endpoint
		retry    *mesh.Retry
		status   int
		requests int64
	}{
		{"no policy", fails(1, 503), nil, nil, 503, 1},
		{"5xx", fails(2, 500), nil, &mesh.Retry{On: []string{"5xx"}, Attempts: 2, Backoff: time.Millisecond}, 200, 3},
		{"too few attempts", fails(2, 500), nil, &mesh.Retry{On: []string{"5xx"}, Attempts: 1, Backoff: time.Millisecond}, 500, 2},
		{"gateway-error and 500", fails(1, 500), nil, &mesh.Retry{On: []string{"gateway-error"}, Attempts: 3}, 500, 1},
		{"gateway-error and 502", fails(1, 502), nil, &mesh.Retry{On: []string{"gateway-error"}, Attempts: 3}, 200, 2},
		{"retriable-4xx", fails(1, 409), nil, &mesh.Retry{On: []string{"retriable-4xx"}, Attempts: 3}, 200, 2},
		{"a try that takes too long", hung, nil, &mesh.Retry{On: []string{"5xx"}, Attempts: 1, PerTry: 300 * time.Millisecond}, 200, 2},
		{"reset", cut, nil, &mesh.Retry{On: []string{"reset"}, Attempts: 1}, 200, 2},
		{"an endpoint that is not there", fails(0, 0), []mesh.Endpoint{nobody}, nil, 200, 1},
	} {
		port := uint16(8000 + i)
		endpoints := append([]mesh.Endpoint{at(s.peer(t, storeName, tt.server), storeName)}, tt.extra...)
		d, _ := w.service("store", port, mesh.HTTP, "10.96.0.1", endpoints...)
		d.Routes[0].Retry = tt.retry
		s.apply(t, w.view())
		t.Run(tt.name, func(t *testing.T) {
			response, err := s.client().Post(fmt.Sprintf("http://10.96.0.1:%d/", port), "text/plain", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body)
			if n := tt.server.requests.Load(); response.StatusCode != tt.status || n != tt.requests {
				t.Errorf("the answer is %d after %d requests, want %d after %d", response.StatusCode, n, tt.status, tt.requests)
			}
			if tt.server.answer != nil && tt.status == 200 && len(body) > 0 && !strings.HasSuffix(string(body), " body") {
				t.Errorf("the last request had another body: %q", body)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	ended := make(chan struct{}, 10)
	slow := &counted{answer: func(_ int64, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			w.Write([]byte(strings.Repeat("x", 1000)))
			http.NewResponseController(w).Flush()
		}
		if r.URL.Path != "/fast" {
			<-r.Context().Done()
			ended <- struct{}{}
		}
	}}
	d, _ := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, slow), storeName))
	d.Routes[0].Timeout = 500 * time.Millisecond
	s.apply(t, w.view())
	for range 2 {
		if status, _ := s.get(t, "http://10.96.0.1/"); status != 504 {
			t.Errorf("the answer is %d, want 504", status)
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("the server's request is not cancelled")
		}
		if status, _ := s.get(t, "http://10.96.0.1/fast"); status != 200 {
			t.Errorf("the next answer is %d", status)
		}
		if status, body := s.get(t, "http://10.96.0.1/body"); status != 0 {
			t.Errorf("an answer that never ends looks complete: %d with %d bytes", status, len(body))
		}
		<-ended
	}
}

func TestLimits(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	var most, now atomic.Int64
	gate := make(chan struct{})
	server := &counted{answer: func(_ int64, _ http.ResponseWriter, r *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-gate
		now.Add(-1)
	}}
	for _, tt := range []struct {
		name     string
		port     uint16
		policy   mesh.UpstreamPolicy
		served   int
		refused  int
		together int64
	}{
		{"requests", 81, mesh.UpstreamPolicy{MaxRequests: new(uint32(2))}, 2, 6, 2},
		{"connections and pending requests", 82, mesh.UpstreamPolicy{MaxConnections: new(uint32(1)), MaxPendingRequests: new(uint32(2))}, 3, 5, 1},
		{"connections", 83, mesh.UpstreamPolicy{MaxConnections: new(uint32(3))}, 8, 0, 3},
		{"no requests", 84, mesh.UpstreamPolicy{MaxRequests: new(uint32(0))}, 0, 8, 0},
		{"no connections", 85, mesh.UpstreamPolicy{MaxConnections: new(uint32(0))}, 0, 8, 0},
		{"no pending requests", 86, mesh.UpstreamPolicy{MaxPendingRequests: new(uint32(0))}, 0, 8, 0},
	} {
		_, b := w.service("store", tt.port, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, server), storeName))
		b.Policy = tt.policy
		s.apply(t, w.view())
		t.Run(tt.name, func(t *testing.T) {
			most.Store(0)
			statuses := make(chan int, 8)
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					status, _ := s.get(t, fmt.Sprintf("http://10.96.0.1:%d/", tt.port))
					statuses <- status
				})
			}
			refused := 0
			for range tt.refused {
				if status := <-statuses; status != 503 {
					t.Errorf("a request too many gets %d", status)
				}
				refused++
			}
			for deadline := time.Now().Add(10 * time.Second); now.Load() < tt.together && time.Now().Before(deadline); {
				runtime.Gosched()
			}
			for range tt.served {
				gate <- struct{}{}
			}
			for range tt.served {
				if status := <-statuses; status != 200 {
					t.Errorf("a request gets %d", status)
				}
			}
			group.Wait()
			if most.Load() != tt.together {
				t.Errorf("%d requests were served at a time, want %d", most.Load(), tt.together)
			}
		})
	}
}

func TestEjection(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	good, bad := fails(0, 0), fails(1000, 500)
	_, b := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, good), storeName), at(s.peer(t, storeName, bad), storeName))
	b.Policy.Ejection = &mesh.Ejection{ConsecutiveErrors: 3, BaseTime: time.Hour, MaxPercent: 50}
	s.apply(t, w.view())
	failed := 0
	for range 40 {
		if status, _ := s.get(t, "http://10.96.0.1/"); status != 200 {
			failed++
		}
	}
	if failed != 3 {
		t.Errorf("%d requests failed, want the 3 before the ejection", failed)
	}
}

func TestLoadBalancing(t *testing.T) {
	w := newViewBuilder()
	w.proxy.Zone = "here"
	s := startPod(t, w.view())
	var names []string
	var endpoints []mesh.Endpoint
	for i := range 3 {
		name := fmt.Sprint("server", i)
		names = append(names, name)
		endpoints = append(endpoints, at(s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })), storeName))
	}
	endpoints[1].Zone = "here"
	ask := func(t *testing.T, port uint16, n int, header func(i int, r *http.Request)) map[string]int {
		seen := map[string]int{}
		for i := range n {
			request, _ := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://10.96.0.1:%d/", port), nil)
			if header != nil {
				header(i, request)
			}
			response, err := s.client().Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			seen[string(body)]++
		}
		return seen
	}
	_, round := w.service("round", 81, mesh.HTTP, "10.96.0.1", endpoints...)
	_, least := w.service("least", 82, mesh.HTTP, "10.96.0.1", endpoints...)
	_, random := w.service("random", 83, mesh.HTTP, "10.96.0.1", endpoints...)
	ring, hash := w.service("ring", 84, mesh.HTTP, "10.96.0.1", endpoints...)
	_, zone := w.service("zone", 85, mesh.HTTP, "10.96.0.1", endpoints...)
	draining := append([]mesh.Endpoint{}, endpoints...)
	draining[0].Draining = true
	w.service("draining", 86, mesh.HTTP, "10.96.0.1", draining...)
	least.Policy.LoadBalancing.Policy, random.Policy.LoadBalancing.Policy, hash.Policy.LoadBalancing.Policy = mesh.LeastRequest, mesh.Random, mesh.RingHash
	zone.Policy.LoadBalancing.PreferZone = true
	ring.HashOn = []mesh.HashOn{{Header: "x-user"}, {Cookie: "session"}}
	s.apply(t, w.view())
	if seen := ask(t, 81, 9, nil); seen[names[0]] != 3 || seen[names[1]] != 3 || seen[names[2]] != 3 {
		t.Errorf("%v: the shares of %v are not equal", round.Name, seen)
	}
	for _, port := range []uint16{82, 83} {
		if seen := ask(t, port, 60, nil); len(seen) != 3 {
			t.Errorf("port %d: only %v get requests", port, seen)
		}
	}
	if seen := ask(t, 85, 6, nil); seen[names[1]] != 6 {
		t.Errorf("with a preferred zone %v get requests", seen)
	}
	if seen := ask(t, 86, 9, nil); seen[names[0]] != 0 {
		t.Errorf("a draining endpoint gets requests: %v", seen)
	}
	for user := range 10 {
		if seen := ask(t, 84, 5, func(_ int, r *http.Request) { r.Header.Set("X-User", fmt.Sprint("user", user)) }); len(seen) != 1 {
			t.Errorf("user %d is sent to %v", user, seen)
		}
	}
	if seen := ask(t, 84, 60, func(i int, r *http.Request) { r.Header.Set("X-User", fmt.Sprint("user", i)) }); len(seen) != 3 {
		t.Errorf("60 users are sent only to %v", seen)
	}
	response, err := s.client().Get("http://10.96.0.1:84/")
	if err != nil {
		t.Fatal(err)
	}
	first, _ := io.ReadAll(response.Body)
	cookies := response.Cookies()
	if len(cookies) != 1 {
		t.Fatalf("a client without a cookie is given %v", cookies)
	}
	if seen := ask(t, 84, 9, func(_ int, r *http.Request) { r.AddCookie(cookies[0]) }); seen[string(first)] != 9 {
		t.Errorf("with the cookie of %s %v get requests", first, seen)
	}
}

// TestClientsThatLeave lets clients disconnect during requests, which then must no longer
// count against limits.
func TestClientsThatLeave(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	left := make(chan struct{}, 100)
	server := &counted{answer: func(_ int64, w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			<-r.Context().Done()
			left <- struct{}{}
		case "/body":
			w.Write(make([]byte, 1<<16))
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			left <- struct{}{}
		}
	}}
	_, b := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, server), storeName))
	b.Policy.MaxRequests, b.Policy.MaxConnections = new(uint32(1)), new(uint32(1))
	s.apply(t, w.view())
	for i, path := range []string{"/slow", "/body", "/slow"} {
		ctx, cancel := context.WithCancel(t.Context())
		request, _ := http.NewRequestWithContext(ctx, "GET", "http://10.96.0.1"+path, nil)
		go func() {
			for server.requests.Load() < int64(i+1) {
				runtime.Gosched()
			}
			cancel()
		}()
		if response, err := s.client().Do(request); err == nil {
			io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		select {
		case <-left:
		case <-time.After(10 * time.Second):
			t.Errorf("the server of request %d, %s, does not notice that the client has left", i, path)
		}
		server.requests.Store(int64(i + 1))
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		status, _ := s.get(t, "http://10.96.0.1/")
		if status == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("afterwards the answer is %d", status)
		}
	}
}
