package behaviour_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const splitTemplate = `
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: cart, namespace: shop}
spec:
  service: cart.shop
  backends:
  - {service: cart-v1, weight: %d}
  - {service: cart-v2, weight: %d}
`

// upstream returns an UpstreamTrafficSetting of a service of the shop.
func upstream(service, spec string) string {
	return fmt.Sprintf(`
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: %[1]s, namespace: shop}
spec:
  host: %[1]s.shop.svc.cluster.local
%[2]s`, service, spec)
}

// traffic is where requests go and how.
var traffic = []row{
	{"Split 90/10", "A TrafficSplit divides requests by its weights.", func(t *testing.T, w *world) {
		w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 90, 10))
		// The split is there when v2 gets much less than half.
		w.eventually(t, func() error {
			if share := w.share(t, 60, "cart-v2"); share > 15 {
				return fmt.Errorf("cart-v2 got %d of 60 requests", share)
			}
			return nil
		})
		// Of 600 requests the mean is 60, and four standard deviations are 30.
		if share := w.share(t, 600, "cart-v2"); share < 30 || share > 90 {
			t.Errorf("cart-v2 got %d of 600 requests, want 60 within 30", share)
		}
	}},
	{"A split is shifted live", "A change of a TrafficSplit takes effect while requests run, and none of them fails.", func(t *testing.T, w *world) {
		w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 100, 0))
		w.eventually(t, func() error {
			if share := w.share(t, 40, "cart-v2"); share > 0 {
				return fmt.Errorf("cart-v2 got %d of 40 requests", share)
			}
			return nil
		})
		l := w.startLoad(w.pod(t, "users/web"), cart, 4)
		l.more(t, 50)
		for _, weights := range [][2]int{{50, 50}, {0, 100}} {
			if err := w.Apply(t.Context(), "split.yaml", fmt.Sprintf(splitTemplate, weights[0], weights[1])); err != nil {
				t.Fatal(err)
			}
			w.eventually(t, func() error {
				total, before := l.count("cart-v2")
				l.more(t, 40)
				after, now := l.count("cart-v2")
				if share := (now - before) * 100 / (after - total); share < weights[1]*6/10 {
					return fmt.Errorf("cart-v2 gets %d of 100 requests, want about %d", share, weights[1])
				}
				return nil
			})
		}
		l.end(t)
	}},
	{"Retry", "A Retry policy repeats requests that fail, for its source only.", func(t *testing.T, w *world) {
		key := func(name string) string { return cartV1 + "?times=2&fail=" + t.Name() + name }
		w.get(t, "users/web", cartV1, ok)
		if r, err := w.send(w.pod(t, "users/web"), request{url: key("before")}); err != nil || r.Status != http.StatusServiceUnavailable {
			t.Fatalf("without a Retry the answer is %d, %v", r.Status, err)
		}
		w.apply(t, "retry.yaml", `
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: cart, namespace: users}
spec:
  source: {kind: ServiceAccount, name: web, namespace: users}
  destinations: [{kind: Service, name: cart-v1, namespace: shop}]
  retryPolicy: {retryOn: 5xx, numRetries: 4, perTryTimeout: 5s, retryBackoffBaseInterval: 10ms}
`)
		n := 0
		w.eventually(t, func() error {
			n++
			r, err := w.send(w.pod(t, "users/web"), request{url: key(fmt.Sprint(n))})
			if err != nil || r.Status != http.StatusOK {
				return fmt.Errorf("the answer is %d, %v, want that the request is tried again", r.Status, err)
			}
			return nil
		})
	}},
	{"Timeout", "A request that takes longer than its service's timeout gets 504.", func(t *testing.T, w *world) {
		w.apply(t, "timeout.yaml", upstream("cart-v1", "  timeouts: {request: 300ms}\n"))
		w.get(t, "users/web", cartV1+"?wait=1500ms", isStatus(http.StatusGatewayTimeout))
		w.get(t, "users/web", cartV1, ok)
	}},
	{"Circuit breaker", "More requests at a time than a service's limit get 503 at once, and the others are served.", func(t *testing.T, w *world) {
		w.apply(t, "breaker.yaml", upstream("cart-v1", "  connectionSettings: {tcp: {maxConnections: 1}, http: {maxRequests: 1, maxPendingRequests: 1}}\n"))
		w.eventually(t, func() error {
			var mu sync.Mutex
			var group sync.WaitGroup
			statuses := map[int]int{}
			for range 8 {
				group.Go(func() {
					r, err := w.send(w.pod(t, "users/web"), request{url: cartV1 + "?wait=300ms"})
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						r.Status = -1
					}
					statuses[r.Status]++
				})
			}
			group.Wait()
			if statuses[http.StatusOK] == 0 || statuses[http.StatusServiceUnavailable] == 0 || len(statuses) != 2 {
				return fmt.Errorf("8 requests at once have the statuses %v, want some 200 and some 503", statuses)
			}
			return nil
		})
	}},
	{"Outlier ejection", "An endpoint that fails again and again is left out for a while.", func(t *testing.T, w *world) {
		w.apply(t, "outlier.yaml", upstream("cart", "  outlierDetection: {consecutiveErrors: 3, interval: 1s, baseEjectionTime: 30s, maxEjectionPercent: 50}\n"))
		w.apps["shop/cart-v1"].setBroken(http.StatusInternalServerError)
		defer w.apps["shop/cart-v1"].setBroken(0)
		w.eventually(t, func() error {
			if good := w.share(t, 30, "cart-v2"); good != 30 {
				return fmt.Errorf("only %d of 30 requests went to the endpoint that works", good)
			}
			return nil
		})
	}},
	{"Rate limit", "A server takes no more requests than its limit and answers the others with 429.", func(t *testing.T, w *world) {
		w.get(t, "users/web", cartV2, ok)
		w.apply(t, "limit.yaml", upstream("cart-v2", "  rateLimit: {local: {http: {requests: 3, unit: hour}}}\n"))
		w.eventually(t, func() error {
			r, err := w.send(w.pod(t, "users/web"), request{url: cartV2})
			if err != nil || r.Status != http.StatusTooManyRequests {
				return fmt.Errorf("the status is %d, %v", r.Status, err)
			}
			return nil
		})
	}},
	{"Least surprise after a policy goes", "When a policy is deleted, what held before holds again.", func(t *testing.T, w *world) {
		if err := w.Apply(t.Context(), "moved.yaml", fmt.Sprintf(splitTemplate, 0, 100)); err != nil {
			t.Fatal(err)
		}
		w.get(t, "users/web", cart, isFrom("cart-v2"))
		if err := w.Delete(t.Context(), "moved.yaml"); err != nil {
			t.Fatal(err)
		}
		w.get(t, "users/web", cart, isFrom("cart-v1"))
	}},
}

// share asks so many times for the cart and returns how often the pod answered.
func (w *world) share(t *testing.T, times int, pod string) int {
	t.Helper()
	web := w.pod(t, "users/web")
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: web.Dial}}
	defer client.CloseIdleConnections()
	got := 0
	for range times {
		if r, err := w.sendBy(client, request{url: cart}); err == nil && r.Status == http.StatusOK && strings.EqualFold(r.Pod, pod) {
			got++
		}
	}
	return got
}
