package golden_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The types of this file are what an HTTPRoute says, and routeFor is an oracle: it decides by
// the text of Gateway API's HTTPRouteMatch alone, and shares no code with the mesh.

type oracleRoute struct {
	name    string
	created int
	rules   []oracleRule
}

type oracleRule struct {
	matches []oracleMatch
	backend string
}

type oracleMatch struct {
	kind, path, method string
	headers, query     [][2]string
}

// oracleRequest is a request, with its path and query as the specification understands them.
type oracleRequest struct {
	mesh.Request
	path  string
	query map[string]string
}

func (m oracleMatch) holds(r oracleRequest) bool {
	switch path := strings.TrimSuffix(m.path, "/"); m.kind {
	case "Exact":
		if r.path != m.path {
			return false
		}
	case "RegularExpression":
		if !regexp.MustCompile("^(?:" + m.path + ")$").MatchString(r.path) {
			return false
		}
	default:
		if r.path != path && !strings.HasPrefix(r.path, path+"/") {
			return false
		}
	}
	if m.method != "" && m.method != r.Method {
		return false
	}
	for i, header := range m.headers {
		// "If multiple entries specify equivalent header names, only the first entry ... MUST be considered".
		if slices.IndexFunc(m.headers, func(h [2]string) bool { return strings.EqualFold(h[0], header[0]) }) == i && r.Headers[strings.ToLower(header[0])][0] != header[1] {
			return false
		}
	}
	for i, parameter := range m.query {
		value, found := r.query[parameter[0]]
		if slices.IndexFunc(m.query, func(q [2]string) bool { return q[0] == parameter[0] }) == i && (!found || value != parameter[1]) {
			return false
		}
	}
	return true
}

// rank is compared from the left, and the greater one wins. The place of regular expressions is
// the implementation's choice.
func (m oracleMatch) rank() []int {
	unique := func(list [][2]string, fold func(string) string) int {
		names := map[string]bool{}
		for _, pair := range list {
			names[fold(pair[0])] = true
		}
		return len(names)
	}
	kind := slices.Index([]string{"PathPrefix", "RegularExpression", "Exact"}, m.kind)
	length := len(m.path)
	if m.kind == "PathPrefix" && length > 1 {
		length = len(strings.TrimSuffix(m.path, "/"))
	}
	return []int{kind, length, min(len(m.method), 1), unique(m.headers, strings.ToLower), unique(m.query, func(s string) string { return s })}
}

// routeFor returns the backend that the request goes to, or "".
func routeFor(routes []oracleRoute, r oracleRequest) string {
	backend, best := "", []int(nil)
	slices.SortFunc(routes, func(a, b oracleRoute) int {
		if a.created != b.created {
			return a.created - b.created
		}
		return strings.Compare(a.name, b.name)
	})
	for _, route := range routes {
		for _, rule := range route.rules {
			for _, match := range rule.matches {
				if match.holds(r) && (best == nil || slices.Compare(match.rank(), best) > 0) {
					backend, best = rule.backend, match.rank()
				}
			}
		}
	}
	return backend
}

func choose[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

func randomRoutes(random *rand.Rand) []oracleRoute {
	pairs := func(most int, names ...string) [][2]string {
		var list [][2]string
		for range random.IntN(most + 1) {
			list = append(list, [2]string{choose(random, names...), choose(random, "1", "2", "a b")})
		}
		return list
	}
	var routes []oracleRoute
	for i := range 1 + random.IntN(3) {
		route := oracleRoute{name: fmt.Sprintf("r%d", i), created: random.IntN(2)}
		for range 1 + random.IntN(3) {
			rule := oracleRule{backend: fmt.Sprintf("v%d", random.IntN(4))}
			for range 1 + random.IntN(3) {
				kind := choose(random, "PathPrefix", "PathPrefix", "Exact", "RegularExpression")
				path := choose(random, "/", "/a", "/a/", "/a/b", "/ab", "/a/b/c")
				if kind == "RegularExpression" {
					path = choose(random, "/a.*", "/[ab]/?", "/a/b|/ab", ".*/b")
				}
				rule.matches = append(rule.matches, oracleMatch{kind, path, choose(random, "", "", "GET", "POST"), pairs(2, "x-a", "X-A", "x-b"), pairs(2, "q", "r", "$top")})
			}
			route.rules = append(route.rules, rule)
		}
		routes = append(routes, route)
	}
	return routes
}

func randomRequest(random *rand.Rand) oracleRequest {
	path := choose(random, [2]string{"/", "/"}, [2]string{"/a", "/a"}, [2]string{"/a/", "/a/"}, [2]string{"/a/b", "/a/b"}, [2]string{"/ab", "/ab"}, [2]string{"/b", "/b"}, [2]string{"/A", "/A"},
		[2]string{"/x/../a", "/a"}, [2]string{"/%61/b", "/a/b"}, [2]string{"/a/./b/%2e%2E", "/a/"}, [2]string{"/a/b/c", "/a/b/c"}, [2]string{"//a", "//a"})
	query := choose(random, "", "", "?q=1", "?q=2&q=1", "?%71=1", "?q=a%20b&r=1", "?q=a+b", "?%24top=2&r=a%20b", "?q", "?r=2&q=1&$top=1")
	values := map[string]map[string]string{
		"?q=1": {"q": "1"}, "?q=2&q=1": {"q": "2"}, "?%71=1": {"q": "1"}, "?q=a%20b&r=1": {"q": "a b", "r": "1"}, "?q=a+b": {"q": "a b"}, "?%24top=2&r=a%20b": {"$top": "2", "r": "a b"},
		"?q": {"q": ""}, "?r=2&q=1&$top=1": {"r": "2", "q": "1", "$top": "1"},
	}
	headers := map[string][]string{"x-a": {choose(random, "1", "2", "")}, "x-b": {choose(random, "1", "a b")}}
	return oracleRequest{mesh.Request{Method: choose(random, "GET", "POST", "PUT"), Path: path[0] + query, Headers: headers}, path[1], values[query]}
}

// manifest writes the routes as their user would.
func manifestOf(routes []oracleRoute) string {
	quoted := func(pairs [][2]string) string {
		var list []string
		for _, pair := range pairs {
			list = append(list, fmt.Sprintf("{name: %q, value: %q}", pair[0], pair[1]))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	var out strings.Builder
	for _, route := range routes {
		fmt.Fprintf(&out, "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: %s, namespace: shop, creationTimestamp: 2026-01-0%dT00:00:00Z}\n"+
			"spec:\n  parentRefs: [{group: \"\", kind: Service, name: root}]\n  rules:\n", route.name, 1+route.created)
		for _, rule := range route.rules {
			fmt.Fprintf(&out, "  - backendRefs: [{name: %s, port: 80}]\n    matches:\n", rule.backend)
			for _, m := range rule.matches {
				fmt.Fprintf(&out, "    - {path: {type: %s, value: %q}, headers: %s, queryParams: %s", m.kind, m.path, quoted(m.headers), quoted(m.query))
				if m.method != "" {
					fmt.Fprintf(&out, ", method: %s", m.method)
				}
				out.WriteString("}\n")
			}
		}
	}
	return out.String()
}

// TestRoutesByOracle compares the routes of a View with the oracle, for random routes.
func TestRoutesByOracle(t *testing.T) {
	var shop strings.Builder
	shop.WriteString(`apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {openservicemesh.io/monitored-by: osm}, annotations: {openservicemesh.io/sidecar-injection: enabled}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: app, image: in-the-test}]}
`)
	for _, name := range []string{"root", "v0", "v1", "v2", "v3"} {
		fmt.Fprintf(&shop, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}\n", name)
	}
	matched := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		routes := randomRoutes(random)
		text := manifestOf(routes)
		view := viewOf(t, build(t, strings.NewReader(shop.String()+text)), "shop/web")
		d, ok := view.Outbound.Destinations.Get("shop/root:80")
		if !ok {
			t.Fatalf("seed %d: there is no destination", seed)
		}
		for range 60 {
			r := randomRequest(random)
			want := routeFor(routes, r)
			got := ""
			if request, ok := d.Normalize(&r.Request); ok {
				if route, ok := d.RouteOf(request); ok && len(route.Backends) > 0 {
					got = strings.TrimSuffix(strings.TrimPrefix(route.Backends[0].Backend, "shop/"), ":80")
				}
			}
			if got != want {
				t.Fatalf("seed %d: %s %s with %v goes to %q, and by the specification to %q; the routes:\n%s", seed, r.Method, r.Path, r.Headers, got, want, text)
			}
			if got != "" {
				matched++
			}
		}
	}
	if matched < 600 || matched > 3000 {
		t.Errorf("%d of 3600 requests match a route, so the generator is too narrow", matched)
	}
}
