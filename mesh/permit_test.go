package mesh_test

import (
	"regexp"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestRefusal checks that access rules don't match requests that an application could
// read differently.
func TestRefusal(t *testing.T) {
	prefix := mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/public"}}
	once := mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "once", StringMatch: mesh.StringMatch{Exact: "1"}}}}
	there := mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "once"}}}
	for _, tt := range []struct {
		match mesh.HTTPMatch
		path  string
		want  string
	}{
		{prefix, "/public/a?x=%2f;", ""},
		{prefix, "/public", ""},
		{prefix, "/publicity/%2f", "path"},
		{prefix, "/public/a%2Fb", "path spelling"},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/public/.*"}}, "/public/a%2Fb", "path spelling"},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/public/a%2Fb"}}, "/public/a%2Fb", ""},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/"}}, "/public/a%2Fb", ""},
		{mesh.HTTPMatch{}, "/public/a%2Fb?a;b", ""},
		{once, "/?once=1", ""},
		{once, "/?a=%26&once=1&b", ""},
		{once, "/?once=2", `query parameter "once"`},
		{once, "/?once=1&once=2", "query spelling"},
		{once, "/?once=1&%6fnce=2", "query spelling"},
		{once, "/?once=1&%6Fnce=2", "query spelling"},
		{once, "/?%6fnce=1", "query spelling"},
		{once, "/?%6fnce=2&once=1", `query parameter "once"`},
		{once, "/?once=1&a+b=2", "query spelling"},
		{once, "/?once=1&%zz=2", "query spelling"},
		{once, "/?once=1;once=2", `query parameter "once"`},
		{once, "/?a=1;once=2&once=1", "query spelling"},
		{once, "/?once=%31", ""},
		{there, "/?once=%31", ""},
		{there, "/?once&once", "query spelling"},
	} {
		if got := tt.match.Refusal(&mesh.Request{Path: tt.path}); got != tt.want {
			t.Errorf("%+v refuses %s for %q, want %q", tt.match, tt.path, got, tt.want)
		}
		if got := tt.match.Permits(&mesh.Request{Path: tt.path}); got != (tt.want == "") {
			t.Errorf("%+v permits %s: %t", tt.match, tt.path, got)
		}
	}
	if prefix.Permits(nil) || !(mesh.HTTPMatch{}).Permits(nil) {
		t.Error("a connection is not permitted as it is matched")
	}
}

// TestAccessIsStrict checks that access control is stricter than routing.
func TestAccessIsStrict(t *testing.T) {
	web := mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "web"}
	match := mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/public"}}
	r := &mesh.Request{Path: "/public/..%2Fadmin"}
	access := mesh.Access{Rules: []mesh.Permission{{Origin: drivertest.Origin("TrafficTarget", "a/b"), Sources: []mesh.Identity{web}, Requests: []mesh.HTTPMatch{match}}}}
	if !match.Matches(r) || access.Decide(web, r).Allowed {
		t.Errorf("the match is %t, and the decision %+v", match.Matches(r), access.Decide(web, r))
	}
	in := &mesh.Inbound{Ports: []mesh.InboundPort{{Port: 80, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{AnyPrincipal: true, TLS: true, Requests: []mesh.HTTPMatch{match}}}}}}
	if d := in.Decide(mesh.Arrival{Port: 80, Security: mesh.OtherTLS, Peer: web, Request: r}); d.Allowed {
		t.Errorf("by ingress the decision is %+v", d)
	}
}

func TestAmbiguousPath(t *testing.T) {
	ambiguous := regexp.MustCompile(mesh.AmbiguousPath)
	for path, want := range map[string]bool{
		"/": false, "/a/b.c/..d/.e/f..": false, "/a;v=1/b": false, "/a%20b": false, "/%C3%A9": false, "/é": false, "/a%2Cb%40c%3Dd": false, "/%E2%82%AC": false, "/%f0%9f%98%80": false, "/%e0%a0%80": false,
		"/a%2Fb": true, "/a%2fb": true, "/a%5cb": true, "/a\\b": true, "/%00": true, "/%0d%0a": true, "/%1F": true, "/%7f": true,
		"/%3b": true, "/..%3B/": true, "/%25": true, "/%252e": true, "/%23": true, "/%3F": true, "/%2e%2E/": true, "/a%2e": true,
		"/%c0%af": true, "/%C1%9C": true, "/%e0%80%af": true, "/%E0%9f%bf": true, "/%f0%80%80%af": true, "/%f8%80%80%80%af": true, "/%fc%80%80%80%80%af": true,
		"/%": true, "/%2": true, "/%zz": true, "/%a": true, "/%az": true, "/%u002f": true,
		"//": true, "/a//b": true, "/a/./b": true, "/a/..": true, "/a/.": true, "/..;/a": true, "/.;a/b": true, "/a#b": true,
	} {
		if got := ambiguous.MatchString(path); got != want {
			t.Errorf("%s is ambiguous: %t", path, got)
		}
	}
}

func TestHeaderSpellings(t *testing.T) {
	for _, tt := range []struct {
		name, spelling string
		any, other     bool
	}{
		{"x-tenant", "x-tenant", true, false},
		{"x-tenant", "x_tenant", true, true},
		{"x-tenant", "x.tenant", true, true},
		{"x-tenant", "xtenant", false, false},
		{"x-tenant", "x--tenant", false, false},
		{"x-a-b", "x_a-b", true, true},
		{"x-a-b", "x-a_b", true, true},
		{"x-a-b", "x_a_b", true, true},
		{"x-a-b", "x-a-b", true, false},
		{"tenant", "tenant", true, false},
		{"x_tenant", "x-tenant", true, false},
	} {
		whole := func(expression string) bool {
			return expression != "" && regexp.MustCompile(`^(?:`+expression+`)$`).MatchString(tt.spelling)
		}
		if got := whole(mesh.HeaderSpellings(tt.name)); got != tt.any {
			t.Errorf("%s is a spelling of %s: %t", tt.spelling, tt.name, got)
		}
		if got := whole(mesh.OtherSpellings(tt.name)); got != tt.other {
			t.Errorf("%s is another spelling of %s: %t", tt.spelling, tt.name, got)
		}
	}
}
