package catalog

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// sessionFor returns the session persistence of a rule for requests with the path, or nil.
func sessionFor(route *fact.Route, rule *fact.RouteRule, path mesh.StringMatch) *mesh.Session {
	from := rule.Session
	if from == nil || rule.Unusable || rule.Redirect != nil {
		return nil
	}
	id := string(route.Kind) + " " + route.String() + "/" + cmp.Or(rule.Name, strconv.Itoa(rule.Index))
	name := cmp.Or(from.Name, "outrigger-"+mesh.DigestBytes([]byte(id)).String()[:8])
	session := &mesh.Session{Rule: id, Lifetime: from.Lifetime, Permanent: from.Permanent}
	if from.Header {
		session.Header = name
	} else {
		session.Cookie, session.Path = name, cmp.Or(from.Path, cookiePath(path))
	}
	return session
}

// cookiePath returns the longest path of a cookie that clients send with all requests of the
// match.
func cookiePath(m mesh.StringMatch) string {
	path := m.Exact + m.Prefix
	if expression, err := regexp.Compile(m.Regex); err == nil && m.Regex != "" {
		literal, complete := expression.LiteralPrefix()
		if path = literal; !complete {
			path = literal[:max(0, strings.LastIndex(literal, "/"))]
		}
	}
	// Other characters can't be in the header, or end the attribute.
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r > '~' || r == ';' }) {
		return "/"
	}
	return path
}
