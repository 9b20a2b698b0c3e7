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
	if m.Token != nil {
		// No token is verified.
		out.Path = &matchDocument{Never: true}
	} else if m.Path != (mesh.StringMatch{}) {
		path := x.pathMatch(m.Path)
		out.Path = &path
	}
	return out
}

// denied returns the requests that a denial refuses. A condition that cannot be expressed holds, as do
// those on tokens.
func (x *compiler) denied(m mesh.HTTPMatch) requestDocument {
	out := requestDocument{Methods: m.Methods}
	if path := x.pathMatch(m.Path); m.Path.Exact+strings.TrimRight(m.Path.Prefix, "/")+m.Path.Regex != "" && !path.Never {
		out.Path = &path
	}
	for _, h := range m.Headers {
		value := matchDocument{Present: true}
		if pattern, ok := mesh.DeniedValue(h.StringMatch); ok && h.Exact+h.Prefix+h.Regex != "" {
			if value = x.regexMatch(pattern); value.Never {
				value = matchDocument{Present: true}
			}
		}
		out.Headers = append(out.Headers, keyMatchDocument{Name: h.Name, matchDocument: value})
	}
	for _, q := range m.Query {
		value := x.stringMatch(q.StringMatch)
		if value.Never {
			value = matchDocument{Present: true}
		}
		out.Query = append(out.Query, keyMatchDocument{Name: q.Name, matchDocument: value})
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
	prefix := strings.TrimRight(m.Prefix, "/")
	if prefix == "" {
		return matchDocument{StringPrefix: "/"}
	}
	return matchDocument{Prefix: prefix}
}
