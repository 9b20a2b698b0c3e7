package source_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	trafficTarget  = "apiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget"
	httpRouteGroup = "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup"
	tcpRoute       = "apiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute"
	trafficSplit   = "apiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit"
	egress         = "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Egress"
	ingressBackend = "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: IngressBackend"
	retry          = "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Retry"

	cart = `{kind: ServiceAccount, name: cart, namespace: shop}`
	web  = `{kind: ServiceAccount, name: web.v2, namespace: front}`
)

func TestAccessRule(t *testing.T) {
	const parties = `destination: ` + cart + `, sources: [` + web + `]`
	const routes = `rules: [{kind: TCPRoute, name: db}]`
	const base = `{"destination":{"namespace":"shop","name":"cart"},"sources":[{"namespace":"front","name":"web.v2"}],"rules":`
	check(t, trafficTarget, []row{
		{"routes of both kinds", `{` + parties + `, rules: [{kind: HTTPRouteGroup, name: g, matches: [b, a]}, {kind: HTTPRouteGroup, name: h}, {kind: TCPRoute, name: db}]}`,
			base + `[{"kind":"HTTPRouteGroup","group":"g","matches":["b","a"]},{"kind":"HTTPRouteGroup","group":"h"},{"kind":"TCPRoute","group":"db"}]}`, nil},
		{"a source that is there twice", `{destination: ` + cart + `, sources: [` + web + `, ` + web + `], ` + routes + `}`,
			base + `[{"kind":"TCPRoute","group":"db"}]}`, nil},

		{"destination elsewhere", `{destination: ` + web + `, sources: [` + cart + `], ` + routes + `}`, `nothing`, []string{"OtherNamespace spec.destination.namespace"}},
		{"destination without a namespace", `{destination: {kind: ServiceAccount, name: cart}, sources: [` + web + `], ` + routes + `}`, `nothing`, []string{"Invalid spec.destination.namespace"}},
		{"destination of another kind", `{destination: {kind: Service, name: cart, namespace: shop}, sources: [` + web + `], ` + routes + `}`, `nothing`, []string{"UnknownKind spec.destination.kind"}},
		{"sources that are nobody let the others in", `{destination: ` + cart + `, sources: [{kind: Group, name: a, namespace: b}, {kind: ServiceAccount, name: "*", namespace: b}, {kind: ServiceAccount, name: a}, ` + web + `], ` + routes + `}`,
			base + `[{"kind":"TCPRoute","group":"db"}]}`,
			[]string{"UnknownKind spec.sources[0].kind", "Invalid spec.sources[1].name", "Invalid spec.sources[2].namespace"}},
		{"only sources that are nobody", `{destination: ` + cart + `, sources: [{kind: Group, name: a, namespace: b}], ` + routes + `}`, `nothing`, []string{"UnknownKind spec.sources[0].kind"}},
		{"no sources", `{destination: ` + cart + `, sources: [], ` + routes + `}`, `nothing`, []string{"Missing spec.sources"}},
		{"no rules are not all rules", `{` + parties + `, rules: []}`, `nothing`, []string{"Missing spec.rules"}},
		{"rules of UDP and group names that are none leave the others", `{` + parties + `, rules: [{kind: UDPRoute, name: u}, {kind: HTTPRouteGroup, name: ""}, {kind: TCPRoute, name: db, matches: [a]}]}`,
			base + `[{"kind":"TCPRoute","group":"db"}]}`,
			[]string{"NotSupported spec.rules[0].kind", "Invalid spec.rules[1].name", "NoEffect spec.rules[2].matches"}},
		{"a rule of an unknown kind may have been to narrow the others", `{` + parties + `, rules: [{kind: TcpRoute, name: db}, {kind: HTTPRouteGroup, name: g}]}`,
			`nothing`, []string{"UnknownKind spec.rules[0].kind"}},
		{"a TCPRoute of no name would have narrowed the others", `{` + parties + `, rules: [{kind: TCPRoute, name: ""}, {kind: HTTPRouteGroup, name: g}]}`,
			`nothing`, []string{"Invalid spec.rules[0].name"}},
		{"only rules of other kinds", `{` + parties + `, rules: [{kind: UDPRoute, name: u}]}`, `nothing`, []string{"NotSupported spec.rules[0].kind"}},
	})
}

// TestAccessMode audits a TrafficTarget.
func TestAccessMode(t *testing.T) {
	const spec = `spec: {destination: ` + cart + `, sources: [` + web + `], rules: [{kind: TCPRoute, name: db}]}`
	expect(t, factOf(t, trafficTarget+"\nmetadata: {name: x, namespace: shop, annotations: {openservicemesh.io/access-mode: Audit}}\n"+spec), row{
		want: `{"destination":{"namespace":"shop","name":"cart"},"sources":[{"namespace":"front","name":"web.v2"}],"rules":[{"kind":"TCPRoute","group":"db"}],"audit":true}`,
	})
}

func TestHTTPRouteGroup(t *testing.T) {
	const empty = `{"namespace":"shop","name":"x"}`
	const rest = `, {name: rest, pathRegex: /rest}`
	const base = `{"http":[{"name":"rest","path":{"exact":"/rest"}}]}`
	check(t, httpRouteGroup, []row{
		{"everything", `{matches: [{name: a}, {name: b, pathRegex: ".*", methods: ["*"]}, {name: c, methods: [GET, "*"]}]}`,
			`{"http":[{"name":"a"},{"name":"b"},{"name":"c"}]}`, nil},
		{"methods are sorted, each once", `{matches: [{name: a, methods: [PUT, GET, PUT]}]}`, `{"http":[{"name":"a","methods":["GET","PUT"]}]}`, nil},
		{"paths", `{matches: [{name: a, pathRegex: /a-b_c}, {name: b, pathRegex: "/a.b"}, {name: c, pathRegex: '/a\.b'}, {name: d, pathRegex: "^/a$"}]}`,
			`{"http":[{"name":"a","path":{"exact":"/a-b_c"}},{"name":"b","path":{"regex":"/a.b"}},{"name":"c","path":{"regex":"/a\\.b"}},{"name":"d","path":{"regex":"^/a$"}}]}`, nil},
		{"headers all hold, in any order", `{matches: [{name: a, headers: [{X-B: "1|2", x-a: one}, {Host: ".*[.]shop"}, {x-b: ".*"}, {x-a: one}]}]}`,
			`{"http":[{"name":"a","headers":[{"name":"host","regex":".*[.]shop"},{"name":"x-a","exact":"one"},{"name":"x-b","present":true},{"name":"x-b","regex":"1|2"}]}]}`, nil},

		{"no matches are not all", `{matches: []}`, empty, []string{"Missing spec.matches"}},
		{"a bad path takes its match", `{matches: [{name: a, pathRegex: "*"}` + rest + `]}`, base, []string{"InvalidRegex spec.matches[0].pathRegex"}},
		{"bad paths only", `{matches: [{name: a, pathRegex: "("}, {name: b, pathRegex: "a)(b"}]}`, empty,
			[]string{"InvalidRegex spec.matches[0].pathRegex", "InvalidRegex spec.matches[1].pathRegex"}},
		{"a bad header takes its match", `{matches: [{name: a, pathRegex: /a, headers: [{x: "["}, {y: ok}]}` + rest + `]}`, base,
			[]string{"InvalidRegex spec.matches[0].headers[0][x]"}},
		{"an empty header takes its match", `{matches: [{name: a, headers: [{x: ""}]}` + rest + `]}`, base, []string{"InvalidRegex spec.matches[0].headers[0][x]"}},
		{"a bad header name takes its match", `{matches: [{name: a, headers: [{":path": /a, "a\nb": c}]}` + rest + `]}`, base,
			[]string{"Invalid spec.matches[0].headers[0]", "Invalid spec.matches[0].headers[0]"}},
		{"a method that is none leaves the others", `{matches: [{name: a, methods: [get, POST]}]}`, `{"http":[{"name":"a","methods":["POST"]}]}`, []string{"Invalid spec.matches[0].methods[0]"}},
		{"only methods that are none", `{matches: [{name: a, methods: [get]}` + rest + `]}`, base, []string{"Missing spec.matches[0].methods", "Invalid spec.matches[0].methods[0]"}},
		{"a name that is there twice", `{matches: [{name: rest, pathRegex: /rest}, {name: rest}]}`, base, []string{"Duplicate spec.matches[1].name"}},
		{"a match without a name counts for who names none", `{matches: [{pathRegex: /a}]}`, `{"http":[{"name":"","path":{"exact":"/a"}}]}`, []string{"Missing spec.matches[0].name"}},
	})
}

// TestProblemsHaveOneOrder checks that the order of a map does not affect Problems.
func TestProblemsHaveOneOrder(t *testing.T) {
	const text = httpRouteGroup + "\nmetadata: {name: x, namespace: shop}\nspec: {matches: [{name: a, headers: [{'a b': x, 'c d': x, 'e f': x, 'g h': x, 'i j': x, 'k l': x}]}]}"
	want := factOf(t, text).Problems
	for range 10 {
		if diff := cmp.Diff(want, factOf(t, text).Problems); diff != "" {
			t.Fatalf("(-first +later):\n%s", diff)
		}
	}
}

func TestRegex(t *testing.T) {
	good := []string{`/a/[0-9]+`, `(?i)a`, `\Qa.b\E.`, `[[:word:]]+`, `\p{Greek}`, `\pL+`, `\p{^Lu}`, `\x{ff}.`, `\\p{Letter}`, `.{1000}`, `(?P<n>a)b`, strings.Repeat(".", 3000)}
	bad := []string{`*`, `a**`, `(`, `a)(b`, `[b-a]`, `\8`, `(?=a)`, `(?!a)`, `a{1001}`, `(a{1000}){1000}`, `\C`,
		// Go accepts these, but RE2 in a proxy rejects them or matches differently.
		`\x{100}`, `[^\x00-\x{10FFFF}]`, `\p{Letter}`, `\p{ASCII}`, `\p{greek}`, `\p{LC}`, `\p{Cn}`, `[é]`, "a\tb.",
		// These are too large.
		strings.Repeat(".", 5000), strings.Repeat(`.{1000}`, 10), strings.Repeat(`[a-z]`, 20) + strings.Repeat(`(a|b.){900}`, 5)}
	for _, list := range []struct {
		expressions []string
		problems    []string
	}{{good, nil}, {bad, []string{"InvalidRegex spec.matches[0].pathRegex"}}} {
		for _, expression := range list.expressions {
			quoted := "'" + expression + "'"
			if strings.Contains(expression, "\t") {
				quoted = `"a\tb."`
			}
			fact := factOf(t, httpRouteGroup+"\nmetadata: {name: x, namespace: shop}\nspec: {matches: [{name: a, pathRegex: "+quoted+"}]}")
			if len(fact.Problems) != len(list.problems) || len(fact.Problems) > 0 && fact.Problems[0].Reason != "InvalidRegex" {
				t.Errorf("%.40q gives %v, want %v", expression, fact.Problems, list.problems)
			}
		}
	}
}

func TestTCPRoute(t *testing.T) {
	check(t, tcpRoute, []row{
		{"ports are sorted, each once", `{matches: {ports: [81, 80, 81]}}`, `{"tcp":{"ports":[80,81]}}`, nil},
		{"any port", `{}`, `{"tcp":{}}`, nil},
		{"a port that is none leaves the others", `{matches: {ports: [0, 80, 65536]}}`, `{"tcp":{"ports":[80]}}`, []string{"Invalid spec.matches.ports[0]", "Invalid spec.matches.ports[2]"}},
		{"only ports that are none are not any", `{matches: {ports: [-1]}}`, `nothing`, []string{"Missing spec.matches.ports", "Invalid spec.matches.ports[0]"}},
	})
}

func TestSplit(t *testing.T) {
	const one = `backends: [{service: b, weight: 1}]`
	const base = `{"root":"a","backends":[{"service":"b","weight":1}]`
	rows := []row{
		{"a name", `{service: a, ` + one + `}`, base + `}`, nil},
		{"a name with a namespace", `{service: a.shop, ` + one + `}`, base + `}`, nil},
		{"a name with svc", `{service: a.shop.svc, ` + one + `}`, base + `}`, nil},
		{"a name with a domain", `{service: a.shop.svc.k8s.example, ` + one + `}`, base + `}`, nil},
		{"backends by name", `{service: a, backends: [{service: b.shop, weight: 90}, {service: a, weight: 0}]}`, `{"root":"a","backends":[{"service":"b","weight":90},{"service":"a","weight":0}]}`, nil},
		{"matches", `{service: a, ` + one + `, matches: [{kind: HTTPRouteGroup, name: g}, {apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: h}, {apiGroup: specs.smi-spec.io, kind: HTTPRouteGroup, name: g}]}`,
			base + `,"matches":["g","h"]}`, nil},
		{"weights of 0 are for the routes to say", `{service: a, backends: [{service: b, weight: 0}]}`, `{"root":"a","backends":[{"service":"b","weight":0}]}`, nil},

		{"a root elsewhere", `{service: a.front, ` + one + `}`, `nothing`, []string{"OtherNamespace spec.service"}},
		{"a root that is none", `{service: "a_b", ` + one + `}`, `nothing`, []string{"Invalid spec.service"}},
		{"no root", `{` + one + `}`, `nothing`, []string{"Invalid spec.service"}},
		{"a root of four parts", `{service: a-0.a.shop.svc, ` + one + `}`, `nothing`, []string{"Invalid spec.service"}},
		{"no backends", `{service: a}`, `nothing`, []string{"Missing spec.backends"}},
		{"backends that are none leave the others", `{service: a, backends: [{service: c.front, weight: 1}, {service: "", weight: 1}, {service: c, weight: -1}, {service: d, weight: 0.5}, {service: e, weight: 4294967296}, {service: b, weight: 1}]}`, base + `}`,
			[]string{"OtherNamespace spec.backends[0].service", "Invalid spec.backends[1].service", "Invalid spec.backends[2].weight", "Invalid spec.backends[3].weight", "Invalid spec.backends[4].weight"}},
		{"only backends that are none", `{service: a, backends: [{service: b, weight: -1}]}`, `nothing`, []string{"Invalid spec.backends[0].weight"}},
		{"a backend that is there twice", `{service: a, backends: [{service: b, weight: 1}, {service: b.shop, weight: 2}]}`, base + `}`, []string{"Duplicate spec.backends[1].service"}},
		{"weights that add up to too much", `{service: a, backends: [{service: b, weight: 4294967295}, {service: c, weight: 1}]}`, `nothing`, []string{"Invalid spec.backends"}},
		{"a match of another kind leaves the others", `{service: a, ` + one + `, matches: [{kind: TCPRoute, name: t}, {apiGroup: example.com, kind: HTTPRouteGroup, name: t}, {kind: HTTPRouteGroup, name: g}]}`,
			base + `,"matches":["g"]}`, []string{"UnknownKind spec.matches[0].kind", "UnknownKind spec.matches[1].apiGroup"}},
		{"only matches of other kinds are not all requests", `{service: a, ` + one + `, matches: [{kind: TCPRoute, name: t}]}`, `nothing`,
			[]string{"Missing spec.matches", "UnknownKind spec.matches[0].kind"}},
	}
	check(t, trafficSplit, rows)
	check(t, strings.Replace(trafficSplit, "v1alpha4", "v1alpha2", 1), rows)
}

func TestRetry(t *testing.T) {
	const parties = `source: ` + cart + `, destinations: [{kind: Service, name: b, namespace: back}]`
	const base = `{"source":{"namespace":"shop","name":"cart"},"destinations":[{"namespace":"back","name":"b"}],"retry":`
	check(t, retry, []row{
		{"defaults", `{` + parties + `, retryPolicy: {retryOn: 5xx}}`, base + `{"on":["5xx"],"attempts":1}}`, nil},
		{"all", `{` + parties + `, retryPolicy: {retryOn: "reset, 5xx,,connect-failure,5xx", numRetries: 0, perTryTimeout: 1s, retryBackoffBaseInterval: 50ms}}`,
			base + `{"on":["5xx","connect-failure","reset"],"attempts":0,"perTry":1000000000,"backoff":50000000}}`, nil},
		{"a source of another namespace", `{source: ` + web + `, destinations: [{kind: Service, name: b, namespace: back}], retryPolicy: {retryOn: 5xx}}`,
			`{"source":{"namespace":"front","name":"web.v2"},"destinations":[{"namespace":"back","name":"b"}],"retry":{"on":["5xx"],"attempts":1}}`, nil},
		{"source of another kind", `{source: {kind: Service, name: a, namespace: shop}, destinations: [{kind: Service, name: b, namespace: back}], retryPolicy: {retryOn: 5xx}}`, `nothing`, []string{"UnknownKind spec.source.kind"}},
		{"destinations that are none leave the others", `{source: ` + cart + `, destinations: [{kind: Pod, name: a, namespace: b}, {kind: Service, name: "*", namespace: back}, {kind: Service, name: b}, {kind: Service, name: b, namespace: back}], retryPolicy: {retryOn: 5xx}}`,
			base + `{"on":["5xx"],"attempts":1}}`, []string{"UnknownKind spec.destinations[0].kind", "Invalid spec.destinations[1].name", "Invalid spec.destinations[2].namespace"}},
		{"no destinations", `{source: ` + cart + `, retryPolicy: {retryOn: 5xx}}`, `nothing`, []string{"Missing spec.destinations"}},
		{"bad values", `{` + parties + `, retryPolicy: {retryOn: "5xx,4xx", numRetries: -1, perTryTimeout: soon, retryBackoffBaseInterval: -1s}}`, base + `{"on":["5xx"],"attempts":1}}`,
			[]string{"Invalid spec.retryPolicy.numRetries", "Invalid spec.retryPolicy.perTryTimeout", "Invalid spec.retryPolicy.retryBackoffBaseInterval", "Invalid spec.retryPolicy.retryOn"}},
		{"nothing to try again on", `{` + parties + `, retryPolicy: {retryOn: "4xx"}}`, `nothing`, []string{"Invalid spec.retryPolicy.retryOn", "Missing spec.retryPolicy.retryOn"}},
	})
}
