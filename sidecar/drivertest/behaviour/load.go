package behaviour

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// load asks from a pod, over a few connections, until its end is called.
type load struct {
	mu     sync.Mutex
	total  int
	failed []string
	pods   map[string]int
	stop   chan struct{}
	done   sync.WaitGroup
}

// startLoad begins to ask for the URL, with so many workers, each of which waits for
// an answer before it asks again. Every worker keeps its connection.
func (w *world) startLoad(from dialer, url string, workers int) *load {
	l := &load{pods: map[string]int{}, stop: make(chan struct{})}
	for range workers {
		l.done.Go(func() {
			client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.Dial}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				r, err := w.sendBy(client, request{url: url})
				l.add(r, err)
			}
		})
	}
	return l
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

// count returns how many requests there were, and how many a pod has answered.
func (l *load) count(pod string) (total, ofPod int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.pods[pod]
}

// more waits until so many more requests were made.
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

// end stops the load and fails the test if a request did not succeed.
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
