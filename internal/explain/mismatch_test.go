package explain

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestMismatch checks that refusals because of a request's spelling are explained.
func TestMismatch(t *testing.T) {
	header := mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x-tenant", StringMatch: mesh.StringMatch{Exact: "blue"}}}}
	for _, tt := range []struct {
		match mesh.HTTPMatch
		path  string
		lines []string
		want  string
	}{
		{header, "/", nil, `the request has no header "x-tenant"`},
		{header, "/", []string{"red"}, `the header "x-tenant" does not match`},
		{header, "/", []string{"red", "blue"}, `the request has several lines of the header "x-tenant"`},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/public"}}, "/public/..%2fadmin", nil, "some applications would read the path differently"},
		{mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "once"}}}, "/?once=1&%6fnce=2", nil, "a query parameter is repeated or escaped, or the query has a semicolon"},
	} {
		r := &mesh.Request{Path: tt.path, Headers: map[string][]string{"x-tenant": tt.lines}}
		if got := mismatch(tt.match.Refusal(r), r); got != tt.want {
			t.Errorf("%s with %q: %q, want %q", tt.path, tt.lines, got, tt.want)
		}
		if lack([]mesh.HTTPMatch{tt.match}, r, mesh.HTTPMatch.Refusal) == "" {
			t.Errorf("%s with %q lacks nothing", tt.path, tt.lines)
		}
	}
}
