package behaviour

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// gateway is the table of Gateway API's routes.
var gateway = []Row{
	{"HTTPRoute: matches", "Requests go to the backend of the most specific match by path, method, header and query, and get 404 if none matches.", ofClient(mesh.FeatureHeaderMatches, mesh.FeatureQueryMatches), testHTTPRouteMatches},
	{"HTTPRoute: weights", "Requests are distributed by weight, and the share of a backend that does not exist gets 500.", ofEvery, testHTTPRouteWeights},
	{"HTTPRoute: headers", "A rule and its backends set, add and remove headers of requests and responses.", ofClient(mesh.FeatureHeaderChanges), testHTTPRouteHeaders},
	{"HTTPRoute: rewrites", "The server sees the rewritten host and path, and the query as it was.", ofClient(mesh.FeatureRewrites), testHTTPRouteRewrites},
	{"HTTPRoute: redirects", "Redirects are answered without asking the server, with the whole Location and the headers of the rule.", ofClient(mesh.FeatureRedirects), testHTTPRouteRedirects},
	{"HTTPRoute: CORS", "Preflight requests are answered without asking the server, and answers and redirects have the headers of the filter, both for the allowed origins only.", ofClient(mesh.FeatureCORS), testCORS},
	{"HTTPRoute: mirrors", "A share of the requests is copied to another service, with their headers and bodies; the client gets the backend's answers only.", ofClient(mesh.FeatureMirrors), testMirrors},
	{"HTTPRoute: timeout", "A request that takes longer than the rule's timeout gets 504.", ofClient(mesh.FeatureTimeouts), testHTTPRouteTimeout},
	{"HTTPRoute: retries", "Requests with one of the rule's status codes are retried, and tries that take too long; other status codes are not, and none with 0 attempts.", ofClient(mesh.FeatureRetries, mesh.FeatureTimeouts), testHTTPRouteRetries},
	{"HTTPRoute: retries of any status code", "Requests are retried on status codes below 500, after the rule's backoff.", ofClient(mesh.FeatureRetries, mesh.FeatureRetryCodes, mesh.FeatureRetryBackoff), testHTTPRouteRetryCodes},
	{"HTTPRoute: sessions by cookie", "Requests with the cookie of an answer go to the endpoint that has answered. A forged or expired cookie, and one of an endpoint that is gone, begins another session at an endpoint of the route.", ofClient(mesh.FeatureSessionPersistence), testCookieSessions},
	{"HTTPRoute: sessions by header", "Requests with the header of an answer go to the endpoint that has answered, whichever backend it belongs to, even when that has the weight 0.", ofClient(mesh.FeatureSessionPersistence), testHeaderSessions},
	{"HTTPRoute of the client's namespace", "A consumer route applies instead of the producer's, and only to clients of its namespace.", ofEvery, testConsumerRoute},
	{"A route beside other policies", "A route replaces the TrafficSplit of its service. A Retry and the service's timeout apply to its rules without retries and timeouts of their own.", ofClient(mesh.FeatureRetries, mesh.FeatureTimeouts), testRoutesBesidePolicies},
	{"A routed service's pods", "A request to the address of a pod is not governed by the routes of its service, and needs the same permission.", ofEvery, testRoutedPod},
	{"GRPCRoute", "Calls are routed by service and method before any HTTPRoute is asked; a call that no rule matches is UNIMPLEMENTED.", ofBoth(mesh.FeatureHTTP2), testGRPCRoute},
	{"TCPRoute", "Connections are distributed by weight, and the share of a backend that does not exist is closed.", ofEvery, testGatewayTCPRoute},
	{"TLSRoute", "Connections with the application's own TLS are routed by server name; those with another name, or without TLS, are closed.", ofClient(mesh.FeatureServerNames), testTLSRoute},
	{"ReferenceGrant", "A backend in a third namespace is called only as long as a ReferenceGrant there permits it.", ofEvery, testReferenceGrant},
}

// route returns a route of a kind for the service cart-v1 or another one, with the rules.
func route(kind, namespace, service, rules string) string {
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: %s
metadata: {name: %s, namespace: %s}
spec:
  parentRefs: [{group: "", kind: Service, name: %s, namespace: shop}]
  rules:
%s`, kind, service, namespace, service, rules)
}

func testHTTPRouteMatches(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - matches: [{path: {type: PathPrefix, value: /cart/}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {type: Exact, value: /cart/one}}]
    backendRefs: [{name: cart-v2, port: 80}]
  - matches: [{path: {value: /cart}, headers: [{name: X-Version, value: two}]}]
    backendRefs: [{name: cart-v2, port: 80}]
  - matches: [{path: {value: /cart}, queryParams: [{name: version, type: RegularExpression, value: "2+"}]}]
    backendRefs: [{name: cart-v2, port: 80}]
`))
	for _, tt := range []struct {
		path, version, pod string
	}{
		{"/cart/one", "", "cart-v2"},
		{"/cart/one/more", "", "cart-v1"},
		{"/cart", "", "cart-v1"},
		{"/cart?version=22", "", "cart-v2"},
		{"/cart?version=23", "", "cart-v1"},
		{"/cart", "two", "cart-v2"},
		{"/cart", "three", "cart-v1"},
	} {
		w.allFrom(t, "users/web", request{url: shopCart + tt.path, header: http.Header{"X-Version": {tt.version}}}, tt.pod)
	}
	w.get(t, "users/web", shopCart+"/cartoon", isStatus(http.StatusNotFound))
}

// shopCart is the URL of the service cart, and allFrom waits until several requests in a row
// are answered by the pod: without a route, the service sends some to each of its pods.
const shopCart = "http://cart.shop"

func (w *testMesh) allFrom(t *testing.T, from string, r request, pod string) {
	t.Helper()
	w.inTurn(t, 8, from, r, isFrom(pod))
}

func testHTTPRouteWeights(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - backendRefs:
    - {name: cart-v1, port: 80, weight: 1}
    - {name: cart-v2, port: 80, weight: 2}
    - {name: nowhere, port: 80, weight: 1}
`))
	statuses := func(n int) (v1, v2, failed int) {
		for range n {
			switch r, err := w.send(w.pod(t, "users/web"), request{url: cart}); {
			case err != nil:
				t.Fatal(err)
			case r.Status == http.StatusInternalServerError:
				failed++
			case r.Pod == "cart-v1":
				v1++
			case r.Pod == "cart-v2":
				v2++
			default:
				t.Fatalf("the status is %d: %.200s", r.Status, r.Body)
			}
		}
		return v1, v2, failed
	}
	w.eventually(t, func() error {
		if _, _, failed := statuses(20); failed == 0 {
			return errors.New("no request is answered with 500")
		}
		return nil
	})
	// Four standard deviations of a quarter of 400 are 35, and of a half 40.
	if v1, v2, failed := statuses(400); v1 < 65 || v1 > 135 || v2 < 160 || v2 > 240 || failed < 65 || failed > 135 {
		t.Errorf("of 400 requests cart-v1 got %d, cart-v2 %d and nobody %d; want 100, 200 and 100", v1, v2, failed)
	}
}

func testHTTPRouteHeaders(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - matches: [{path: {value: /cart/set}}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Only, value: set}]}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /cart/add}}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: X-Only, value: add}]}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /cart/remove}}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [X-Other]}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: X-Set, value: "100% 'new'"}, {name: X-Both, value: rule}]
        add: [{name: X-Add, value: more}]
        remove: [X-Remove]
    - type: ResponseHeaderModifier
      responseHeaderModifier:
        set: [{name: X-Mesh, value: response}]
        add: [{name: X-Answer, value: more}]
        remove: [Content-Type]
    backendRefs:
    - name: cart-v1
      port: 80
      filters:
      - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Both, value: backend}], add: [{name: X-Backend, value: v1}]}}
`))
	r := w.ask(t, "users/web", request{url: cart, header: http.Header{
		"X-Set": {"old"}, "X-Both": {"client"}, "X-Add": {"first"}, "X-Remove": {"gone"},
	}}, func(r reply) error {
		if r.answer.Header.Get("X-Backend") != "v1" {
			return fmt.Errorf("the headers are %v, with status %d", r.answer.Header, r.Status)
		}
		return nil
	})
	want := map[string]string{"X-Set": "100% 'new'", "X-Both": "backend", "X-Add": "first,more", "X-Remove": "", "X-Backend": "v1"}
	for name, value := range want {
		if got := strings.ReplaceAll(strings.Join(r.answer.Header[name], ","), ", ", ","); got != value {
			t.Errorf("the server got %s: %q, want %q", name, got, value)
		}
	}
	for change, want := range map[string]string{"set": "set other", "add": "add other", "remove": " "} {
		alone, err := w.send(w.pod(t, "users/web"), request{url: cart + "/" + change, header: http.Header{"X-Other": {"other"}}})
		if got := alone.answer.Header.Get("X-Only") + " " + alone.answer.Header.Get("X-Other"); err != nil || got != want {
			t.Errorf("with the change %s alone the server got %q, %v; want %q", change, got, err, want)
		}
	}
	for name, value := range map[string]string{"X-Mesh": "response", "X-Answer": "more", "Content-Type": ""} {
		if got := strings.Join(r.Header[name], ","); got != value {
			t.Errorf("the client got %s: %q, want %q", name, got, value)
		}
	}
}

func testHTTPRouteRewrites(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - matches: [{path: {value: /old}}]
    filters: [{type: URLRewrite, urlRewrite: {hostname: new.example.com, path: {type: ReplacePrefixMatch, replacePrefixMatch: /cart/}}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /strip}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /cart}}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /full}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /cart/all}}}]
    backendRefs: [{name: cart-v1, port: 80}]
`))
	sees := func(target string) func(reply) error {
		return func(r reply) error {
			if r.Status != http.StatusOK || r.Target != target {
				return fmt.Errorf("the server saw %q, with status %d; want %q: %.200s", r.Target, r.Status, target, r.Body)
			}
			return nil
		}
	}
	for path, target := range map[string]string{
		"/old": "/cart", "/old/": "/cart/", "/old/a?b=/old": "/cart/a?b=/old",
		"/strip/cart/a": "/cart/a", "/other/a": "/cart/other/a", "/full/a?b=c": "/cart/all?b=c",
	} {
		w.get(t, "users/web", shopCart+path, sees(target))
	}
	r := w.get(t, "users/web", shopCart+"/old/a", ok)
	if r.Host != "new.example.com" {
		t.Errorf("the server saw the host %q, want new.example.com", r.Host)
	}
}

func testHTTPRouteRedirects(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - matches: [{path: {value: /host}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: example.org, statusCode: 301}}]
  - matches: [{path: {value: /scheme}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 308}}]
  - matches: [{path: {value: /port}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: example.org, port: 8080}}]
  - matches: [{path: {value: /prefix}}]
    filters: [{type: RequestRedirect, requestRedirect: {statusCode: 307, path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
  - matches: [{path: {value: /strip}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]
  - matches: [{path: {value: /full}}]
    filters:
    - {type: RequestRedirect, requestRedirect: {statusCode: 303, path: {type: ReplaceFullPath, replaceFullPath: /all}}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: Strict-Transport-Security, value: max-age=60}], add: [{name: X-Moved, value: "by 'route' 100%"}]}}
  - backendRefs: [{name: cart-v1, port: 80}]
`))
	for path, want := range map[string]string{
		"/host/a?b=c": "301 http://example.org/host/a?b=c",
		"/scheme":     "308 https://cart.shop/scheme",
		"/port":       "302 http://example.org:8080/port",
		"/prefix":     "307 http://cart.shop/new",
		"/prefix/a":   "307 http://cart.shop/new/a",
		"/strip/a":    "302 http://cart.shop/a",
		"/strip":      "302 http://cart.shop/",
		"/full/a?b=c": "303 http://cart.shop/all?b=c",
	} {
		w.ask(t, "users/web", request{url: shopCart + path, host: "cart.shop"}, func(r reply) error {
			if got := fmt.Sprintf("%d %s", r.Status, r.Header.Get("Location")); got != want {
				return fmt.Errorf("the answer is %q, want %q", got, want)
			}
			return nil
		})
	}
	w.ask(t, "users/web", request{url: shopCart + "/full", host: "cart.shop"}, func(r reply) error {
		if moved, security := r.Header.Get("X-Moved"), r.Header.Get("Strict-Transport-Security"); moved != "by 'route' 100%" || security != "max-age=60" {
			return fmt.Errorf("the redirect has the headers %q and %q of the route", moved, security)
		}
		return nil
	})
	w.allFrom(t, "users/web", request{url: cart}, "cart-v1")
}

func testMirrors(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - matches: [{path: {value: /cart/items}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: cart-v2, port: 80}}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - filters: [{type: RequestMirror, requestMirror: {backendRef: {name: cart-v2, port: 80}, percent: 25}}]
    backendRefs: [{name: cart-v1, port: 80}]
`))
	put := request{method: http.MethodPut, url: shopCart + "/cart/items", host: "cart.example.com", body: "two apples"}
	copies := w.apps["shop/cart-v2"]
	const asSent = "/cart/items cart.example.com two apples"
	before := copies.count(asSent)
	w.eventually(t, func() error {
		// Without the route, the service sends some to cart-v2.
		r, err := w.send(w.pod(t, "users/web"), put)
		if n := copies.count(asSent); err != nil || isFrom("cart-v1")(r) != nil || n == before {
			before = n
			return fmt.Errorf("the status is %d from %s, with %d copies, %v", r.Status, r.Pod, n, err)
		}
		return nil
	})
	before = copies.count(asSent)
	for range 20 {
		r, err := w.send(w.pod(t, "users/web"), put)
		if err != nil || isFrom("cart-v1")(r) != nil {
			t.Fatalf("the status is %d from %s, %v", r.Status, r.Pod, err)
		}
	}
	w.eventually(t, func() error {
		if n := copies.count(asSent) - before; n < 20 {
			return fmt.Errorf("of 20 requests %d were copied with their host and body", n)
		}
		return nil
	})
	before = copies.count("/cart/some")
	for range 200 {
		if _, err := w.send(w.pod(t, "users/web"), request{url: shopCart + "/cart/some"}); err != nil {
			t.Fatal(err)
		}
	}
	// Four standard deviations of a quarter of 200 are 25.
	w.eventually(t, func() error {
		if n := copies.count("/cart/some") - before; n < 25 || n > 75 {
			return fmt.Errorf("of 200 requests %d were copied, want 50", n)
		}
		return nil
	})
}

func testHTTPRouteTimeout(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - timeouts: {request: 300ms}
    backendRefs: [{name: cart-v1, port: 80}]
`))
	w.get(t, "users/web", cart+"?wait=3s", isStatus(http.StatusGatewayTimeout))
	w.allFrom(t, "users/web", request{url: cart}, "cart-v1")
}

func testConsumerRoute(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - backendRefs: [{name: cart-v1, port: 80}]
`))
	w.apply(t, "consumer.yaml", route("HTTPRoute", "users", "cart", `
  - matches: [{path: {value: /cart}}]
    backendRefs: [{name: cart-v2, namespace: shop, port: 80}]
`))
	w.get(t, "users/web", shopCart+"/other", isStatus(http.StatusNotFound))
	w.allFrom(t, "users/web", request{url: cart}, "cart-v2")
	w.allFrom(t, "shop/cart-v1", request{url: cart}, "cart-v1")
}

func testRoutedPod(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart", `
  - matches: [{path: {value: /other}}]
    backendRefs: [{name: cart-v2, port: 80}]
`))
	w.get(t, "users/web", cart, isStatus(http.StatusNotFound))
	pod := "http://" + w.address(t, "shop/cart-v1", "8080") + "/cart"
	w.get(t, "users/web", pod, isFrom("cart-v1"))
	w.get(t, "users/thief", pod, isStatus(http.StatusForbidden))
}

func testGRPCRoute(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", route("HTTPRoute", "shop", "cart-v1", `
  - backendRefs: [{name: nowhere, port: 50051}]
`)+"---"+atPort(route("GRPCRoute", "shop", "cart-v1", `
  - matches: [{method: {service: town.Cart, method: Watch}}]
    backendRefs: [{name: cart-v1, port: 50051}]
`), 50051))
	w.eventually(t, func() error { return w.stream(t, "users/web", "/town.Cart/Watch") })
	w.eventually(t, func() error {
		if err := w.stream(t, "users/web", "/town.Cart/Other"); err == nil || !strings.Contains(err.Error(), "Unimplemented") {
			return fmt.Errorf("a call that no rule matches ends with %v, want Unimplemented", err)
		}
		return nil
	})
}

// atPort returns the route with a port of its parent.
func atPort(route string, port int) string {
	return strings.Replace(route, "namespace: shop}]", fmt.Sprintf("namespace: shop, port: %d}]", port), 1)
}

func testGatewayTCPRoute(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", atPort(route("TCPRoute", "shop", "cart-v1", `
  - backendRefs:
    - {name: cart-v1, port: 9000, weight: 3}
    - {name: nowhere, port: 9000, weight: 1}
`), 9000))
	connections := func(n int) (passed, closed int) {
		for range n {
			switch got, err := line(w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n"); {
			case err == nil && got == "echo\n":
				passed++
			case isClosed(err) && got == "":
				closed++
			default:
				t.Fatalf("a connection reads %q, %v", got, err)
			}
		}
		return passed, closed
	}
	w.eventually(t, func() error {
		if _, closed := connections(20); closed == 0 {
			return errors.New("no connection is closed")
		}
		return nil
	})
	// Four standard deviations of a quarter of 200 are 25.
	if passed, closed := connections(200); closed < 25 || closed > 75 {
		t.Errorf("of 200 connections %d passed and %d were closed; want 150 and 50", passed, closed)
	}
	w.closes(t, "users/thief", "cart-v1.shop:9000", "echo\n")
}

func testTLSRoute(t *testing.T, w *testMesh) {
	w.apply(t, "route.yaml", strings.Replace(atPort(route("TLSRoute", "shop", "cart-v1", `
  - backendRefs: [{name: cart-v1, port: 8443}]
`), 8443), "spec:", "spec:\n  hostnames: [own.example.com, '*.wild.example.com']", 1))
	w.closesTLS(t, "users/web", "other.example.com")
	for _, name := range []string{"own.example.com", "a.wild.example.com", "a.b.wild.example.com"} {
		w.eventually(t, func() error { return w.ownTLS(t, "users/web", name) })
	}
	w.closesTLS(t, "users/web", "wild.example.com")
	w.greetsSpelled(t, "cart-v1.shop:8443", "own.example.com")
	w.greetsSpelled(t, "cart-v1.shop:8443", "a.wild.example.com")
	w.closes(t, "users/web", "cart-v1.shop:8443", "GET / HTTP/1.1\r\nHost: own.example.com\r\n\r\n")
	w.closesTLS(t, "users/thief", "own.example.com")
}

func testReferenceGrant(t *testing.T, w *testMesh) {
	// The route and its parent are in the namespace users, and the backend is in shop.
	w.apply(t, "route.yaml", strings.ReplaceAll(route("HTTPRoute", "users", "web", `
  - backendRefs: [{name: cart-v1, namespace: shop, port: 80}]
`), "namespace: shop}]", "namespace: users}]"))
	grant := func(service string) string {
		return `
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: users, namespace: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: users}]
  to: [{group: "", kind: Service, name: ` + service + `}]
`
	}
	w.apply(t, "grant.yaml", grant("cart-v1"))
	web := request{url: "http://web.users/cart"}
	w.allFrom(t, "users/web", web, "cart-v1")
	w.set(t, "grant.yaml", grant("cart-v2"))
	w.eventually(t, func() error {
		if r, err := w.send(w.pod(t, "users/web"), web); err == nil && r.Status != http.StatusInternalServerError {
			return fmt.Errorf("the status is %d", r.Status)
		}
		return nil
	})
}
