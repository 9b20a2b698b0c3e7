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

func (x *compiler) request(m mesh.HTTPMatch) requestDocument {
	out := requestDocument{Methods: m.Methods, Headers: each(m.Headers, x.keyMatch), Query: each(m.Query, x.keyMatch)}
	if m.Path != (mesh.StringMatch{}) {
		path := x.pathMatch(m.Path)
		out.Path = &path
	}
	return out
}

func (x *compiler) keyMatch(m mesh.KeyMatch) keyMatchDocument {
	return keyMatchDocument{Name: m.Name, matchDocument: x.stringMatch(m.StringMatch)}
}

// stringMatch returns the match of a header or a query parameter.
func (x *compiler) stringMatch(m mesh.StringMatch) matchDocument {
	switch {
	case m.Exact != "":
		return matchDocument{Exact: m.Exact}
	case m.Prefix != "":
		return matchDocument{StringPrefix: m.Prefix}
	case m.Regex != "":
		return x.regexMatch(m.Regex)
	case m.Present:
		return matchDocument{Present: true}
	}
	return matchDocument{Any: true}
}

// pathMatch returns the match of a path.
func (x *compiler) pathMatch(m mesh.StringMatch) matchDocument {
	if m.Exact != "" || m.Prefix == "" {
		return x.stringMatch(m)
	}
	prefix := strings.TrimSuffix(m.Prefix, "/")
	if prefix == "" {
		return matchDocument{StringPrefix: "/"}
	}
	return matchDocument{Prefix: prefix}
}
