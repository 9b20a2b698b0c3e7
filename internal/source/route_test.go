package source_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	httpRoute = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute"
	grpcRoute = "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute"
)

// ofCart is a spec with rules whose parent is the Service cart.
func ofCart(rules string) string {
	return `{parentRefs: [{group: "", kind: Service, name: cart}], rules: [` + rules + `]}`
}

func TestHTTPRoute(t *testing.T) {
	const (
		parents = `{"kind":"HTTPRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[`
		any     = `"matches":[{"precedence":[0,1,0,0,0]}]`
		broken  = `"unusable":true`
		v1      = `backendRefs: [{name: v1, port: 80}]`
		toV1    = `"backends":[{"service":{"namespace":"shop","name":"v1"},"port":80,"weight":1}]`
	)
	rule := func(filters string) string { return ofCart(`{filters: [` + filters + `], ` + v1 + `}`) }
	session := func(session string) string { return ofCart(`{sessionPersistence: ` + session + `, ` + v1 + `}`) }
	sessionOf := func(session string) string {
		return parents + `{"index":0,` + any + `,` + toV1 + `,"session":` + session + `}]}`
	}
	brokenSession := func(session string) string {
		return parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `,"session":` + session + `}]}`
	}
	check(t, httpRoute, []row{
		{"a route of another kind of parent is nothing to the mesh", `{parentRefs: [{kind: Mesh, name: cart}], rules: [{` + v1 + `}]}`, `nothing`, nil},
		{"a gateway's route", `{parentRefs: [{name: web, namespace: edge, sectionName: http, port: 80}], hostnames: [A.example.com, "*.b.example.com", "c:80"], rules: []}`,
			`{"kind":"HTTPRoute","gateways":[{"index":0,"gateway":{"namespace":"edge","name":"web"},"listener":"http","port":80}],"hosts":["a.example.com","*.b.example.com"],"rules":null}`, []string{"UnsupportedValue spec.hostnames[2]"}},
		{"without a valid host no request matches", `{parentRefs: [{name: web}], hostnames: ["a b"], rules: []}`,
			`{"kind":"HTTPRoute","gateways":[{"index":0,"gateway":{"namespace":"shop","name":"web"}}],"hosts":["host.invalid"],"rules":null}`, []string{"UnsupportedValue spec.hostnames[0]"}},
		{"parents by port and by name", `{parentRefs: [{name: gw}, {group: "", kind: Service, name: cart, port: 80}, {group: "", kind: Service, name: web, namespace: front, sectionName: http}]}`,
			`{"kind":"HTTPRoute","parents":[{"index":1,"service":{"namespace":"shop","name":"cart"},"port":80},{"index":2,"service":{"namespace":"front","name":"web"},"portName":"http"}],"gateways":[{"index":0,"gateway":{"namespace":"shop","name":"gw"}}],"rules":null}`, nil},
		{"without matches all match", ofCart(`{name: all, ` + v1 + `}`), parents + `{"index":0,"name":"all",` + any + `,` + toV1 + `}]}`, nil},
		{"matches with their precedence", ofCart(`{matches: [{path: {type: Exact, value: /a}}, {path: {value: /ab/}, method: GET}, {path: {type: RegularExpression, value: "/a.c"}, headers: [{name: X-A, value: b}, {name: x-a, value: c}], queryParams: [{name: Q, value: r}]}], ` + v1 + `}`),
			parents + `{"index":0,"matches":[{"path":{"exact":"/a"},"precedence":[2,2,0,0,0]},{"path":{"prefix":"/ab"},"methods":["GET"],"precedence":[0,3,1,0,0]},` +
				`{"path":{"regex":"/a.c"},"headers":[{"name":"x-a","exact":"b"}],"query":[{"name":"Q","exact":"r"}],"precedence":[1,4,0,1,1]}],` + toV1 + `}]}`, nil},
		{"a match that is invalid matches nothing", ofCart(`{matches: [{path: {type: RegularExpression, value: "("}}], ` + v1 + `}`),
			parents + `{"index":0,"matches":null,` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].matches[0].path.value"}},
		{"timeouts: the shorter one", ofCart(`{timeouts: {request: 1m, backendRequest: 500ms}, ` + v1 + `}`), parents + `{"index":0,` + any + `,` + toV1 + `,"timeout":500000000}]}`, nil},
		{"a timeout of 0 is none", ofCart(`{timeouts: {request: 0s}, ` + v1 + `}`), parents + `{"index":0,` + any + `,` + toV1 + `,"timeout":0}]}`, nil},
		{"a timeout that is none", ofCart(`{timeouts: {request: soon}, ` + v1 + `}`), parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`,
			[]string{"UnsupportedValue spec.rules[0].timeouts.request"}},

		{"retries", ofCart(`{retry: {}, ` + v1 + `}`), parents + `{"index":0,` + any + `,` + toV1 + `,"retry":{"on":["connect-failure","refused-stream"],"attempts":1}}]}`, nil},
		{"retries of status codes", ofCart(`{retry: {attempts: 2, backoff: 10ms, codes: [503, 500, 503]}, timeouts: {request: 1m}, ` + v1 + `}`),
			parents + `{"index":0,` + any + `,` + toV1 + `,"timeout":60000000000,"retry":{"on":["connect-failure","refused-stream"],"codes":[500,503],"attempts":2,"backoff":10000000}}]}`, nil},
		{"a limit for each try", ofCart(`{retry: {attempts: 2}, timeouts: {backendRequest: 500ms}, ` + v1 + `}`),
			parents + `{"index":0,` + any + `,` + toV1 + `,"retry":{"on":["connect-failure","refused-stream","reset"],"attempts":2,"perTry":500000000}}]}`, nil},
		{"no retries", ofCart(`{retry: {attempts: 0}, timeouts: {request: 1m, backendRequest: 500ms}, ` + v1 + `}`),
			parents + `{"index":0,` + any + `,` + toV1 + `,"timeout":500000000,"retry":{"on":null,"attempts":0}}]}`, nil},
		{"retries that are none", ofCart(`{retry: {attempts: 101}, ` + v1 + `}`), parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].retry.attempts"}},
		{"a code that is none", ofCart(`{retry: {attempts: 1, codes: [200], backoff: soon}, ` + v1 + `}`),
			parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `,"retry":{"on":["connect-failure","refused-stream"],"attempts":1}}]}`,
			[]string{"UnsupportedValue spec.rules[0].retry.backoff", "UnsupportedValue spec.rules[0].retry.codes[0]"}},

		{"headers: what is removed is not set", rule(`{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, value: b}, {name: x-c, value: d}], add: [{name: e, value: f}], remove: [X-C]}}`),
			parents + `{"index":0,` + any + `,"request":{"set":[{"name":"x-a","value":"b"}],"add":[{"name":"e","value":"f"}],"remove":["x-c"]},` + toV1 + `}]}`, nil},
		{"headers that say where a message ends", rule(`{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [Content-Length], set: [{name: Host, value: a}]}}`),
			parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`,
			[]string{"UnsupportedValue spec.rules[0].filters[0].responseHeaderModifier.remove[0]", "UnsupportedValue spec.rules[0].filters[0].responseHeaderModifier.set[0].name"}},
		{"a value with a line break", rule(`{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: "b\nc: d"}]}}`),
			parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].filters[0].requestHeaderModifier.set[0].value"}},
		{"a rewrite", rule(`{type: URLRewrite, urlRewrite: {hostname: a.b, path: {type: ReplacePrefixMatch, replacePrefixMatch: /c}}}`),
			parents + `{"index":0,` + any + `,"rewrite":{"host":"a.b","path":{"prefix":"/c"}},` + toV1 + `}]}`, nil},
		{"a prefix of an exact path", ofCart(`{matches: [{path: {type: Exact, value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /c}}}], ` + v1 + `}`),
			parents + `{"index":0,"matches":[{"path":{"exact":"/a"},"precedence":[2,2,0,0,0]}],` + broken + `,"rewrite":{"path":{"prefix":"/c"}},` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].filters"}},
		{"a redirect", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {scheme: https, port: 8443, path: {type: ReplaceFullPath, replaceFullPath: /c}}}]}`),
			parents + `{"index":0,` + any + `,"redirect":{"scheme":"https","port":8443,"path":{"full":"/c"},"status":302}}]}`, nil},
		{"origins", rule(`{type: CORS, cors: {allowOrigins: ["https://A.example.com:443", "http://*.b:8080"], allowMethods: [GET, PUT], allowHeaders: [X-A, "*"], exposeHeaders: [X-B], allowCredentials: true}}`),
			parents + `{"index":0,` + any + `,"cors":{"origin":{"regex":"https://a\\.example\\.com|http://[^/:]+\\.b:8080"},"methods":"GET, PUT","headers":"*","expose":"X-B","credentials":true,"maxAge":5},` + toV1 + `}]}`, nil},
		{"one origin, and any", ofCart(`{filters: [{type: CORS, cors: {allowOrigins: ["https://a"], maxAge: 7}}], ` + v1 + `}, {filters: [{type: CORS, cors: {allowOrigins: ["*"]}}], ` + v1 + `}`),
			parents + `{"index":0,` + any + `,"cors":{"origin":{"exact":"https://a"},"maxAge":7},` + toV1 + `},{"index":1,` + any + `,"cors":{"origin":{"present":true},"maxAge":5},` + toV1 + `}]}`, nil},
		{"an origin that is none", rule(`{type: CORS, cors: {allowOrigins: ["ftp://a"]}}`), parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].filters[0].cors.allowOrigins[0]"}},
		{"no origin", rule(`{type: CORS, cors: {allowMethods: [GET]}}`), parents + `{"index":0,` + any + `,` + toV1 + `}]}`, []string{"NoEffect spec.rules[0].filters[0].cors.allowOrigins"}},
		{"all headers with credentials", rule(`{type: CORS, cors: {allowOrigins: ["https://a"], exposeHeaders: ["*"], allowCredentials: true}}`),
			parents + `{"index":0,` + any + `,"cors":{"origin":{"exact":"https://a"},"credentials":true,"maxAge":5},` + toV1 + `}]}`, []string{"NoEffect spec.rules[0].filters[0].cors.exposeHeaders"}},
		{"a redirect to a backend", rule(`{type: RequestRedirect, requestRedirect: {scheme: https}}`),
			parents + `{"index":0,` + any + `,` + broken + `,"redirect":{"scheme":"https","status":302},` + toV1 + `}]}`, []string{"IncompatibleFilters spec.rules[0].filters"}},
		{"a filter that is not supported lets nothing pass", rule(`{type: ExtensionRef, extensionRef: {group: a.b, kind: C, name: d}}`),
			parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].filters[0]"}},
		{"mirrors", rule(`{type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 80}}}, {type: RequestMirror, requestMirror: {backendRef: {name: v3, namespace: bank, port: 81}, percent: 20}}, {type: RequestMirror, requestMirror: {backendRef: {name: v4, port: 80}, fraction: {numerator: 1, denominator: 3}}}, {type: RequestMirror, requestMirror: {backendRef: {name: v5, port: 80}, percent: 0}}`),
			parents + `{"index":0,` + any + `,"mirrors":[{"service":{"namespace":"shop","name":"v2"},"port":80,"weight":1,"filter":0,"numerator":1,"denominator":1},{"service":{"namespace":"bank","name":"v3"},"port":81,"weight":1,"filter":1,"numerator":20,"denominator":100},{"service":{"namespace":"shop","name":"v4"},"port":80,"weight":1,"filter":2,"numerator":1,"denominator":3}],` + toV1 + `}]}`, nil},
		{"a mirror that is none", rule(`{type: RequestMirror, requestMirror: {backendRef: {kind: Pod, name: v2}}}`), parents + `{"index":0,` + any + `,` + toV1 + `}]}`, []string{"InvalidKind spec.rules[0].filters[0].requestMirror.backendRef"}},
		{"a share that is none", rule(`{type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 80}, percent: 101}}`), parents + `{"index":0,` + any + `,` + broken + `,` + toV1 + `}]}`, []string{"UnsupportedValue spec.rules[0].filters[0].requestMirror"}},

		{"backends that are none", ofCart(`{backendRefs: [{name: v1}, {kind: Bucket, group: cloud, name: v1, weight: 3}, {name: v1, port: 80, weight: 0}]}`),
			parents + `{"index":0,` + any + `,"backends":[{"service":{"namespace":"shop","name":"v1"},"port":0,"weight":1,` + broken + `},` +
				`{"service":{"namespace":"shop","name":"v1"},"port":0,"weight":3,` + broken + `},{"service":{"namespace":"shop","name":"v1"},"port":80,"weight":0}]}]}`,
			[]string{"UnsupportedValue spec.rules[0].backendRefs[0]", "InvalidKind spec.rules[0].backendRefs[1]"}},
		{"a backend changes headers only", ofCart(`{backendRefs: [{name: v1, port: 80, filters: [{type: URLRewrite, urlRewrite: {hostname: a}}]}]}`),
			parents + `{"index":0,` + any + `,"backends":[{"service":{"namespace":"shop","name":"v1"},"port":80,"weight":1,` + broken + `}]}]}`,
			[]string{"UnsupportedValue spec.rules[0].backendRefs[0].filters"}},
		{"fields without effect are reported", `{parentRefs: [{group: "", kind: Service, name: cart}], hostnames: [a.b], rules: [{` + v1 + `}]}`,
			parents + `{"index":0,` + any + `,` + toV1 + `}]}`, []string{"NoEffect spec.hostnames"}},

		{"sessions by a cookie", session(`{}`), sessionOf(`{}`), nil},
		{"a permanent cookie", session(`{sessionName: JSESSIONID, type: Cookie, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}`),
			sessionOf(`{"name":"JSESSIONID","lifetime":3600000000000,"permanent":true}`), nil},
		{"sessions by a header", session(`{sessionName: X-Session, type: Header, absoluteTimeout: 500ms}`), sessionOf(`{"name":"x-session","header":true,"lifetime":500000000}`), nil},
		{"a permanent cookie without an end", session(`{cookieConfig: {lifetimeType: Permanent}}`),
			brokenSession(`{"permanent":true}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.absoluteTimeout"}},
		{"a cookie whose name ends the header", session(`{sessionName: "a;b"}`), brokenSession(`{"name":"a;b"}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.sessionName"}},
		{"a header that has a meaning", session(`{sessionName: Host, type: Header}`), brokenSession(`{"name":"host","header":true}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.sessionName"}},
		{"a header with an attribute of cookies", session(`{type: Header, cookieConfig: {}}`), brokenSession(`{"header":true}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.cookieConfig"}},
		{"sessions of another type", session(`{type: Address}`), brokenSession(`{}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.type"}},
		{"sessions that end at no time", session(`{absoluteTimeout: soon}`), brokenSession(`{}`), []string{"UnsupportedValue spec.rules[0].sessionPersistence.absoluteTimeout"}},
		{"sessions of what is redirected", ofCart(`{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}], sessionPersistence: {}}`),
			parents + `{"index":0,` + any + `,"redirect":{"scheme":"https","status":302}}]}`, []string{"NoEffect spec.rules[0].sessionPersistence"}},
	})
}

func TestGRPCRoute(t *testing.T) {
	match := func(method string) string {
		return ofCart(`{matches: [{method: ` + method + `}], backendRefs: [{name: v1, port: 80}]}`)
	}
	content := func(path, precedence string) string {
		return `{"kind":"GRPCRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[{"index":0,"matches":[{"path":{` + path + `},"precedence":` + precedence +
			`}],"backends":[{"service":{"namespace":"shop","name":"v1"},"port":80,"weight":1}]}]}`
	}
	check(t, grpcRoute, []row{
		{"a method", match(`{service: a.B, method: C}`), content(`"exact":"/a.B/C"`, `[0,3,1,0,0]`), nil},
		{"a service", match(`{service: a.B}`), content(`"prefix":"/a.B"`, `[0,3,0,0,0]`), nil},
		{"a method of any service", match(`{method: C}`), content(`"regex":"/[^/]+/C"`, `[0,0,1,0,0]`), nil},
		{"sessions", ofCart(`{sessionPersistence: {sessionName: session, type: Header}}`),
			`{"kind":"GRPCRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[{"index":0,"matches":[{"precedence":[0,0,0,0,0]}],"session":{"name":"session","header":true}}]}`, nil},
		{"expressions", match(`{type: RegularExpression, service: a.*, method: C|D}`), content(`"regex":"/(?:a.*)/(?:C|D)"`, `[0,3,3,0,0]`), nil},
	})
}

func TestTLSRoute(t *testing.T) {
	const tlsRoute = "apiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute"
	const parents = `{"kind":"TLSRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],`
	of := func(hosts string) string {
		return `{hostnames: [` + hosts + `], parentRefs: [{group: "", kind: Service, name: cart}], rules: [{backendRefs: [{name: v1, port: 443}]}]}`
	}
	const rules = `"rules":[{"index":0,"matches":null,"backends":[{"service":{"namespace":"shop","name":"v1"},"port":443,"weight":1}]}]}`
	check(t, tlsRoute, []row{
		{"server names", of(`A.example.com, "*.example.com"`), parents + `"hosts":["a.example.com","*.example.com"],` + rules, nil},
		{"a server name that is none", of(`"*", a.example.com`), parents + `"hosts":["a.example.com"],` + rules, []string{"UnsupportedValue spec.hostnames[0]"}},
	})
}

func TestGatewayTCPRoute(t *testing.T) {
	const tcpRoute = "apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute"
	const parents = `{"kind":"TCPRoute","parents":[{"index":0,"service":{"namespace":"shop","name":"cart"}}],"rules":[`
	const first = `{"index":0,"matches":null,"backends":[{"service":{"namespace":"shop","name":"v1"},"port":80,"weight":2}]}]}`
	check(t, tcpRoute, []row{
		{"a route of another kind of parent is nothing to the mesh", `{parentRefs: [{kind: Mesh, name: cart}], rules: [{backendRefs: [{name: v1, port: 80}]}]}`, `nothing`, nil},
		{"a gateway's route", `{parentRefs: [{name: web}], rules: [{backendRefs: [{name: v1, port: 80, weight: 2}]}]}`,
			`{"kind":"TCPRoute","gateways":[{"index":0,"gateway":{"namespace":"shop","name":"web"}}],"rules":[` + first, nil},
		{"weights", ofCart(`{backendRefs: [{name: v1, port: 80, weight: 2}]}`), parents + first, nil},
		{"only the first rule matches", ofCart(`{backendRefs: [{name: v1, port: 80, weight: 2}]}, {backendRefs: [{name: v2, port: 80}]}`), parents + first, []string{"NoEffect spec.rules[1]"}},
	})
}

func TestReferenceGrant(t *testing.T) {
	const grant = "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant"
	const from = `{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: front}, {group: gateway.networking.k8s.io, kind: Gateway, namespace: front}], to: `
	const base = `{"from":[{"kind":"HTTPRoute","namespace":"front"},{"kind":"Gateway","namespace":"front"}],`
	check(t, grant, []row{
		{"some services", from + `[{group: "", kind: Service, name: cart}, {group: "", kind: Secret}]}`, base + `"services":["cart"],"secrets":["*"]}`, nil},
		{"all services", from + `[{group: "", kind: Service}]}`, base + `"services":["*"]}`, nil},
		{"a Secret", from + `[{group: "", kind: Secret, name: own}]}`, base + `"secrets":["own"]}`, nil},
		{"of neither services nor Secrets", from + `[{group: "", kind: ConfigMap}]}`, `nothing`, nil},
		{"for neither routes nor Gateways", `{from: [{group: gateway.networking.k8s.io, kind: GatewayClass, namespace: front}], to: [{group: "", kind: Service}]}`, `nothing`, nil},
	})
}

// TestParents holds what a route's status says of its parents that are services.
func TestParents(t *testing.T) {
	var kind source.Kind
	for _, k := range source.Kinds() {
		if k.Kind == "HTTPRoute" {
			kind = k
		}
	}
	service := func(name string) gateway.ParentReference {
		group, of := gateway.Group(""), gateway.Kind("Service")
		return gateway.ParentReference{Group: &group, Kind: &of, Name: gateway.ObjectName(name)}
	}
	other := gateway.RouteParentStatus{ParentRef: gateway.ParentReference{Name: "gw"}, ControllerName: "example.com/other"}
	route := &source.HTTPRoute{HTTPRoute: gateway.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Generation: 3}}}
	route.Spec.ParentRefs = []gateway.ParentReference{{Name: "gw"}, service("cart"), service("gone")}
	route.Status.Parents = []gateway.RouteParentStatus{other}
	problem := func(reason, field string) mesh.Problem {
		return mesh.Problem{Reason: reason, Field: field, Message: "it is so"}
	}
	problems := []mesh.Problem{
		problem(fact.ReasonNoMatchingParent, "spec.parentRefs[2]"),
		problem(fact.ReasonBackendNotFound, "spec.rules[0].backendRefs[0]"),
		problem(fact.ReasonUnsupportedValue, "spec.rules[1].filters[0]"),
		problem(source.ReasonNoEffect, "spec.hostnames"),
	}
	now := metav1.NewTime(time.Unix(1700000000, 0))
	fresh, changed := kind.SetGatewayStatus(route, &fact.Problems{List: problems}, now)
	if !changed || len(fresh) != len(problems) {
		t.Errorf("%d of %d Problems are new, changed is %v", len(fresh), len(problems), changed)
	}
	if diff := cmp.Diff(other, route.Status.Parents[0]); diff != "" {
		t.Errorf("the entry of another controller (-want +got):\n%s", diff)
	}
	var got [][]string
	for _, parent := range route.Status.Parents[1:] {
		line := []string{string(parent.ParentRef.Name), string(parent.ControllerName)}
		for _, c := range parent.Conditions {
			if c.ObservedGeneration != 3 {
				t.Errorf("%s is for generation %d", c.Type, c.ObservedGeneration)
			}
			line = append(line, c.Type+"="+string(c.Status)+" "+c.Reason+": "+c.Message)
		}
		got = append(got, line)
	}
	const controller = "outrigger.openservicemesh.io/controller"
	const unresolved = "ResolvedRefs=False BackendNotFound: spec.rules[0].backendRefs[0]: it is so"
	const partial = "PartiallyInvalid=True UnsupportedValue: Dropped Rule: what follows matches nothing, or is answered with 500\nspec.rules[1].filters[0]: it is so"
	want := [][]string{
		{"cart", controller, "Accepted=True Accepted: spec.hostnames: it is so", unresolved, partial},
		{"gone", controller, "Accepted=False NoMatchingParent: spec.parentRefs[2]: it is so", unresolved, partial},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the parents (-want +got):\n%s", diff)
	}
	if fresh, changed := kind.SetGatewayStatus(route, &fact.Problems{List: problems}, metav1.Now()); changed || len(fresh) > 0 {
		t.Errorf("the second time %d Problems are new, changed is %v", len(fresh), changed)
	}
	route.Spec.ParentRefs = route.Spec.ParentRefs[:1]
	if _, changed := kind.SetGatewayStatus(route, new(fact.Problems), metav1.Now()); !changed || len(route.Status.Parents) != 1 {
		t.Errorf("without services as parents, the status has %d entries", len(route.Status.Parents))
	}
}
