package behaviour

import (
	"fmt"
	"net/http"
	"testing"
)

// testRoutesBesidePolicies has a route and the policies of SMI and Open Service Mesh for
// one service.
func testRoutesBesidePolicies(t *testing.T, w *testMesh) {
	setRoute := func(rule string) {
		w.set(t, "route.yaml", route("HTTPRoute", "shop", "cart", rule+"    backendRefs: [{name: cart-v1, port: 80}]\n"))
	}
	t.Cleanup(func() { w.forget(t, "route.yaml") })
	w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 0, 100))
	w.allFrom(t, "users/web", request{url: cart}, "cart-v2")
	w.apply(t, "timeout.yaml", upstream("cart", "  timeouts: {request: 500ms}\n"))
	const slow = cart + "?wait=1s"

	setRoute("  - name: plain\n")
	w.allFrom(t, "users/web", request{url: cart}, "cart-v1")
	w.expectProblem(t, "TrafficSplit shop/cart", "Conflict")
	w.get(t, "users/web", slow, isStatus(http.StatusGatewayTimeout))
	setRoute("  - timeouts: {request: 5s}\n")
	w.get(t, "users/web", slow, isFrom("cart-v1"))

	w.apply(t, "retry.yaml", retryOf("shop", "cart"))
	w.afterFailures(t, request{url: cart}, "times=2", ok)
	setRoute("  - retry: {attempts: 0}\n")
	w.afterFailures(t, request{url: cart}, "times=2", isStatus(http.StatusServiceUnavailable))

	// A route grants nothing, and the TrafficTarget for its backend is enough.
	w.get(t, "users/thief", cart, isStatus(http.StatusForbidden))
	w.get(t, "users/thief", shopCart+"/window", isFrom("cart-v1"))

	w.forget(t, "route.yaml")
	w.allFrom(t, "users/web", request{url: cart}, "cart-v2")
	w.afterFailures(t, request{url: cart}, "times=2", ok)
}
