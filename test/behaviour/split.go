package behaviour

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// split returns a TrafficSplit of a service of the namespace shop.
func split(service, backends string) string {
	return fmt.Sprintf(`---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: %[1]s, namespace: shop}
spec: {service: %[1]s, backends: [%[2]s]}
`, service, backends)
}

// testRecursiveSplit splits two services, of requests and of connections, whose own
// endpoints are among the backends.
func testRecursiveSplit(t *testing.T, w *testMesh) {
	w.apply(t, "split.yaml", split("cart", "{service: cart, weight: 1}, {service: cart-v1, weight: 1}")+split("cart-v1", "{service: cart-v1, weight: 100}"))
	// The service itself has half of the requests, and of those each pod has half. Four
	// standard deviations of a quarter of 200 are 25.
	w.sharesEventually(t, 200, "cart-v2", 25, 75)
	w.allFrom(t, "users/web", request{url: cartV1}, "cart-v1")
	if got, err := line(w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
		t.Errorf("a connection reads %q, %v", got, err)
	}
	w.denies(t, "users/thief", cart)
}

// otherPorts are services at other ports than that of cart. One has a port of the same
// name, and the other only one port.
var otherPorts = service("named", "selector: {app: cart, version: v1}, ports: [{name: tcp-echo, port: 9000}, {name: http, port: 8088, targetPort: 8080}]") +
	service("single", "selector: {app: cart, version: v2}, ports: [{name: http-web, port: 8099, targetPort: 8080}]")

// testSplitOverPorts sends all requests to one service, and then to the other.
func testSplitOverPorts(t *testing.T, w *testMesh) {
	w.apply(t, "ports.yaml", otherPorts)
	for service, pod := range map[string]string{"named": "cart-v1", "single": "cart-v2"} {
		w.apply(t, "split.yaml", split("cart", "{service: "+service+", weight: 1}"))
		w.allFrom(t, "users/web", request{url: cart}, pod)
	}
}

// stores are services with TCP ports: a root without pods, and its backends.
var stores = service("store", storePorts) +
	service("store-v1", "selector: {app: cart, version: v1}, "+storePorts) +
	service("store-v2", "selector: {app: cart, version: v2}, "+storePorts) +
	trafficTarget("shop/store-v2", "cart-v2", "{kind: TCPRoute, name: cart}", "users/web")

const storePorts = "ports: [{name: tcp-echo, port: 9000}, {name: tcp-server-first-db, port: 3306}]"

// testSplitConnections splits connections to an echo server, and to one that sends first.
func testSplitConnections(t *testing.T, w *testMesh) {
	set := func(v1, v2 int) {
		t.Helper()
		w.set(t, "split.yaml", split("store", fmt.Sprintf("{service: store-v1, weight: %d}, {service: store-v2, weight: %d}", v1, v2)))
	}
	w.apply(t, "store.yaml", stores)
	t.Cleanup(func() { w.forget(t, "split.yaml") })
	// greeted waits until cart-v2 gets at least and at most so many of the connections.
	greeted := func(times, least, most int) {
		t.Helper()
		w.eventually(t, func() error {
			v2 := 0
			for range times {
				got, err := line(w.pod(t, "users/web"), "store.shop:3306", "")
				switch {
				case err != nil:
					return fmt.Errorf("%q, %w", got, err)
				case got == "hello from cart-v2\n":
					v2++
				case got != "hello from cart-v1\n":
					return fmt.Errorf("the greeting is %q", got)
				}
			}
			if v2 < least || v2 > most {
				return fmt.Errorf("cart-v2 got %d of %d connections, want %d to %d", v2, times, least, most)
			}
			return nil
		})
	}
	set(3, 1)
	// Four standard deviations of a quarter of 100 are 18.
	greeted(100, 7, 43)
	for _, pod := range []string{"cart-v1", "cart-v2"} {
		app := w.apps["shop/"+pod]
		before := app.count(echoes)
		w.eventually(t, func() error {
			got, err := line(w.pod(t, "users/web"), "store.shop:9000", "echo\n")
			if err != nil || got != "echo\n" || app.count(echoes) == before {
				return fmt.Errorf("%q, %v, want that %s gets a connection", got, err, pod)
			}
			return nil
		})
	}
	set(0, 1)
	greeted(20, 20, 20)
	w.apply(t, "route.yaml", atPort(route("TCPRoute", "shop", "store", "  - backendRefs: [{name: store-v1, port: 3306}]\n"), 3306))
	greeted(20, 0, 0)
	w.expectProblem(t, "TrafficSplit shop/store", "Conflict")
	w.closes(t, "users/thief", "store.shop:3306", "")
	w.closes(t, "users/thief", "store.shop:9000", "echo\n")
}

// testSplitGrantsNothing has the thief, who may call one of two backends, call their root.
func testSplitGrantsNothing(t *testing.T, w *testMesh) {
	const url = shopCart + "/window"
	w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 1, 1))
	w.eventually(t, func() error {
		passed, failed := 0, 0
		for range 60 {
			switch r, err := w.send(w.pod(t, "users/thief"), request{url: url}); {
			case err != nil:
				return err
			case r.Status >= 400:
				failed++
			case r.Pod != "cart-v1":
				t.Fatalf("%s answers", r.Pod)
			default:
				passed++
			}
		}
		// Four standard deviations of a half of 60 are 16.
		if passed < 14 || failed < 14 {
			return fmt.Errorf("of 60 requests %d passed and %d failed, want 30 and 30", passed, failed)
		}
		return nil
	})
	w.set(t, "split.yaml", fmt.Sprintf(splitTemplate, 1, 0))
	w.inTurn(t, 20, "users/thief", request{url: url}, isFrom("cart-v1"))
}

// empty is a service whose selector selects nothing.
var empty = service("empty", "selector: {app: nobody}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-echo, port: 9000}]")

// testNoEndpoints gives a split's backend without endpoints a share, and then everything.
func testNoEndpoints(t *testing.T, w *testMesh) {
	set := func(backends string) { w.set(t, "split.yaml", split("cart-v1", backends)) }
	w.apply(t, "empty.yaml", empty)
	t.Cleanup(func() { w.forget(t, "split.yaml") })
	set("{service: cart-v1, weight: 1}, {service: empty, weight: 1}")
	w.eventually(t, func() error {
		passed, failed := 0, 0
		for range 60 {
			began := time.Now()
			r, err := w.send(w.pod(t, "users/web"), request{url: cartV1})
			switch took := time.Since(began); {
			case err != nil:
				return err
			case took > 2*time.Second:
				return fmt.Errorf("a request got %d after %s", r.Status, took)
			case r.Status == http.StatusServiceUnavailable:
				failed++
			case r.Status == http.StatusOK:
				passed++
			}
		}
		if passed < 14 || failed < 14 || passed+failed < 60 {
			return fmt.Errorf("of 60 requests %d passed and %d got 503, want 30 and 30", passed, failed)
		}
		return nil
	})
	set("{service: empty, weight: 1}")
	w.get(t, "users/web", cartV1, isStatus(http.StatusServiceUnavailable))
	w.closes(t, "users/web", "cart-v1.shop:9000", "echo\n")
	w.get(t, "users/web", cartV2, isFrom("cart-v2"))
}
