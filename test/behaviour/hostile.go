package behaviour

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// lured allows the pod cart-v1 to call the thief, whose namespace so gets into its configuration.
var lured = routeGroup("users/lure", ` [{name: all, pathRegex: ".*", methods: ["*"]}]`) + `---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: lure, namespace: users}
spec:
  destination: {kind: ServiceAccount, name: thief, namespace: users}
  sources: [{kind: ServiceAccount, name: cart-v1, namespace: shop}, {kind: ServiceAccount, name: web, namespace: users}]
  rules: [{kind: HTTPRouteGroup, name: lure}]
`

// hostileRules are rules of HTTPRoutes that some proxy has refused or misread.
var hostileRules = []string{
	`{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: "x#", value: a}]}}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: "'", value: '\r\nx-pad a\r\n\r\nDELETE\ /cart #'''}]}}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: "x-a", value: '%[src] %DOWNSTREAM_REMOTE_ADDRESS% ${x} "'}]}}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: CORS, cors: {allowOrigins: ["*"], allowHeaders: ["x%y"], allowMethods: [GET]}}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: CORS, cors: {allowOrigins: ["*"], allowHeaders: ["%HOSTNAME%"], allowMethods: [GET]}}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: CORS, cors: {allowOrigins: ["*"], allowHeaders: [` + strings.Repeat(`x-`+strings.Repeat("a", 200)+`, `, 63) + `x-b], allowMethods: [GET]}}], backendRefs: [{name: thief, port: 80}]}`,
	`{matches: [{headers: [{name: "x!y", value: a}]}], backendRefs: [{name: thief, port: 80}]}`,
	`{matches: [{path: {type: RegularExpression, value: '/a" } # \x00(?i:'}}], backendRefs: [{name: thief, port: 80}]}`,
	`{matches: [{path: {type: RegularExpression, value: '(.*a.{13}){9}'}}], backendRefs: [{name: thief, port: 80}]}`,
	`{matches: [{path: {type: Exact, value: '/"; return 1 #'}, queryParams: [{name: "a'b", value: "%[rand]"}]}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: URLRewrite, urlRewrite: {hostname: "a.example", path: {type: ReplaceFullPath, replaceFullPath: "/%[src] x"}}}], backendRefs: [{name: thief, port: 80}]}`,
	`{filters: [{type: RequestRedirect, requestRedirect: {hostname: "a b", path: {type: ReplacePrefixMatch, replacePrefixMatch: "/\r\n"}}}]}`,
	`{timeouts: {request: 99999h}, retry: {attempts: 2147483647, codes: [599]}, backendRefs: [{name: thief, port: 80}]}`,
}

// hostile are objects of the thief's namespace about its own Service, and about connections of
// another namespace's account.
func hostile() string {
	var out strings.Builder
	out.WriteString(lured)
	for i, rule := range hostileRules {
		fmt.Fprintf(&out, `---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hostile-%d, namespace: users}
spec: {parentRefs: [{group: "", kind: Service, name: thief}], rules: [%s]}
`, i, rule)
	}
	return out.String() + `---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: hostile, namespace: users}
spec: {matches: [{name: odd, pathRegex: "/.*", methods: [GET], headers: [{"x!y": "a\"b"}]}]}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: hostile, namespace: users}
spec:
  sources: [{kind: ServiceAccount, name: cart-v1, namespace: shop}]
  hosts: [no-such-name.invalid, "a.example#", "b.example\r\nbind :1"]
  ports: [{number: 80, protocol: http}]
  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: hostile}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: hostile, namespace: users}
spec:
  source: {kind: ServiceAccount, name: cart-v1, namespace: shop}
  destinations: [{kind: Service, name: thief, namespace: users}]
  retryPolicy: {retryOn: "5xx\n", numRetries: 4294967295, perTryTimeout: 1ns}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: hostile, namespace: users}
spec:
  host: thief.users.svc.cluster.local
  connectionSettings: {tcp: {maxConnections: 4294967295, connectTimeout: 1ns}}
  httpRoutes: [{path: "/(a{1,1000}){1,1000}", rateLimit: {local: {requests: 1, unit: second, responseHeadersToAdd: [{name: "x\n", value: "%y"}]}}}]
`
}

// testHostileNeighbour takes a permission away in the same version as the hostile objects come, and
// then while they are there.
func testHostileNeighbour(t *testing.T, w *testMesh) {
	allowed := trafficTarget("shop/hostile", "cart-v1", "{kind: HTTPRouteGroup, name: cart}", "users/thief")
	w.apply(t, "hostile.yaml", lured+allowed)
	w.get(t, "users/thief", cartV1, isFrom("cart-v1"))
	// The sidecar of cart-v1 has a route to the thief, whose application does not listen.
	w.get(t, "shop/cart-v1", "http://thief.users/", isStatus(http.StatusServiceUnavailable))
	for range 2 {
		w.set(t, "hostile.yaml", hostile())
		w.denies(t, "users/thief", cartV1)
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		w.set(t, "hostile.yaml", hostile()+allowed)
		w.get(t, "users/thief", cartV1, isFrom("cart-v1"))
	}
}
