package source_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// The route x in the namespace shop with the parent cart.
const (
	routeHead = `{"kind":"HTTPRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[{"index":0,`
	routeTail = `"backends":[{"service":{"namespace":"shop","name":"v1"},"port":80,"weight":1}]`
	nothing   = `"matches":null,`
	all       = `"matches":[{"precedence":[0,1,0,0,0]}],`
)

// TestUnknownFields has fields that Gateway API's Go types lack. None may make a rule match
// more than it says.
func TestUnknownFields(t *testing.T) {
	const v1 = `backendRefs: [{name: v1, port: 80}]`
	check(t, httpRoute, []row{
		{"a misspelt list of matches", ofCart(`{match: [{path: {value: /a}}], ` + v1 + `}`), routeHead + nothing + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[0].match"}},
		{"an unknown condition", ofCart(`{matches: [{path: {value: /a}, cookies: [{name: a}]}], ` + v1 + `}`), routeHead + nothing + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[0].matches[0].cookies"}},
		{"an unknown part of a condition", ofCart(`{matches: [{path: {value: /a, ignoreCase: true}}, {path: {value: /b}}], ` + v1 + `}`),
			routeHead + `"matches":[{"path":{"prefix":"/b"},"precedence":[0,2,0,0,0]}],` + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[0].matches[0].path.ignoreCase"}},
		{"an unknown part of a filter", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {scheme: https, query: a}}]}`),
			routeHead + all + `"unusable":true,"redirect":{"scheme":"https","status":302}}]}`, []string{"UnsupportedValue spec.rules[0].filters[0].requestRedirect.query"}},
		{"an unknown part of a backend", ofCart(`{backendRefs: [{name: v1, port: 80, zone: a}]}`), routeHead + all + `"unusable":true,` + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[0].backendRefs[0].zone"}},
		{"an unknown part of a parent", `{parentRefs: [{group: "", kind: Service, name: cart, from: a}], rules: [{` + v1 + `}]}`, `nothing`, []string{"NoMatchingParent spec.parentRefs[0]"}},
		{"an unknown part of the route", `{parentRefs: [{group: "", kind: Service, name: cart}], novelty: 1, rules: [{` + v1 + `}]}`, routeHead + all + routeTail + `}]}`, []string{"NoEffect spec.novelty"}},
		{"a route of others", `{parentRefs: [{kind: Mesh, name: mesh}], rules: [{match: 1}]}`, `nothing`, nil},
		{"a parent without its group", `{parentRefs: [{kind: Service, name: cart}], rules: [{` + v1 + `}]}`, `nothing`, []string{"NoMatchingParent spec.parentRefs[0]"}},
	})
	check(t, grpcRoute, []row{
		{"an unknown condition", ofCart(`{matches: [{metadata: a}]}`), `{"kind":"GRPCRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[{"index":0,"matches":null}]}`,
			[]string{"UnsupportedValue spec.rules[0].matches[0].metadata"}},
		{"parentheses that end others", ofCart(`{matches: [{method: {type: RegularExpression, service: "a)|(b"}}]}`), `{"kind":"GRPCRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[{"index":0,"matches":null}]}`,
			[]string{"UnsupportedValue spec.rules[0].matches[0].method"}},
		{"a name that is none", ofCart(`{matches: [{method: {service: a/b}}, {method: {method: "a b"}}]}`), `{"kind":"GRPCRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[{"index":0,"matches":null}]}`,
			[]string{"UnsupportedValue spec.rules[0].matches[0].method.service", "UnsupportedValue spec.rules[0].matches[1].method.method"}},
	})
}

// TestLaterSessions has the session persistence of Gateway API 1.7.
func TestLaterSessions(t *testing.T) {
	const v1 = `backendRefs: [{name: v1, port: 80}]`
	session := func(text string) string { return ofCart(`{sessionPersistence: ` + text + `, ` + v1 + `}`) }
	sessionOf := func(text string) string { return routeHead + all + routeTail + `,"session":` + text + `}]}` }
	broken := func(text string) string {
		return routeHead + all + `"unusable":true,` + routeTail + `,"session":` + text + `}]}`
	}
	check(t, httpRoute, []row{
		{"a cookie", session(`{type: Cookie, cookie: {name: basket, path: /shop, lifetimeType: Permanent}, absoluteTimeout: 1h}`), sessionOf(`{"name":"basket","path":"/shop","lifetime":3600000000000,"permanent":true}`), nil},
		{"a cookie with its default path", session(`{cookie: {}}`), sessionOf(`{"path":"/"}`), nil},
		{"a header", session(`{type: Header, header: {name: X-Basket}}`), sessionOf(`{"name":"x-basket","header":true}`), nil},
		{"a path that ends the cookie", session(`{cookie: {path: "/;a"}}`), broken(`{}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.cookie.path"}},
		{"a header for a cookie", session(`{type: Cookie, header: {name: a}}`), broken(`{"name":"a"}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.header"}},
		{"a cookie for a header", session(`{type: Header, header: {name: a}, cookie: {}}`), broken(`{"name":"a","header":true,"path":"/"}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.cookie"}},
		{"an unknown part", session(`{cookie: {domain: a}}`), broken(`{"path":"/"}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.cookie.domain"}},
	})
}

// TestRefusedByTheCRD has values that the API server refuses, and files may have.
func TestRefusedByTheCRD(t *testing.T) {
	const v1 = `backendRefs: [{name: v1, port: 80}]`
	match := func(text string) string { return ofCart(`{matches: [` + text + `], ` + v1 + `}`) }
	dropped := func(field string) (string, []string) {
		return routeHead + nothing + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[0].matches[0]." + field}
	}
	var rows []row
	for text, field := range map[string]string{
		`{method: PURGE}`: "method", `{path: {value: /a//b}}`: "path.value", `{path: {value: /a/../b}}`: "path.value", `{path: {type: Exact, value: /a/.}}`: "path.value",
		`{path: {value: "/a?b"}}`: "path.value", `{path: {value: "/a%2Fb"}}`: "path.value", `{path: {value: "/a b"}}`: "path.value", `{path: {value: a}}`: "path.value",
		`{headers: [{name: a, value: "b\nc"}]}`: "headers[0].value", `{headers: [{name: "a:b", value: c}]}`: "headers[0].name", `{queryParams: [{name: a, value: "b\u0000"}]}`: "queryParams[0].value",
	} {
		want, problems := dropped(field)
		rows = append(rows, row{text, match(text), want, problems})
	}
	rows = append(
		rows,
		row{"a path is compared in its normal form", match(`{path: {type: Exact, value: /%61%20}}`), routeHead + `"matches":[{"path":{"exact":"/a%20"},"precedence":[2,7,0,0,0]}],` + routeTail + `}]}`, nil},
		row{"a try that is longer than the request", ofCart(`{timeouts: {request: 1s, backendRequest: 2s}, ` + v1 + `}`), routeHead + all + `"unusable":true,` + routeTail + `,"timeout":1000000000}]}`, []string{"UnsupportedValue spec.rules[0].timeouts.backendRequest"}},
		row{"a part of a second", ofCart(`{timeouts: {request: 1.5s}, ` + v1 + `}`), routeHead + all + `"unusable":true,` + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[0].timeouts.request"}},
		row{"equal names", ofCart(`{name: a, ` + v1 + `}, {name: a, ` + v1 + `}`), routeHead + `"name":"a",` + all + routeTail + `},{"index":1,"name":"a",` + all + `"unusable":true,` + routeTail + `}]}`, []string{"UnsupportedValue spec.rules[1].name"}},
		row{"headers that all proxies can compare", match(`{headers: [{name: "x!#$%&'*+-.^_|~", value: a}]}`), routeHead + `"matches":[{"headers":[{"name":"x!#$%\u0026'*+-.^_|~","exact":"a"}],"precedence":[0,1,0,1,0]}],` + routeTail + `}]}`, nil},
		row{"headers of a redirect", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301}}, {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-added, value: "yes"}]}}]}`),
			routeHead + all + `"redirect":{"status":301,"response":{"set":[{"name":"x-added","value":"yes"}]}}}]}`, nil},
		row{"a redirect with CORS", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {}}, {type: CORS, cors: {allowOrigins: ["https://a"]}}]}`),
			routeHead + all + `"redirect":{"status":302},"cors":{"origin":{"exact":"https://a"},"maxAge":5}}]}`, nil},
		row{"a redirect with a mirror", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {}}, {type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 80}}}]}`),
			routeHead + all + `"unusable":true,"redirect":{"status":302},"mirrors":[{"service":{"namespace":"shop","name":"v2"},"port":80,"weight":1,"filter":1,"numerator":1,"denominator":1}]}]}`, []string{"IncompatibleFilters spec.rules[0].filters"}},
		row{"the target of a redirect", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {}}, {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [Location]}}]}`),
			routeHead + all + `"unusable":true,"redirect":{"status":302,"response":{"remove":["location"]}}}]}`, []string{"IncompatibleFilters spec.rules[0].filters"}},
	)
	check(t, httpRoute, rows)
}

// TestDroppedRoute checks that a route of which nothing is left is not accepted.
func TestDroppedRoute(t *testing.T) {
	for _, tt := range []struct {
		name, rules, accepted string
		partial               bool
	}{
		{"the only rule", `{filters: [{type: ExtensionRef, extensionRef: {group: a.b, kind: C, name: d}}]}`, "False UnsupportedValue", false},
		{"one rule of two", `{matches: [{method: PURGE}]}, {backendRefs: [{name: v1, port: 80}]}`, "True Accepted", true},
		{"the matches of all rules", `{matches: [{method: PURGE}]}, {match: []}`, "False UnsupportedValue", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := httpRoute + "\nmetadata: {name: x, namespace: shop}\nspec: " + ofCart(tt.rules)
			for _, kind := range source.Kinds() {
				if kind.Kind != "HTTPRoute" {
					continue
				}
				obj := kind.New()
				if err := yaml.Unmarshal([]byte(text), obj); err != nil {
					t.Fatal(err)
				}
				kind.SetGatewayStatus(obj, &fact.Problems{List: factOf(t, text).Problems}, metav1.NewTime(time.Unix(1700000000, 0)))
				conditions := map[string]string{}
				for _, c := range obj.(*source.HTTPRoute).Status.Parents[0].Conditions {
					conditions[c.Type] = string(c.Status) + " " + c.Reason
				}
				if _, partial := conditions[source.ConditionPartiallyInvalid]; conditions["Accepted"] != tt.accepted || partial != tt.partial {
					t.Errorf("the conditions are %v", conditions)
				}
			}
		})
	}
}
