package envoy

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

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
			pattern, _ := firstParameter(mesh.KeyMatch{Name: name, StringMatch: q.match})
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

// FuzzEscapedRegex compares the expressions for values as they are written with those for decoded
// values.
func FuzzEscapedRegex(f *testing.F) {
	for _, pattern := range []string{
		"", "a", "a b", ".*", "^v[0-9]+$", "(?i)straße|K", "a?", "[^/]+", `\d{2,3}`, `\S*`, "(a|b c)*", `a\.b`, "é", "[é-ü]x?", "%", "[&;]", `\bword\b`, "a^b", "x{3}|", "(?s).", "[[:^alpha:]]",
	} {
		for _, query := range []string{"s", "s=", "s=a", "s=a%20b", "s=a+b", "%73=v12", "s=%C3%A9x", "s=%26", "s=a&s=b", "s=1;&s=a", "s=%zz", "s=stra%C3%9Fe", "s=%E2%84%AA", "s=/", "s=%2F", "s=%0A", "s=%61", "s=%3b"} {
			f.Add(pattern, query)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, query string) {
		if strings.ContainsAny(query, "#\n") || len(pattern) > 100 || len(query) > 100 || strings.ContainsFunc(query, func(r rune) bool { return r >= 0x80 }) {
			return
		}
		compiled, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
		escaped, ok := firstParameter(mesh.KeyMatch{Name: "s", StringMatch: mesh.StringMatch{Regex: pattern}})
		value, found := mesh.QueryParameter(query, "s")
		if err != nil || !ok || !utf8.ValidString(value) || pattern == "" {
			return
		}
		want := found && compiled.MatchString(value)
		if got := regexp.MustCompile(`\A(?:` + string(escaped) + `)\z`).MatchString("/a?" + query); got != want {
			t.Errorf("%q matches %q: %t, want %t\n%s", pattern, query, got, want, escaped)
		}
	})
}

// TestUntranslatedRegex has the expressions for values that Envoy compares as they are written.
func TestUntranslatedRegex(t *testing.T) {
	for pattern, want := range map[string]bool{".*": true, "^v[0-9]+$": true, "(?i)a+": true, `\bword`: false, "a^b": false, `\p{Greek}`: false, strings.Repeat("[^a]", 500): false} {
		if _, got := firstParameter(mesh.KeyMatch{Name: "s", StringMatch: mesh.StringMatch{Regex: pattern}}); got != want {
			t.Errorf("%.20q is translated: %t, want %t", pattern, got, want)
		}
	}
}
