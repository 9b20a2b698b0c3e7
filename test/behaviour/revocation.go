package behaviour

import (
	"net/http"
	"os/exec"
	"sync"
	"testing"
	"time"
)

const (
	// revocations is how often the row about them takes a permission away.
	revocations = 10
	// undoneLimit is how long after the first refusal another request may still be admitted.
	undoneLimit = time.Second
)

// admission is the answer to a request of a client whose permission is taken away.
type admission struct {
	began, ended time.Time
	status       int
}

// testRevocationsUnderLoad takes a permission away while its holder sends requests, over new
// connections and over kept ones, and all processors are busy. It reports for how long requests were
// still admitted after the first one that was refused: the threads and processes of a proxy do not
// change their rules at the same time.
func testRevocationsUnderLoad(t *testing.T, w *testMesh) {
	w.apply(t, "late.yaml", routeGroup("shop/late", " [{name: late, pathRegex: /late, methods: [GET]}]"))
	target := trafficTarget("shop/late", "cart-v1", "{kind: HTTPRouteGroup, name: late}", "users/thief")
	defer w.forget(t, "late-target.yaml")
	config := w.meshTLSOf(t, w.certificate(t, thiefIdentity))
	anew := func() (reply, error) { return w.directly(t, "shop/cart-v1", config.Clone(), 1, "/late", nil) }
	// Over new connections, and over kept ones of HTTP/1.1 and HTTP/2.
	ways := []func() (reply, error){anew, anew}
	for version := 1; version <= 2; version++ {
		client := w.directClient(t, "shop/cart-v1", config.Clone(), version)
		defer client.CloseIdleConnections()
		ways = append(ways, func() (reply, error) { return getDirectly(client, "/late", nil) })
	}
	keepBusy(t, 2)
	var longest time.Duration
	undone, requests := 0, 0
	for range revocations {
		w.set(t, "late-target.yaml", target)
		for _, send := range ways {
			for range 4 {
				w.repeat(t, "a request that is allowed", ok, send)
			}
		}
		var mu sync.Mutex
		var all []admission
		stop := make(chan struct{})
		var senders sync.WaitGroup
		for _, send := range ways {
			senders.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					began := time.Now()
					if r, err := send(); err == nil {
						mu.Lock()
						all = append(all, admission{began, time.Now(), r.Status})
						mu.Unlock()
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		w.forget(t, "late-target.yaml")
		w.repeat(t, "a request whose permission is gone", isStatus(http.StatusForbidden), anew)
		time.Sleep(undoneLimit)
		close(stop)
		senders.Wait()
		late := undoneFor(all)
		if late > 0 {
			undone++
		}
		longest = max(longest, late)
		requests += len(all)
	}
	t.Logf("in %d of %d revocations a request was admitted after the first refusal, at most %s after it, of %d requests", undone, revocations, longest.Round(time.Millisecond), requests)
	if longest > undoneLimit {
		t.Errorf("a request was admitted %s after the first refusal", longest)
	}
}

// keepBusy runs programs that need all the time that a processor has, until the test's end.
func keepBusy(t *testing.T, programs int) {
	t.Helper()
	for range programs {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		})
	}
}

// undoneFor returns how long after the first refusal a request began that was admitted.
func undoneFor(all []admission) (late time.Duration) {
	var refused time.Time
	for _, a := range all {
		if a.status == http.StatusForbidden && (refused.IsZero() || a.ended.Before(refused)) {
			refused = a.ended
		}
	}
	for _, a := range all {
		if a.status == http.StatusOK && !refused.IsZero() {
			late = max(late, a.began.Sub(refused))
		}
	}
	return late
}
