package access

import (
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// knownCase is rules with requests that other proxies have let through, and one that must pass.
type knownCase struct {
	name   string
	access mesh.Access
	// passes and refused are the requests. Refused ones get no answer of the application.
	passes  request
	refused []request
}

func denyAll(what ...mesh.HTTPMatch) mesh.Access {
	return mesh.Access{Anyone: true, Denials: []mesh.Denial{{Origin: drivertest.Origin("AccessPolicy", "shop/deny"), Everyone: true, Requests: what}}}
}

func allowTo(source mesh.Identity, what ...mesh.HTTPMatch) mesh.Access {
	return mesh.Access{Rules: []mesh.Permission{{Origin: drivertest.Origin("AccessPolicy", "shop/allow"), Sources: []mesh.Identity{source}, Requests: what}}}
}

// get returns a request of shop/web with more headers, names and values in turn.
func get(target string, fields ...string) request {
	r := request{Caller: "shop/web", Version: "1.1", Method: http.MethodGet, Target: target, Fields: [][2]string{{"Host", "shop.example.com"}}}
	for i := 0; i+1 < len(fields); i += 2 {
		r.Fields = append(r.Fields, [2]string{fields[i], fields[i+1]})
	}
	return r
}

func (r request) by(caller string) request    { r.Caller = caller; return r }
func (r request) over(version string) request { r.Version = version; return r }
func (r request) with(method, body string) request {
	r.Method, r.Body = method, body
	return r
}

func path(m mesh.StringMatch) mesh.HTTPMatch { return mesh.HTTPMatch{Path: m} }

func header(name string, m mesh.StringMatch) mesh.HTTPMatch {
	return mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: name, StringMatch: m}}}
}

// smuggled is a second request within the first. The application must not get it.
const smuggled = "GET /admin HTTP/1.1\r\nHost: shop.example.com\r\nx-smuggled: 1\r\n\r\n"

// knownCases have one case for each class of faults in how a proxy decided about access for which
// Envoy, Istio, HAProxy or Traefik had an advisory in 2025 or 2026, and some of this project's own.
func knownCases() []knownCase {
	admin := denyAll(path(mesh.StringMatch{Prefix: "/admin"}))
	manyCommas := strings.Repeat(",", 30_000)
	return []knownCase{
		// CVE-2026-26308 of Envoy, also Istio's: several values of a header.
		{"several values of a header that is denied", denyAll(header("x-role", mesh.StringMatch{Exact: "admin"})), get("/", "x-role", "user"), []request{
			get("/", "x-role", "admin"), get("/", "x-role", "user", "x-role", "admin"), get("/", "x-role", "admin", "X-Role", "user"), get("/", "x-role", "user,admin"),
			get("/", "x-role", "user", "x-role", "admin").over("2"),
		}},
		{"several values of a header that is allowed", allowTo(identity("shop", ""), header("x-role", mesh.StringMatch{Exact: "user"})), get("/", "x-role", "user"), []request{
			get("/", "x-role", "user", "x-role", "admin"), get("/", "x-role", "admin", "x-role", "user"), get("/", "x-role", "user,admin"),
		}},
		// CVE-2026-47778 of Envoy: a NUL in the name of a certificate. CVE-2026-31360 of Traefik: the
		// trust domain. CVE-2026-39350 of Istio: dots in the name of a service account.
		{"names in certificates", allowTo(identity("shop", "web"), mesh.HTTPMatch{}), get("/"), []request{
			get("/").by("a NUL"), get("/").by("another trust domain"), get("/").by("a longer trust domain"), get("/").by("several URIs"), get("/").by("a longer path"),
			get("/").by("a delimiter"), get("/").by("no URI"), get("/").by("another root"), get("/").by("no certificate"), get("/").by("shop/web-2"), get("/").by("shop-2/web"), get("/").by("plaintext"),
		}},
		{"dots in the name of an account", allowTo(identity("ops", "tool.x"), mesh.HTTPMatch{}), get("/").by("ops/tool.x"), []request{get("/").by("ops/toolyx")}},
		{"a group is not the other trust domain's", allowTo(identity("", ""), mesh.HTTPMatch{}), get("/"), []request{get("/").by("another trust domain"), get("/").by("a longer trust domain"), get("/").by("a longer path")}},
		// CVE-2025-32431, CVE-2025-66490, CVE-2026-48020 and GHSA-vrch-868g-9jx5 of Traefik, and path parameters
		// of Envoy (August 2026): the application reads another path.
		{"other spellings of a path", admin, get("/public"), []request{
			get("/admin"), get("/x/../admin"), get("/x/%2e%2e/admin"), get("/x/.%2E/admin"), get("/./admin"), get("//admin"), get("/%61dmin"), get("/admin;v=1/x"), get("/x/..;/admin"), get("/x/..;v=1/admin"),
			get("/x%2fadmin"), get("/x%5cadmin"), get(`/x\..\admin`), get("/admin%00"), get("/%00/admin"), get("/admin%2f.."), get("/admin/%2e%2e%2fx"), get("/admin%3bx"), get("/admin%23"), get("/admin%3f"), get("/admin?x=/public"), get("/%2561dmin"), get("/%c0%afadmin"),
			get("http://shop.example.com/admin"), get("/x/..;/admin").over("2"), get("/x%2fadmin").over("2"), get("/%2e%2e/admin").over("1.0"), get("/admin").by("plaintext"), get("/x/../admin").by("plaintext"),
		}},
		{"a path that is allowed", allowTo(identity("shop", ""), path(mesh.StringMatch{Prefix: "/public"})), get("/public/a"), []request{
			get("/public/../admin"), get("/public/%2e%2e/admin"), get("/public/..;/admin"), get("/public/..%2fadmin"), get(`/public/..\admin`), get("/publicity"), get("/public%2f..%2fadmin"), get("/public/%2e.;/admin"), get("//admin/../public/..//admin"),
		}},
		{"a path that is excluded by an expression", allowTo(identity("shop", ""), path(mesh.StringMatch{Regex: "/[^a].*"})), get("/public"), []request{get("/admin"), get("/%61dmin"), get("/./admin"), get("/%2e/admin"), get("/b/../admin")}},
		// Envoy (August 2026): an expression and invalid UTF-8. CVE-2025-32464 of HAProxy was in expressions,
		// too; here PCRE2 gives up after many steps.
		{"an expression that denies, and text that is not UTF-8", denyAll(header("x-role", mesh.StringMatch{Regex: "[^u].*"})), get("/", "x-role", "user"), []request{
			get("/", "x-role", "admin"), get("/", "x-role", "\xff"), get("/", "x-role", "admin\xff"), get("/", "x-role", "é"), get("/", "x-role", "user,\xff"),
		}},
		{"a list that is long", denyAll(header("x-role", mesh.StringMatch{Exact: "admin"})), get("/", "x-role", "user"), []request{
			get("/", "x-role", "admin"+manyCommas), get("/", "x-role", manyCommas+"admin"+manyCommas), get("/", "x-role", "admin,\xff"), get("/", "x-role", "\xff,admin"),
		}},
		{"an expression that takes many steps", denyAll(path(mesh.StringMatch{Regex: "(/.*)?(a+)+b|/admin.*"})), get("/public"), []request{get("/admin"), get("/admin" + strings.Repeat("a", 60)), get("/x/aaab")}},
		// CVE-2025-64763 of Envoy, and early data of upgrades (August 2026): what follows is not a request
		// of its own.
		{"tunnels, and what follows an upgrade", admin, get("/public"), []request{
			get("/admin", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==").with(http.MethodGet, smuggled),
			{Caller: "shop/web", Version: "1.1", Method: http.MethodConnect, Target: "shop.example.com:80", Fields: [][2]string{{"Host", "shop.example.com:80"}}, Body: smuggled},
			get("/public").with(http.MethodConnect, smuggled),
			{Caller: "shop/web", Version: "2", Method: http.MethodConnect, Protocol: "websocket", Target: "/admin", Fields: [][2]string{{"Host", "shop.example.com"}}},
			{Caller: "shop/web", Version: "2", Method: http.MethodConnect, Protocol: "connect-udp", Target: "/admin", Fields: [][2]string{{"Host", "shop.example.com"}}},
		}},
		// Requests within requests: CVE-2026-33555 and the chunk sizes of HAProxy (October 2026), Traefik by
		// way of Go's net/http (GO-2025-3563).
		{"ends of bodies", admin, get("/public"), []request{
			get("/public", "Content-Length", "5", "Content-Length", "0").with("POST", smuggled),
			get("/public", "Content-Length", "+5").with("POST", "hello"+smuggled), get("/public", "Content-Length", "-1").with("POST", smuggled),
			get("/public", "Transfer-Encoding", "xchunked").with("POST", "0\r\n\r\n"+smuggled),
			get("/public", "Transfer-Encoding", "chunked").with("POST", "5\nhello\n0\n\n"+smuggled),
			get("/public", "Transfer-Encoding", "chunked").with("POST", "fffffffffffffffff5\r\nhello\r\n0\r\n\r\n"+smuggled),
		}},
		// CVE-2024-45410 of Traefik and its successors: a client removes or claims what a proxy says about it.
		{"a method that is denied", denyAll(mesh.HTTPMatch{Methods: []string{"DELETE"}}), get("/", "x-http-method-override", "DELETE"), []request{get("/").with("DELETE", ""), get("/").with("DELETE", "").over("2")}},
		{"a header that is allowed, in another spelling", allowTo(identity("shop", ""), header("x-role", mesh.StringMatch{Exact: "admin"})), get("/", "x-role", "admin"), []request{
			get("/", "x_role", "admin"), get("/", "x-role ", "admin"), get("/", "x-role\x00", "admin"), get("/", "x.role", "admin"), get("/", "x-role", "admin\x00"), get("/", "x-other", "1\r\n\tx-role: admin"),
		}},
		// CVE-2026-27588 of Caddy had the host's case, Envoy's advisory of August 2026 several hosts.
		{"a host that is denied", denyAll(header("host", mesh.StringMatch{Exact: "admin"})), get("/"), []request{
			{Caller: "shop/web", Version: "1.1", Method: "GET", Target: "/", Fields: [][2]string{{"Host", "admin"}}},
			{Caller: "shop/web", Version: "2", Method: "GET", Target: "/", Fields: [][2]string{{"Host", "admin"}}},
			{Caller: "shop/web", Version: "1.1", Method: "GET", Target: "http://admin/", Fields: [][2]string{{"Host", "admin"}}},
		}},
		{"a parameter that is denied", denyAll(mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "debug", StringMatch: mesh.StringMatch{Exact: "1"}}}}), get("/?debug=2"), []request{
			get("/?debug=1"), get("/?debug=2&debug=1"), get("/?debug=2" + strings.Repeat("&a", 10_000) + "&debug=3"), get("/?x;debug=1"), get("/?%64ebug=1"), get("/?debug=%31"), get("/?debug=1&debug=2"),
		}},
		{"an expression of a parameter that is denied", denyAll(mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "debug", StringMatch: mesh.StringMatch{Regex: "[^0].*"}}}}), get("/?debug=0"), []request{
			get("/?debug=1"), get("/?debug=%ff"), get("/?debug=%C3%A9"), get("/?debug=0&debug=1"),
		}},
		{"a parameter that is allowed", allowTo(identity("shop", ""), mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "debug", StringMatch: mesh.StringMatch{Exact: "1"}}}}), get("/?debug=1"), []request{
			get("/?debug=1%00x"), get("/?debug=1&debug=2"), get("/?debug=%31%00"), get("/?debug=1;x"), get("/?Debug=1"), get("/?debug="),
		}},
		{"a prefix of slashes", allowTo(identity("shop", "web"), path(mesh.StringMatch{Prefix: "//"})), get("/"), []request{get("/").by("shop/web-2")}},
	}
}

// TestKnownCases sends the requests of all known cases through each proxy.
func TestKnownCases(t *testing.T) {
	w := newWorkshop(t)
	cases := knownCases()
	r := round{in: &mesh.Inbound{TLS: mesh.Permissive}}
	for i := range cases {
		c := &cases[i]
		port := uint16(firstPort + i)
		r.in.Ports = append(r.in.Ports, mesh.InboundPort{Port: port, Protocol: mesh.HTTP, Access: c.access})
		for _, q := range append([]request{c.passes}, c.refused...) {
			q.Port = port
			r.requests = append(r.requests, q)
		}
	}
	r.in = mesh.Seal(r.in)
	for _, c := range classes {
		if w.programs[c.name] == "" {
			continue
		}
		counted := newTally()
		reached := make(map[string]bool)
		counted.each = func(q *request, o outcome) { reached[q.String()] = o.reached() }
		found, err := w.run(t.Context(), c, r, counted)
		if err != nil {
			t.Fatal(err)
		}
		w.report(t, 0, found)
		at := 0
		for _, k := range cases {
			for i := range 1 + len(k.refused) {
				q := &r.requests[at]
				at++
				// Where the request itself passes, its body must not become another one.
				if got := reached[q.String()]; got != (i == 0) && !strings.Contains(q.Body, smuggled) {
					t.Errorf("%s: %s: %v: it reached the application: %t", c.name, k.name, q, got)
				}
			}
		}
	}
}
