package source

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
)

// ruleSession sets the rule's session persistence. Since Gateway API 1.7, later has the names.
func (n *notes) ruleSession(path string, persistence *gateway.SessionPersistence, later laterSession, rule *fact.RouteRule) {
	switch {
	case persistence == nil:
		return
	case rule.Redirect != nil:
		n.add(ReasonNoEffect, path, "a request that is redirected reaches no endpoint, so there are no sessions; remove the field")
		return
	}
	session, nameAt, cookieAt := &fact.RouteSession{Name: deref(persistence.SessionName, "")}, path+".sessionName", ""
	if persistence.CookieConfig != nil {
		cookieAt, session.Permanent = path+".cookieConfig", isPermanent(persistence.CookieConfig.LifetimeType)
	}
	if cookie := later.Cookie; cookie != nil {
		cookieAt, session.Permanent = path+".cookie", isPermanent(cookie.LifetimeType)
		session.Path = cmp.Or(cookie.Path, "/")
		if !strings.HasPrefix(session.Path, "/") || strings.ContainsFunc(session.Path, func(c rune) bool { return c <= ' ' || c > '~' || c == ';' || c == ',' }) {
			n.unusable(rule, fact.ReasonUnsupportedValue, path+".cookie.path", "%q is not the path of a cookie", session.Path)
			session.Path = ""
		}
		if cookie.Name != "" {
			session.Name, nameAt = cookie.Name, path+".cookie.name"
		}
	}
	if later.Header != nil {
		session.Name, nameAt = later.Header.Name, path+".header.name"
	}
	if lifetime := n.routeLimit(path+".absoluteTimeout", persistence.AbsoluteTimeout, rule); lifetime != nil {
		session.Lifetime = *lifetime
	}
	switch kind := deref(persistence.Type, gateway.CookieBasedSessionPersistence); kind {
	case gateway.CookieBasedSessionPersistence:
		if later.Header != nil {
			n.unusable(rule, fact.ReasonUnsupportedValue, path+".header", "a session with the type Cookie has no header; remove it, or set the type to Header")
		}
		if !cookieName.MatchString(session.Name) {
			n.unusable(rule, fact.ReasonUnsupportedValue, nameAt, "%q is not a name of a cookie", session.Name)
		}
	case gateway.HeaderBasedSessionPersistence:
		session.Header, session.Name = true, strings.ToLower(session.Name)
		if session.Name != "" && (!isHeaderName(session.Name) || slices.Contains(reserved, session.Name)) {
			n.unusable(rule, fact.ReasonUnsupportedValue, nameAt, "%q is not a header that can name a session; choose one such as x-session", session.Name)
		}
		if cookieAt != "" {
			n.unusable(rule, fact.ReasonUnsupportedValue, cookieAt, "a session with the type Header has no cookie; remove it, or set the type to Cookie")
		}
	default:
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".type", "%q is not a type of session persistence; use Cookie or Header", string(kind))
	}
	if session.Permanent && session.Lifetime < time.Second {
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".absoluteTimeout", "a permanent cookie needs an absoluteTimeout of at least 1s")
	}
	rule.Session = session
}

func isPermanent(lifetime *gateway.CookieLifetimeType) bool {
	return deref(lifetime, gateway.SessionCookieLifetimeType) == gateway.PermanentCookieLifetimeType
}

// reserved are headers that can't carry a token.
var reserved = append([]string{"cookie", "set-cookie"}, framing...)

// cookieName matches the names of cookies in RFC 6265, and none.
var cookieName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]*$")
