package pipy

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// each returns f of every element. The result is never nil: an empty list of conditions
// matches nothing and must not be mistaken for an absent one.
func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = f(a)
	}
	return out
}

func request(m mesh.HTTPMatch) requestDocument {
	out := requestDocument{Methods: m.Methods, Headers: each(m.Headers, keyMatch), Query: each(m.Query, keyMatch)}
	if m.Path != (mesh.StringMatch{}) {
		path := pathMatch(m.Path)
		out.Path = &path
	}
	return out
}

func keyMatch(m mesh.KeyMatch) keyMatchDocument {
	return keyMatchDocument{Name: m.Name, matchDocument: stringMatch(m.StringMatch)}
}

// stringMatch returns the match of a header or a query parameter.
func stringMatch(m mesh.StringMatch) matchDocument {
	switch {
	case m.Exact != "":
		return matchDocument{Exact: m.Exact}
	case m.Prefix != "":
		return matchDocument{StringPrefix: m.Prefix}
	case m.Regex != "":
		return regexMatch(m.Regex)
	case m.Present:
		return matchDocument{Present: true}
	}
	return matchDocument{Any: true}
}

// pathMatch returns the match of a path.
func pathMatch(m mesh.StringMatch) matchDocument {
	if m.Exact != "" || m.Prefix == "" {
		return stringMatch(m)
	}
	prefix := strings.TrimSuffix(m.Prefix, "/")
	if prefix == "" {
		return matchDocument{StringPrefix: "/"}
	}
	return matchDocument{Prefix: prefix}
}

// regexMatch returns the match of an expression. An invalid or too large one matches
// nothing, so that nothing passes that RE2 would reject.
func regexMatch(expression string) matchDocument {
	regex, err := newAutomaton(expression)
	if err != nil {
		return matchDocument{Never: true}
	}
	return matchDocument{Regex: regex}
}
