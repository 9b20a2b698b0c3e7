package pipy

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// requests returns the matches. None stays none: it holds for nothing.
func requests(matches []mesh.HTTPMatch) []requestDocument {
	out := make([]requestDocument, len(matches))
	for i, m := range matches {
		out[i] = request(m)
	}
	return out
}

func request(m mesh.HTTPMatch) requestDocument {
	out := requestDocument{Methods: m.Methods, Headers: keys(m.Headers), Query: keys(m.Query)}
	if m.Path != (mesh.StringMatch{}) {
		path := pathMatch(m.Path)
		out.Path = &path
	}
	return out
}

func keys(matches []mesh.KeyMatch) []keyMatchDocument {
	out := make([]keyMatchDocument, len(matches))
	for i, m := range matches {
		out[i] = keyMatchDocument{Name: m.Name, matchDocument: stringMatch(m.StringMatch)}
	}
	return out
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

// regexMatch returns the match of an expression, and one that holds for nothing if
// it is none or is too large: nothing may pass that RE2 would not let pass.
func regexMatch(expression string) matchDocument {
	regex, err := newAutomaton(expression)
	if err != nil {
		return matchDocument{Never: true}
	}
	return matchDocument{Regex: regex}
}
