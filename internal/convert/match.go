package convert

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The limits of a match in the CRD of HTTPRoutes.
const (
	longestPath   = 1024
	longestHeader = 4096
	mostHeaders   = 16
)

// match is a match of a route, and what it compares.
type match struct {
	gateway.HTTPRouteMatch
	of         mesh.HTTPMatch
	precedence fact.Precedence
}

// split is a TrafficSplit with its matches.
type split struct {
	*fact.Split
	matches []match
}

// matches returns the matches of a split, up to the first one that every request has. All says
// that this is the last one.
func (p *port) matches(s *fact.Split) (matches []match, all bool) {
	if len(s.Matches) == 0 {
		return []match{{}}, true
	}
	for i, name := range s.Matches {
		group := p.groups[mesh.Name{Namespace: s.Namespace, Name: name}]
		if group == nil {
			p.note(s, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s among the objects, so no request matches", s.Namespace, name)
			continue
		}
		for _, m := range group.HTTP {
			if why := unwritable(m.HTTPMatch); why != "" {
				p.keep(group, "", "the match %s %s", m.Name, why)
				continue
			}
			for _, one := range matchesOf(m.HTTPMatch) {
				matches = append(matches, one)
				if one.Path == nil && one.Method == nil && len(one.Headers) == 0 {
					return matches, true
				}
			}
		}
	}
	return matches, false
}

// unwritable says why a match cannot be written in a route, or returns "".
func unwritable(m mesh.HTTPMatch) string {
	names := make(map[string]bool)
	for _, h := range m.Headers {
		switch {
		case names[h.Name]:
			return fmt.Sprintf("has two conditions on the header %s, and a route can have one", h.Name)
		case len(h.Exact) > longestHeader || len(h.Regex) > longestHeader:
			return fmt.Sprintf("has a longer expression for the header %s than the %d bytes of a route", h.Name, longestHeader)
		}
		names[h.Name] = true
	}
	switch {
	case len(m.Headers) > mostHeaders:
		return fmt.Sprintf("has more conditions on headers than the %d of a route", mostHeaders)
	case len(m.Path.Exact) > longestPath || len(m.Path.Regex) > longestPath:
		return fmt.Sprintf("has a longer path than the %d bytes of a route", longestPath)
	}
	return ""
}

// plainPath are the paths that the CRD of HTTPRoutes accepts for an exact match, but for those in
// which an element is empty or made of dots.
var plainPath = regexp.MustCompile(`^/(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*$`)

func isExactPath(path string) bool {
	if !plainPath.MatchString(path) || strings.Contains(path, "//") || strings.Contains(strings.ToLower(path), "%2f") {
		return false
	}
	return !slices.ContainsFunc(strings.Split(path, "/"), func(element string) bool { return element == "." || element == ".." })
}

// matchesOf returns one match for each method.
func matchesOf(m mesh.HTTPMatch) []match {
	var base match
	base.of = m
	path := func(kind gateway.PathMatchType, value string, precedence int) {
		base.Path = &gateway.HTTPPathMatch{Type: new(kind), Value: new(value)}
		base.precedence[0], base.precedence[1] = precedence, len(value)
	}
	base.precedence[1] = len("/")
	switch {
	case m.Path.Exact != "" && isExactPath(m.Path.Exact):
		path(gateway.PathMatchExact, m.Path.Exact, 2)
	case m.Path.Exact != "":
		path(gateway.PathMatchRegularExpression, regexp.QuoteMeta(m.Path.Exact), 1)
	case m.Path.Regex != "":
		path(gateway.PathMatchRegularExpression, m.Path.Regex, 1)
	}
	for _, h := range m.Headers {
		kind, value := gateway.HeaderMatchExact, h.Exact
		switch {
		case h.Regex != "":
			kind, value = gateway.HeaderMatchRegularExpression, h.Regex
		case h.Exact == "":
			kind, value = gateway.HeaderMatchRegularExpression, ".*"
		}
		base.Headers = append(base.Headers, gateway.HTTPHeaderMatch{Type: new(kind), Name: gateway.HTTPHeaderName(h.Name), Value: value})
	}
	base.precedence[3] = len(m.Headers)
	if len(m.Methods) == 0 {
		return []match{base}
	}
	var matches []match
	for _, method := range m.Methods {
		one := base
		one.of.Methods = []string{method}
		one.Method, one.precedence[2] = new(gateway.HTTPMethod(method)), 1
		matches = append(matches, one)
	}
	return matches
}

// checkOrder notes where the order of matches may matter. A request takes the first split that
// matches, and the most specific match of routes.
func (p *port) checkOrder(splits []split) {
	for i, first := range splits {
		for _, later := range splits[i+1:] {
			if one, other, found := conflict(first, later); found {
				p.note(later.Split, "spec.matches", "a request that has both the match %q of TrafficSplit %s and %q of this one goes to the backends of the former: a split that is older comes first, but a route uses the match that is more specific, which is the latter; check these requests",
					textOf(one), first.Name, textOf(other))
			}
		}
	}
}

// conflict returns a match of the first split, and one of a later split that comes before it in a
// route although a request may have both.
func conflict(first, later split) (one, other match, found bool) {
	if slices.Equal(first.Backends, later.Backends) {
		return one, other, false
	}
	for _, one := range first.matches {
		for _, other := range later.matches {
			if slices.Compare(other.precedence[:], one.precedence[:]) > 0 && !areDisjoint(one.of, other.of) {
				return one, other, true
			}
		}
	}
	return one, other, false
}

// areDisjoint reports whether certainly no request has both matches.
func areDisjoint(a, b mesh.HTTPMatch) bool {
	if len(a.Methods) > 0 && len(b.Methods) > 0 && !slices.ContainsFunc(a.Methods, func(m string) bool { return slices.Contains(b.Methods, m) }) {
		return true
	}
	if a.Path.Exact != "" && b.Path.Exact != "" && a.Path.Exact != b.Path.Exact {
		return true
	}
	return a.Path.Exact != "" && b.Path.Regex != "" && !b.Path.Matches(a.Path.Exact) || b.Path.Exact != "" && a.Path.Regex != "" && !a.Path.Matches(b.Path.Exact)
}

func textOf(m match) string {
	var words []string
	if m.Method != nil {
		words = append(words, string(*m.Method))
	}
	if m.Path != nil {
		words = append(words, *m.Path.Value)
	}
	for _, h := range m.Headers {
		words = append(words, string(h.Name)+": "+h.Value)
	}
	return strings.Join(words, " ")
}
