package catalog

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestCookiePath(t *testing.T) {
	for want, paths := range map[string][]mesh.StringMatch{
		"/":      {{}, {Prefix: "/"}, {Regex: "/[a-z]+"}, {Regex: ".*"}, {Exact: "/a;Domain=example.com"}, {Exact: "/a b"}},
		"/a":     {{Prefix: "/a"}, {Exact: "/a"}, {Regex: "/a"}, {Regex: "/a/.*"}, {Regex: "/a/b.*"}},
		"/p1/p2": {{Regex: "/p1/p2/[^/]+/p3"}},
	} {
		for _, path := range paths {
			if got := cookiePath(path); got != want {
				t.Errorf("the cookie of %+v has the path %q, want %q", path, got, want)
			}
		}
	}
}

// TestSessionNames checks that rules without a name for their sessions have different ones.
func TestSessionNames(t *testing.T) {
	route := &fact.Route{Name: mesh.Name{Namespace: "shop", Name: "r"}, Kind: fact.HTTPRoute}
	rule := func(index int, name string, session fact.RouteSession) *mesh.Session {
		return sessionFor(route, &fact.RouteRule{Index: index, Name: name, Session: &session}, mesh.StringMatch{})
	}
	first, second := rule(0, "", fact.RouteSession{}), rule(1, "", fact.RouteSession{})
	if first.Cookie == "" || first.Cookie == second.Cookie || first.Rule == second.Rule {
		t.Errorf("two rules have the sessions %+v and %+v", first, second)
	}
	if was, is := rule(0, "a", fact.RouteSession{Header: true}), rule(1, "a", fact.RouteSession{Header: true}); was.Header == "" || *was != *is {
		t.Errorf("a rule with a name has the sessions %+v, and in another place %+v", was, is)
	}
}
