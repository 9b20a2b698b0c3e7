package behaviour

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// testHTTPRouteRetries sends requests with bodies, which proxies must keep for a retry.
func testHTTPRouteRetries(t *testing.T, w *testMesh) {
	set := func(rule string) {
		w.set(t, "route.yaml", route("HTTPRoute", "shop", "cart", rule+"\n    backendRefs: [{name: cart-v1, port: 80}]\n"))
	}
	t.Cleanup(func() { w.forget(t, "route.yaml") })
	expect := func(failure string, want int) {
		t.Helper()
		put := request{method: http.MethodPut, body: "two apples", url: shopCart + "/cart/items"}
		w.afterFailures(t, put, failure, isStatus(want))
	}
	set("  - retry: {attempts: 2, codes: [500, 503]}")
	expect("times=2&status=500", http.StatusOK)
	expect("times=1&status=503", http.StatusOK)
	expect("times=3&status=500", http.StatusInternalServerError)
	expect("times=1&status=502", http.StatusBadGateway)
	set("  - timeouts: {backendRequest: 300ms}\n    retry: {attempts: 1}")
	expect("times=1&stall=5s", http.StatusOK)
	set("  - retry: {attempts: 0, codes: [500]}")
	expect("times=1&status=500", http.StatusInternalServerError)
}

func testHTTPRouteRetryCodes(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - retry: {attempts: 1, codes: [429], backoff: 2s}
    backendRefs: [{name: cart-v1, port: 80}]
`))
	// The proxies wait for a random part of the backoff, so a single request can be fast.
	var slowest time.Duration
	n := 0
	w.eventually(t, func() error {
		n++
		began := time.Now()
		r, err := w.send(w.pod(t, "users/web"), request{url: fmt.Sprintf("%s?fail=%s%d&times=1&status=429", cart, t.Name(), n)})
		if err != nil || r.Status != http.StatusOK {
			return fmt.Errorf("the answer is %d, %v, want that the request is retried", r.Status, err)
		}
		if slowest = max(slowest, time.Since(began)); slowest < 200*time.Millisecond {
			return fmt.Errorf("the slowest of %d requests took %v, so the proxy does not wait before a retry", n, slowest)
		}
		return nil
	})
}
