package behaviour

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// delay holds each packet of a pod for d, and for up to jitter more, until the test's end.
func (w *testMesh) delay(t *testing.T, pod string, d, jitter time.Duration) (end func()) {
	t.Helper()
	of := w.pod(t, pod)
	if err := of.Delay(d, jitter); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		if err := of.Delay(0, 0); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

const slowDelay, slowJitter = 100 * time.Millisecond, 100 * time.Millisecond

func testSlowNetwork(t *testing.T, w *testMesh) {
	web := w.pod(t, "users/web")
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	w.reads(t, web, "cart-v1.shop:9000", "echo\n", "echo\n")
	w.eventually(t, func() error { return w.stream(t, "users/web", "/town.Cart/Echo") })
	w.delay(t, "shop/cart-v1", slowDelay, slowJitter)
	began := time.Now()
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	if took := time.Since(began); took < 2*slowDelay {
		t.Fatalf("a request took %s: the network is not slow", took)
	}
	var calls sync.WaitGroup
	for what, call := range map[string]func() error{
		"a request": func() error {
			r, err := w.send(web, request{url: cartV1, timeout: limit})
			return errors.Join(err, isFrom("cart-v1")(r))
		},
		"a TCP connection": func() error { return w.echoes(web, 200_000) },
		"a gRPC stream":    func() error { return w.streamWithin(t, limit, "users/web", "/town.Cart/Echo") },
	} {
		for range 10 {
			calls.Go(func() {
				began := time.Now()
				if err := call(); err != nil {
					t.Errorf("%s failed after %s: %v", what, time.Since(began).Round(time.Millisecond), err)
				}
			})
		}
	}
	calls.Wait()
	w.apply(t, "slow.yaml", trafficTarget("shop/slow", "cart-v1", "{kind: HTTPRouteGroup, name: cart}", "users/thief"))
	w.get(t, "users/thief", cartV1, isFrom("cart-v1"))
	w.forget(t, "slow.yaml")
	w.denies(t, "users/thief", cartV1)
}

func testHeldInSlowNetwork(t *testing.T, w *testMesh) {
	check := w.holdAll(t)
	end := w.delay(t, "shop/cart-v1", slowDelay, slowJitter)
	check("the network is slow")
	w.changeAndBack(t, check)
	end()
	check("the network is fast again")
}
