package haproxy

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestRetriesOfOtherCodes calls a server that fails as the header X-Fail says: how often, and
// with which status code; 0 is a closed connection, 1 a stalled request.
func TestRetriesOfOtherCodes(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	var mu sync.Mutex
	arrived := map[string]int{}
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		var times, status int
		fmt.Sscan(r.Header.Get("X-Fail"), &times, &status)
		mu.Lock()
		arrived[r.URL.Path]++
		failed := arrived[r.URL.Path] <= times
		mu.Unlock()
		if r.Header.Get("X-Outrigger-Try") != "" || r.Header.Get("X-Outrigger-To") != "" {
			t.Errorf("the server gets the headers %v", r.Header)
		}
		if r.ContentLength < 100<<10 {
			// HAProxy does not change answers that come before the end of a long request.
			w.Header().Set("X-Outrigger-Status", "201")
		}
		if failed {
			switch status {
			case 0:
				panic(http.ErrAbortHandler)
			case 1:
				select {
				case <-r.Context().Done():
				case <-t.Context().Done():
				}
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
		}
		return failed
	}
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	d.Routes[0].Retry = &mesh.Retry{On: []string{"connect-failure", "gateway-error", "reset"}, Codes: []uint16{429, 507}, Attempts: 2, PerTry: 500 * time.Millisecond, Backoff: time.Millisecond}
	closed := f.service(servicePort("closed", 80), mesh.HTTP, "10.96.0.11", backend(servicePort("closed", 80), mesh.HTTP, store, "127.0.0.1:1"))
	closed.Routes[0].Retry = d.Routes[0].Retry
	r := runOutbound(t, ca, f)
	for i, tt := range []struct {
		fail         string
		body         int
		want, server int
	}{
		{"0 0", 0, 200, 1},
		{"1 429", 0, 200, 2},
		{"2 429", 10, 200, 3},
		{"2 507", 10, 200, 3},
		{"3 429", 10, 429, 3},
		{"9 507", 0, 507, 3},
		{"2 503", 10, 200, 3},
		{"9 503", 10, 503, 3},
		{"1 500", 10, 500, 1},
		{"1 404", 10, 404, 1},
		{"1 0", 10, 200, 2},
		{"1 1", 10, 200, 2},
		// It does not fit in a buffer.
		{"1 429", 200 << 10, 429, 1},
		{"1 200", 200 << 10, 200, 1},
	} {
		for _, h2 := range []bool{false, true} {
			path := fmt.Sprintf("/%d/%t", i, h2)
			c := client(r.outbound, storeAddress, nil, h2)
			request, err := http.NewRequest("PUT", "http://books.example.com"+path, strings.NewReader(strings.Repeat("x", tt.body)))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Fail", tt.fail)
			response, err := c.Do(request)
			if err != nil {
				t.Errorf("%s, %d bytes, HTTP/2 %t: %v", tt.fail, tt.body, h2, err)
				continue
			}
			response.Body.Close()
			c.CloseIdleConnections()
			mu.Lock()
			if n := arrived[path]; response.StatusCode != tt.want || n != tt.server || response.Header.Get("X-Outrigger-Status") != "" || response.Header.Get("X-Outrigger-Upstream") != "" {
				t.Errorf("%s, %d bytes, HTTP/2 %t: the answer is %v after %d tries, want %d after %d", tt.fail, tt.body, h2, response, n, tt.want, tt.server)
			}
			mu.Unlock()
		}
	}
	if response, _, err := ask(client(r.outbound, "10.96.0.11:80", nil, false), "/"); err != nil || response.StatusCode != 503 {
		t.Errorf("without a server the answer is %v, %v", response, err)
	}
	r.awaitLog(`"upstream_peer":"` + store.String() + `"`)
}

// TestBackoff measures how long tries are apart.
func TestBackoff(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	var mu sync.Mutex
	var at []time.Time
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		at = append(at, time.Now())
		w.WriteHeader(503)
		return true
	}
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	d.Routes[0].Retry = &mesh.Retry{On: []string{"5xx"}, Attempts: 2, Backoff: 200 * time.Millisecond}
	r := runOutbound(t, ca, f)
	var first, second time.Duration
	const requests = 10
	for range requests {
		at = nil
		if response, _, err := ask(client(r.outbound, storeAddress, nil, false), "/"); err != nil || response.StatusCode != 503 || len(at) != 3 {
			t.Fatalf("the answer is %v after %d tries, %v", response, len(at), err)
		}
		first, second = first+at[1].Sub(at[0]), second+at[2].Sub(at[1])
	}
	// They are random, with means of 100 and 200 ms.
	if first < requests*30*time.Millisecond || second < requests*60*time.Millisecond || second < first/2 {
		t.Errorf("the mean delays are %v and %v", first/requests, second/requests)
	}
}

// TestRetryOnIsLimited holds why retries need a second frontend: HAProxy itself repeats
// requests for a few status codes only.
func TestRetryOnIsLimited(t *testing.T) {
	program, err := Driver{}.FindProxy()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	// HAProxy 3.0 accepts 429 as well.
	for code, accepted := range map[string]bool{"425": true, "503": true, "429": isAtLeast(t, 3, 0), "507": false} {
		file := filepath.Join(t.TempDir(), "haproxy.cfg")
		config := "defaults\n  mode http\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\nlisten b\n  bind 127.0.0.1:1\n  retry-on " + code + "\n  server s 127.0.0.1:1\n"
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, "-c", "-f", file).CombinedOutput()
		if (err == nil) != accepted || !accepted && !strings.Contains(string(out), "retry-on") {
			t.Errorf("retry-on %s: %v: %s", code, err, out)
		}
	}
}
