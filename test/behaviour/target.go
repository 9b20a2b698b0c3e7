package behaviour

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// trafficTarget returns a TrafficTarget, NAMESPACE/NAME, that allows its sources, of the form
// NAMESPACE/ACCOUNT, the rules at pods of a service account of the namespace shop.
func trafficTarget(name, account, rules string, sources ...string) string {
	namespace, name, _ := strings.Cut(name, "/")
	callers := make([]string, len(sources))
	for i, source := range sources {
		namespace, account, _ := strings.Cut(source, "/")
		callers[i] = "{kind: ServiceAccount, name: " + account + ", namespace: " + namespace + "}"
	}
	return fmt.Sprintf(`---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: %s, namespace: %s}
spec:
  destination: {kind: ServiceAccount, name: %s, namespace: shop}
  sources: [%s]
  rules: [%s]
`, name, namespace, account, strings.Join(callers, ", "), rules)
}

// routeGroup returns an HTTPRouteGroup, NAMESPACE/NAME, with a list of matches.
func routeGroup(name, matches string) string {
	namespace, name, _ := strings.Cut(name, "/")
	return fmt.Sprintf(`---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: %s, namespace: %s}
spec:
  matches:%s
`, name, namespace, matches)
}

// tcpRoute returns a TCPRoute of the namespace shop.
func tcpRoute(name, ports string) string {
	return fmt.Sprintf(`---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: %s, namespace: shop}
spec: {matches: {ports: %s}}
`, name, ports)
}

// shelf are routes that several TrafficTargets allow in part.
var shelf = routeGroup("shop/shelf", `
  - {name: browse, pathRegex: "/shelf/.*", methods: ["*"]}
  - {name: count, pathRegex: /count, methods: [GET]}
  - {name: close, pathRegex: /close, methods: [GET]}
`) + tcpRoute("every", "[]")

// testSeveralTargets adds two TrafficTargets for the thief to that of the policies, and
// deletes one of them.
func testSeveralTargets(t *testing.T, w *testMesh) {
	w.apply(t, "shelf.yaml", shelf)
	w.apply(t, "browse.yaml", trafficTarget("shop/browse", "cart-v1", "{kind: HTTPRouteGroup, name: shelf, matches: [browse]}", "users/thief"))
	w.apply(t, "count.yaml", trafficTarget("shop/count", "cart-v1", "{kind: HTTPRouteGroup, name: shelf, matches: [count]}", "users/thief"))
	const server = "http://cart-v1.shop"
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPatch} {
		w.ask(t, "users/thief", request{method: method, url: server + "/shelf/a"}, isFrom("cart-v1"))
	}
	for _, path := range []string{"/count", "/window"} {
		w.get(t, "users/thief", server+path, isFrom("cart-v1"))
	}
	w.get(t, "users/thief", server+"/close", isStatus(http.StatusForbidden))
	w.forget(t, "browse.yaml")
	w.get(t, "users/thief", server+"/shelf/a", isStatus(http.StatusForbidden))
	for _, path := range []string{"/count", "/window"} {
		w.get(t, "users/thief", server+path, isFrom("cart-v1"))
	}
}

// testTCPRouteAlone allows the thief all TCP ports of a pod, but no request.
func testTCPRouteAlone(t *testing.T, w *testMesh) {
	w.apply(t, "shelf.yaml", shelf)
	w.closes(t, "users/thief", "cart-v1.shop:9000", "echo\n")
	w.apply(t, "every.yaml", trafficTarget("shop/every", "cart-v1", "{kind: TCPRoute, name: every}", "users/thief"))
	w.reads(t, w.pod(t, "users/thief"), "cart-v1.shop:9000", "echo\n", "echo\n")
	w.get(t, "users/thief", cartV1, isStatus(http.StatusForbidden))
}

// testOtherNamespace grants the same access in the source's and in the destination's
// namespace.
func testOtherNamespace(t *testing.T, w *testMesh) {
	w.apply(t, "shelf.yaml", shelf+strings.ReplaceAll(shelf, "namespace: shop", "namespace: users"))
	target := func(namespace string) string {
		return trafficTarget(namespace+"/own", "cart-v2", "{kind: HTTPRouteGroup, name: shelf}", "users/thief")
	}
	const url = "http://cart-v2.shop/count"
	w.apply(t, "target.yaml", target("shop"))
	w.get(t, "users/thief", url, isFrom("cart-v2"))
	w.set(t, "target.yaml", target("users"))
	w.denies(t, "users/thief", url)
	w.expectProblem(t, "TrafficTarget users/own", "OtherNamespace")
	thief := w.meshTLSOf(t, w.certificate(t, thiefIdentity))
	thief.ServerName = "cart-v2.shop.sa.cluster.local"
	w.repeat(t, "past the thief's proxy", isStatus(http.StatusForbidden), func() (reply, error) {
		return w.directly(t, "shop/cart-v2", thief, 1, "/count", nil)
	})
}

// testPermissiveMode switches permissive mode on and off. mTLS stays strict.
func testPermissiveMode(t *testing.T, w *testMesh) {
	denied := func() {
		t.Helper()
		w.denies(t, "users/thief", cartV2)
		// All threads of the proxy must follow, for the next rows.
		w.inTurn(t, 5, "users/thief", request{url: cartV1}, isStatus(http.StatusForbidden))
		w.closes(t, "users/thief", "cart-v1.shop:9000", "echo\n")
	}
	denied()
	w.configure(t, "", "")
	w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 0, 100))
	w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "PolicyMode: false", "PolicyMode: true", 1))
	for _, url := range []string{cart, cartV2 + "/anything"} {
		w.get(t, "users/thief", url, isFrom("cart-v2"))
	}
	w.ask(t, "users/thief", request{method: http.MethodDelete, url: cartV1}, isFrom("cart-v1"))
	w.reads(t, w.pod(t, "users/thief"), "cart-v1.shop:9000", "echo\n", "echo\n")
	address := w.address(t, "shop/cart-v1", "8080")
	if r, err := w.send(w.pod(t, "plain/outsider"), request{url: "http://" + address + "/cart"}); err == nil {
		t.Errorf("a pod without a sidecar gets %d", r.Status)
	}
	w.set(t, "mesh.yaml", meshConfig("", ""))
	denied()
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
}

// expectProblem waits until the controller reports a Problem of the object, "KIND
// NAMESPACE/NAME", with the reason.
func (w *testMesh) expectProblem(t *testing.T, object, reason string) {
	t.Helper()
	w.eventually(t, func() error {
		text, err := w.Debug(t.Context(), "/debug/problems")
		if err != nil {
			return err
		}
		var problems []mesh.Problem
		if err := json.Unmarshal(text, &problems); err != nil {
			return fmt.Errorf("reading /debug/problems: %w", err)
		}
		for _, p := range problems {
			if p.Object.String() == object && p.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("no Problem of %s has the reason %s: %s", object, reason, text)
	})
}
