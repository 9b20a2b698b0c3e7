package source

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// httpRouteGroup always returns a group: one without matches matches nothing, but
// references to it are valid.
func httpRouteGroup(obj *specs.HTTPRouteGroup, n *notes) mesh.Digester {
	group := &fact.RouteGroup{Name: nameOf(&obj.ObjectMeta)}
	n.needed("spec.matches", len(obj.Spec.Matches), "match, so the group matches no request")
	names := make(map[string]bool)
	for i := range obj.Spec.Matches {
		m, path := &obj.Spec.Matches[i], index("spec.matches", i)
		if m.Name == "" {
			n.add(ReasonMissing, path+".name", "the match has no name, so others can only refer to the whole group; name it")
		}
		if names[m.Name] {
			n.add(ReasonDuplicate, path+".name", "another match also has the name %q, so this one is ignored; use unique names", m.Name)
			continue
		}
		names[m.Name] = true
		if match, ok := n.httpMatch(path, m); ok {
			group.HTTP = append(group.HTTP, fact.NamedMatch{Name: m.Name, HTTPMatch: match})
		}
	}
	return mesh.Seal(group)
}

// httpMatch parses a match. If a condition is invalid, the whole match is dropped, since
// it would match more without the condition.
func (n *notes) httpMatch(path string, m *specs.HTTPMatch) (mesh.HTTPMatch, bool) {
	var match mesh.HTTPMatch
	var okMethods, okHeaders bool
	okPath := true
	match.Methods, okMethods = n.methods(path+".methods", m.Methods)
	if m.PathRegex != "" && m.PathRegex != anything {
		match.Path, okPath = n.wholeMatch(path+".pathRegex", m.PathRegex)
	}
	match.Headers, okHeaders = n.headers(path+".headers", m.Headers)
	return match, okMethods && okPath && okHeaders
}

// anything matches every string.
const anything = ".*"

func (n *notes) wholeMatch(path, expression string) (mesh.StringMatch, bool) {
	match, err := n.parseMatch(expression)
	if err != nil {
		n.add(ReasonInvalidRegex, path, "%q is not usable, so the match is ignored: %v", expression, err)
	}
	return match, err == nil
}

// headers parses conditions on headers, all of which must hold. The result is sorted.
func (n *notes) headers(path string, list []map[string]string) ([]mesh.KeyMatch, bool) {
	ok := true
	var matches []mesh.KeyMatch
	for i, headers := range list {
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			if !isHeaderName(name) {
				n.add(ReasonInvalid, index(path, i), "%q is not the name of a header, so the match is ignored; write a name such as x-version, or host for the request's host", name)
				ok = false
				continue
			}
			match := mesh.KeyMatch{Name: strings.ToLower(name)}
			if headers[name] == anything {
				match.Present = true
			} else {
				value, valid := n.wholeMatch(index(path, i)+"["+name+"]", headers[name])
				match.StringMatch = value
				ok = ok && valid
			}
			matches = append(matches, match)
		}
	}
	return sortedSet(matches, func(a, b mesh.KeyMatch) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Exact, b.Exact), cmp.Compare(a.Regex, b.Regex))
	}), ok
}

// methods are the methods that routes and rules can name.
var methods = []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}

// methods returns nil for all methods, and false if none of the given ones is valid.
func (n *notes) methods(path string, listed []specs.HTTPMethod) ([]string, bool) {
	var names []string
	for i, method := range listed {
		if method != specs.HTTPMethodAll && !slices.Contains(methods, string(method)) {
			n.add(ReasonInvalid, index(path, i), "%q is not a method and is ignored; use *, or one of %s in capitals", string(method), strings.Join(methods, ", "))
			continue
		}
		names = append(names, string(method))
	}
	if len(listed) > 0 && len(names) == 0 {
		n.add(ReasonMissing, path, "none of the methods is valid, so the match is ignored; correct them, or remove them all for any method")
		return nil, false
	}
	if slices.Contains(names, string(specs.HTTPMethodAll)) {
		return nil, true
	}
	return sortedSet(names, strings.Compare), true
}

// isHeaderName reports whether a value is a header name (RFC 9110, 5.1).
func isHeaderName(name string) bool {
	return name != "" && len(name) <= 256 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// maxPorts is how many ports a TCPRoute may match if it names them.
const maxPorts = 1000

// tcpRoute returns nil if none of the ports is valid, since an empty list would match any
// port.
func tcpRoute(obj *specs.TCPRoute, n *notes) mesh.Digester {
	match := &fact.TCPMatch{}
	declared := obj.Spec.Matches.Ports
	for i, number := range declared {
		if port, ok := n.port(index("spec.matches.ports", i), number); ok {
			match.Ports = append(match.Ports, port)
		}
	}
	if len(declared) > 0 && len(match.Ports) == 0 {
		n.add(ReasonMissing, "spec.matches.ports", "none of the ports is valid, so the route matches no connection; correct them, or remove them all to match every port")
		return nil
	}
	match.Ports = sortedSet(match.Ports, cmp.Compare[uint16])
	if len(match.Ports) > maxPorts {
		n.add(ReasonInvalid, "spec.matches.ports", "only the lowest %d of its %d ports are used, since each is a part of every proxy's configuration; remove some, or all to match every port", maxPorts, len(match.Ports))
		match.Ports = match.Ports[:maxPorts]
	}
	return mesh.Seal(&fact.RouteGroup{Name: nameOf(&obj.ObjectMeta), TCP: match})
}
