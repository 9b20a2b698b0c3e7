package behaviour

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// gatewayTemplate is a gateway of the namespace users with listeners, and its pod of a class.
const gatewayTemplate = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: outrigger-%[1]s}
spec: {controllerName: outrigger.openservicemesh.io/controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[2]s, namespace: users}
spec:
  gatewayClassName: outrigger-%[1]s
  listeners:%[3]s
---
apiVersion: v1
kind: Pod
metadata: {name: %[2]s, namespace: users, labels: {gateway.networking.k8s.io/gateway-name: %[2]s}}
spec:
  serviceAccountName: %[2]s
  containers: [{name: outrigger-proxy, image: auto}]
`

// doorListeners are those of a gateway for requests, and doorRoutes its routes to services of the servers.
// doorTarget allows the gateway to call one of them.
const doorListeners = `
  - {name: any, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: own, port: 80, protocol: HTTP, hostname: "*.own.example.com", allowedRoutes: {namespaces: {from: All}}}
  - {name: closed, port: 80, protocol: HTTP, hostname: closed.example.com}
  - {name: other, port: 8888, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}`

const doorTarget = `
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: door, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart-v1, namespace: shop}
  sources: [{kind: ServiceAccount, name: door, namespace: users}]
  rules: [{kind: HTTPRouteGroup, name: door, matches: [all]}]
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: door, namespace: shop}
spec: {matches: [{name: all, pathRegex: ".*", methods: ["*"]}]}
`

const doorRoutes = doorTarget + `
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: public, namespace: shop}
spec:
  parentRefs: [{name: door, namespace: users, sectionName: any, port: 80}]
  hostnames: [shop.example.com, "*.example.com"]
  rules:
  - matches: [{path: {value: /cart}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /forbidden}}]
    backendRefs: [{name: cart-v2, port: 80}]
  - matches: [{path: {value: /moved}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: other.example.com}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: shop}
spec:
  parentRefs: [{name: door, namespace: users, sectionName: own}]
  rules:
  - matches: [{path: {value: /own}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /cart}}}]
    backendRefs: [{name: cart-v1, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: other, namespace: shop}
spec:
  parentRefs: [{name: door, namespace: users, sectionName: other}]
  rules: [{backendRefs: [{name: cart-v1, port: 80}]}]
`

// testDoor calls a gateway from outside the mesh.
func testDoor(t *testing.T, w *testMesh) {
	manifest := fmt.Sprintf(gatewayTemplate, w.Client, "door", doorListeners) + doorRoutes
	w.apply(t, "door.yaml", manifest)
	door := w.pod(t, "users/door")
	outsider := w.pod(t, "plain/outsider")
	at := func(port string) string { return net.JoinHostPort(door.Addresses()[0].String(), port) }
	const spoofed = "spiffe://cluster.local/ns/users/sa/web"
	ask := func(port, host, path string) (reply, error) {
		return w.send(outsider, request{url: "http://" + at(port) + path, host: host, header: http.Header{
			"X-Forwarded-For": {"192.0.2.9"}, "X-Forwarded-Client-Cert": {"URI=" + spoofed}, "X-Outrigger-Upstream": {"forged"},
		}})
	}
	notFound := isStatus(http.StatusNotFound)
	for _, tt := range []struct {
		port, host, path string
		want             func(reply) error
	}{
		{"80", "shop.example.com", "/cart", isFrom("cart-v1")},
		{"80", "SHOP.example.com:80", "/cart/a?b=c", isFrom("cart-v1")},
		{"80", "shop.example.com.", "/cart", isFrom("cart-v1")},
		{"80", "a.b.example.com", "/cart", isFrom("cart-v1")},
		{"80", "shop.example.com", "/cartoon", notFound},
		{"80", "example.com", "/cart", notFound},
		{"80", "shop.example.com", "/forbidden", isStatus(http.StatusForbidden)},
		// The listener with the closer host takes the request, even if it has no route for it.
		{"80", "a.own.example.com", "/own", isFrom("cart-v1")},
		{"80", "a.own.example.com", "/cart", notFound},
		{"80", "closed.example.com", "/cart", notFound},
		{"8888", "whatever", "/cart", isFrom("cart-v1")},
	} {
		w.repeat(t, tt.host+":"+tt.port+tt.path, tt.want, func() (reply, error) { return ask(tt.port, tt.host, tt.path) })
	}
	moved, err := ask("80", "shop.example.com", "/moved/a")
	if err != nil || moved.Header.Get("Location") != "http://other.example.com/moved/a" {
		t.Errorf("a redirect gives %v, %v", moved.Header, err)
	}
	r, err := ask("80", "shop.example.com", "/cart")
	if err != nil {
		t.Fatal(err)
	}
	if caller := strings.Join(r.answer.Header.Values("X-Forwarded-Client-Cert"), ","); strings.Contains(caller, spoofed) || !strings.Contains(caller, "spiffe://cluster.local/ns/users/sa/door") {
		t.Errorf("the application takes the caller for %q, want the gateway", caller)
	}
	if got := r.answer.Header.Values("X-Forwarded-For"); !strings.HasSuffix(strings.Join(got, ","), outsider.Addresses()[0].String()) {
		t.Errorf("the application gets the x-forwarded-for %q, want that it ends with the client's address", got)
	}
	if got := r.answer.Header.Get("X-Outrigger-Upstream"); got != "" {
		t.Errorf("a client's x-outrigger-upstream arrives: %q", got)
	}
	w.refusesAt(t, outsider, at("15001"))
	w.refusesAt(t, outsider, at("15003"))
	w.set(t, "door.yaml", strings.Replace(manifest, "[shop.example.com, ", "[", 1))
	w.repeat(t, "a host that the route has lost, but its wildcard has", isFrom("cart-v1"), func() (reply, error) { return ask("80", "shop.example.com", "/cart") })
	w.set(t, "door.yaml", strings.Replace(manifest, "[shop.example.com, \"*.example.com\"]", "[other.example.com]", 1))
	w.repeat(t, "a host that the route has lost", notFound, func() (reply, error) { return ask("80", "shop.example.com", "/cart") })
}

// hatchRoutes lets requests of a gateway for a part of the paths pass, of which the server allows all.
const hatchRoutes = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hatch, namespace: users}
spec:
  parentRefs: [{name: hatch}]
  hostnames: [cart-v1.shop]
  rules: [{matches: [{path: {value: /cart}}], backendRefs: [{name: cart-v1, namespace: shop, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: hatch, namespace: shop}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: users}], to: [{group: "", kind: Service}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: hatch, namespace: shop}
spec: {matches: [{name: all, pathRegex: ".*", methods: ["*"]}]}
`

// testHatch sends requests from outside the mesh that contain one for which the gateway has no route.
func testHatch(t *testing.T, w *testMesh) {
	w.apply(t, "hatch.yaml", fmt.Sprintf(gatewayTemplate, w.Client, "hatch", "\n  - {name: http, port: 80, protocol: HTTP}")+hatchRoutes+
		trafficTarget("shop/hatch", "cart-v1", "{kind: HTTPRouteGroup, name: hatch, matches: [all]}", "users/hatch"))
	outsider, at := w.pod(t, "plain/outsider"), w.address(t, "users/hatch", "80")
	answers := func(what string) {
		w.repeat(t, what, isFrom("cart-v1"), func() (reply, error) {
			return w.send(outsider, request{url: "http://" + at + "/cart", host: "cart-v1.shop"})
		})
	}
	answers("a request")
	dial := func(ctx context.Context) (net.Conn, error) { return outsider.Dial(ctx, "tcp", at) }
	before := w.apps["shop/cart-v1"].count("/cart/plain")
	w.eventually(t, func() error {
		sendOdd(t, []odd{{"HTTP/2", streamOf("", ":method", "GET", ":scheme", "http", ":authority", "cart-v1.shop", ":path", "/cart/plain")}}, dial)
		if w.apps["shop/cart-v1"].count("/cart/plain") == before {
			return errors.New("a request of HTTP/2 does not arrive")
		}
		return nil
	})
	before = w.apps["shop/cart-v1"].count("/hidden")
	sendOdd(t, slices.Concat(w.sample(oddRequests()), knownAttacks(), downgrades()), dial)
	answers("a request after odd ones")
	if n := w.apps["shop/cart-v1"].count("/hidden") - before; n != 0 {
		t.Errorf("the application got %d requests that the gateway has no route for", n)
	}
}

// refusesAt fails the test if somebody listens at an address.
func (w *testMesh) refusesAt(t *testing.T, from *lab.Pod, address string) {
	t.Helper()
	if conn, err := from.Dial(t.Context(), "tcp", address); err == nil {
		conn.Close()
		t.Errorf("the gateway listens at %s", address)
	}
}

// lockListeners are those of a gateway for connections, and lockRoutes its routes.
const lockListeners = `
  - {name: tcp, port: 9999, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}
  - {name: none, port: 9998, protocol: TCP}
  - {name: tls, port: 443, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}`

const lockRoutes = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: lock, namespace: shop}
spec:
  parentRefs: [{name: lock, namespace: users, sectionName: tcp}]
  rules: [{backendRefs: [{name: cart-v1, port: 9000}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: lock, namespace: shop}
spec:
  parentRefs: [{name: lock, namespace: users, sectionName: tls}]
  hostnames: [own.example.com, other.example.org]
  rules: [{backendRefs: [{name: cart-v1, port: 8443}]}]
`

// testLock connects through a gateway from outside the mesh.
func testLock(t *testing.T, w *testMesh) {
	w.apply(t, "lock.yaml", fmt.Sprintf(gatewayTemplate, w.Client, "lock", lockListeners)+lockRoutes+
		trafficTarget("shop/lock", "cart-v1", "{kind: TCPRoute, name: cart}", "users/lock"))
	outsider := w.pod(t, "plain/outsider")
	at := func(port string) string { return w.address(t, "users/lock", port) }
	w.reads(t, outsider, at("9999"), "echo\n", "echo\n")
	w.closes(t, "plain/outsider", at("9998"), "echo\n")
	for _, spelled := range []string{"own.example.com", "OWN.example.com."} {
		w.eventually(t, func() error { return greets(outsider, at("443"), spelled) })
	}
	for _, other := range []string{"other.example.com", "other.example.org", "example.com"} {
		if err := greets(outsider, at("443"), other); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the server name %s is answered (%v)", other, err)
		}
	}
	w.closes(t, "plain/outsider", at("443"), "GET / HTTP/1.1\r\nHost: own.example.com\r\n\r\n")
}
