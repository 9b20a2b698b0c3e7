package behaviour

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// load sends requests from a pod, over a few connections, until end is called.
type load struct {
	mu     sync.Mutex
	total  int
	failed []string
	pods   map[string]int
	stop   chan struct{}
	done   sync.WaitGroup
}

// startLoad sends requests to the URL with the given number of workers. Each has its
// own connection and sends one request at a time.
func (w *testMesh) startLoad(from dialer, url string, workers int) *load {
	l := &load{pods: map[string]int{}, stop: make(chan struct{})}
	for range workers {
		l.work(w, &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.Dial}}, url, 2*time.Millisecond)
	}
	return l
}

// work starts a worker, which pauses before each request.
func (l *load) work(w *testMesh, client *http.Client, url string, pause time.Duration) {
	l.done.Go(func() {
		defer client.CloseIdleConnections()
		for {
			select {
			case <-l.stop:
				return
			case <-time.After(pause):
			}
			r, err := w.sendBy(client, request{url: url})
			l.add(r, err)
		}
	})
}

func (l *load) add(r reply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	switch {
	case err != nil:
		l.failed = append(l.failed, err.Error())
	case r.Status != http.StatusOK:
		l.failed = append(l.failed, fmt.Sprintf("%d %.200s", r.Status, r.Body))
	default:
		l.pods[r.Pod]++
	}
}

// count returns the number of requests, and how many of them the pod has answered.
func (l *load) count(pod string) (total, ofPod int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.pods[pod]
}

// more waits until n more requests have completed.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	begin, _ := l.count("")
	deadline := time.Now().Add(limit)
	for {
		if total, _ := l.count(""); total >= begin+n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there were not %d more requests in %s", n, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// end stops the load and fails the test if a request has failed.
func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	l.done.Wait()
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests failed, the first: %s", len(l.failed), l.total, l.failed[0])
	}
	if l.total == 0 {
		t.Error("there was no request")
	}
}
