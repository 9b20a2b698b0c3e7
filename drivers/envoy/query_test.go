package envoy

import (
	"regexp"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// FuzzFirstParameter compares the expressions for query parameters with their definition. Go's
// syntax is that of Envoy.
func FuzzFirstParameter(f *testing.F) {
	for _, query := range []string{
		"", "s=1", "s=a%20b", "%73=a+b", "s=1&s=2", "s=2&s=1", "r=1&s", "s=", "$top=5", "%24top=5", "s=a=b", "s=%zz&s=1", "s=1;&s=1", "%s=1", "%", "s%=1&s=1",
		"s=%&s=1", "s=%3&s=1", "%7=1&s=1", "s%73=1&s=1", "ss=1&s=1", "+s=1", "&&s=1", "s=1&%zz", "S=1", "s=1?s=2", "s+=1", "=1", "s=1%", "s;=2&s=1",
	} {
		for _, name := range []string{"s", "$top", "a b", "ss", "é", ";", "%", "+"} {
			f.Add(query, name, "1")
			f.Add(query, name, "a b")
		}
	}
	f.Fuzz(func(t *testing.T, query, name, value string) {
		if strings.ContainsAny(query, "#\n") || name == "" || value == "" || len(name)+len(value) > 100 ||
			strings.ContainsFunc(query, func(r rune) bool { return r >= 0x80 }) {
			// No target has these.
			return
		}
		got, found := mesh.QueryParameter(query, name)
		for _, q := range []struct {
			match mesh.StringMatch
			want  bool
		}{
			{mesh.StringMatch{Exact: value}, found && got == value},
			{mesh.StringMatch{Prefix: value}, found && strings.HasPrefix(got, value)},
			{mesh.StringMatch{Present: true}, found},
		} {
			pattern := firstParameter(mesh.KeyMatch{Name: name, StringMatch: q.match})
			if matches := regexp.MustCompile(`\A(?:` + string(pattern) + `)\z`).MatchString("/a?" + query); matches != q.want {
				t.Errorf("%q of %q is %q, %t; %+v matches: %t\n%s", name, query, got, found, q.match, matches, pattern)
			}
		}
	})
}

// TestLongestParameter has a real Envoy accept the expressions for the longest names and values.
func TestLongestParameter(t *testing.T) {
	q := mesh.KeyMatch{Name: strings.Repeat("n", maxParameterName), StringMatch: mesh.StringMatch{Prefix: strings.Repeat("é", maxParameterValue/2)}}
	b := backend(port("shop", 80), mesh.HTTP)
	d := destination(b.Service, mesh.HTTP, "10.96.0.1", b)
	d.Routes[0].Match.Query = []mesh.KeyMatch{q}
	if err := check(t, fixture{scope: "*", destinations: []*mesh.Destination{d}, backends: []*mesh.Backend{b}}.view()); err != nil {
		t.Error(lastOf(err))
	}
}
