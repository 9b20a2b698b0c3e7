package envoy

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// callers is a set of identities, whose connections a handshake can accept.
type callers []members

// members are the identities for which one stands, except those for which others stand.
type members struct {
	id     mesh.Identity
	except []mesh.Identity
}

// callersOf returns the peers that may open connections whose requests are not known. The zero
// trust domain has no members.
func callersOf(a mesh.Access, trustDomain string) callers {
	if a.Anyone {
		return callers{{id: mesh.Identity{TrustDomain: trustDomain}}}.without(a.Denials)
	}
	var all callers
	for _, rule := range a.Rules {
		if matchesAny(rule.Requests) {
			all = append(all, callersNamed(rule.Sources, rule.Except, trustDomain)...)
		}
	}
	return all.without(a.Denials)
}

// callersNamed returns the identities that are of the mesh, as all that have its certificates are.
func callersNamed(ids, except []mesh.Identity, trustDomain string) callers {
	var all callers
	for _, id := range ids {
		if id.TrustDomain == trustDomain {
			all = append(all, members{id, except})
		}
	}
	return all
}

// without returns the callers whom the denials do not name. A denial of some requests is one of
// all connections.
func (c callers) without(denials []mesh.Denial) callers {
	for _, d := range denials {
		if len(d.Requests) == 0 {
			continue
		}
		var left callers
		for _, m := range c {
			if !d.Everyone {
				left = append(left, members{m.id, slices.Concat(m.except, d.Sources)})
			}
			for _, id := range d.Except {
				if both, ok := narrower(m.id, id); ok {
					left = append(left, members{both, m.except})
				}
			}
		}
		c = left
	}
	return c
}

// deniesOutsiders reports whether callers without an identity may open no connection.
func deniesOutsiders(a mesh.Access) bool {
	return slices.ContainsFunc(a.Denials, func(d mesh.Denial) bool { return d.Everyone && len(d.Requests) > 0 })
}

// narrower returns the one of two identities for which the other stands, too, or false.
func narrower(a, b mesh.Identity) (mesh.Identity, bool) {
	switch {
	case standsFor(a, b):
		return b, true
	case standsFor(b, a):
		return a, true
	}
	return mesh.Identity{}, false
}

// standsFor reports whether wide stands for every identity for which id stands.
func standsFor(wide, id mesh.Identity) bool {
	return wide.TrustDomain == id.TrustDomain && (wide.Namespace == "" && wide.ServiceAccount == "" ||
		wide.Namespace == id.Namespace && (wide.ServiceAccount == "" || wide.ServiceAccount == id.ServiceAccount))
}

// sans returns the names in the callers' certificates, or an impossible name if there are none: to
// Envoy an empty list means everybody.
func (c callers) sans() []*tlsv3.SubjectAltNameMatcher {
	names := make(map[string]*matcherv3.StringMatcher)
	for _, m := range c {
		if !slices.ContainsFunc(m.except, func(id mesh.Identity) bool { return standsFor(id, m.id) }) {
			m.addTo(names)
		}
	}
	if len(names) == 0 {
		nobody := "spiffe://" + invalidHost
		names[nobody] = exact(nobody)
	}
	return each(slices.Sorted(maps.Keys(names)), func(name string) *tlsv3.SubjectAltNameMatcher { return uriSAN(names[name]) })
}

// addTo adds the names of the members. No name has more parts than a workload's.
func (m members) addTo(names map[string]*matcherv3.StringMatcher) {
	prefix, isGroup := m.id.GroupPrefix()
	if !isGroup {
		names[m.id.String()] = exact(m.id.String())
		return
	}
	// others are the namespaces of the trust domain, or the accounts of the namespace, that are
	// excepted in whole or in part.
	var others []string
	parts := make(map[string][]mesh.Identity)
	for _, id := range m.except {
		switch {
		case !standsFor(m.id, id):
		case m.id.Namespace != "":
			others = append(others, id.ServiceAccount)
		default:
			others = append(others, id.Namespace)
			parts[id.Namespace] = append(parts[id.Namespace], id)
		}
	}
	text := regexp.QuoteMeta(prefix) + otherThanAll(others)
	if m.id.Namespace == "" {
		text += "/sa/" + anyName
	}
	// Nobody of the group may connect if it has too many exceptions.
	if pattern, ok := expressionOf(text); ok {
		names[text] = regex(pattern)
	}
	for namespace, except := range parts {
		part := members{mesh.Identity{TrustDomain: m.id.TrustDomain, Namespace: namespace}, except}
		if !slices.ContainsFunc(except, func(id mesh.Identity) bool { return id.ServiceAccount == "" }) {
			part.addTo(names)
		}
	}
}

// anyName is the expression of a part of a SPIFFE ID.
const anyName = `[^/\x00]+`

// otherThanAll returns the expression of all texts without slashes that are not empty and none of the
// others.
func otherThanAll(others []string) string {
	if len(others) == 0 {
		return anyName
	}
	return otherEndings(append([]string{""}, others...))
}

// otherEndings returns the expression of all texts without slashes but the given ones.
func otherEndings(others []string) string {
	next := make(map[rune][]string)
	ends := false
	for _, text := range others {
		if text == "" {
			ends = true
			continue
		}
		first := []rune(text)[0]
		next[first] = append(next[first], strings.TrimPrefix(text, string(first)))
	}
	if len(next) == 0 {
		return anyName
	}
	var class, longer strings.Builder
	for _, first := range slices.Sorted(maps.Keys(next)) {
		class.WriteString(`\x{` + strconv.FormatInt(int64(first), 16) + `}`)
		longer.WriteString("|" + regexp.QuoteMeta(string(first)) + otherEndings(next[first]))
	}
	end := "|"
	if ends {
		end = ""
	}
	return `(?:[^/\x00` + class.String() + `][^/\x00]*` + longer.String() + end + ")"
}
