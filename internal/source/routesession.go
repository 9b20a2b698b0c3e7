package source

import (
	"regexp"
	"slices"
	"strings"
	"time"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
)

// ruleSession sets the rule's session persistence.
func (n *notes) ruleSession(path string, from *gateway.SessionPersistence, rule *fact.RouteRule) {
	switch {
	case from == nil:
		return
	case rule.Redirect != nil:
		n.add(ReasonNoEffect, path, "a request that is redirected reaches no endpoint, so there are no sessions; remove the field")
		return
	}
	session := &fact.RouteSession{
		Name:      deref(from.SessionName, ""),
		Permanent: from.CookieConfig != nil && deref(from.CookieConfig.LifetimeType, gateway.SessionCookieLifetimeType) == gateway.PermanentCookieLifetimeType,
	}
	if lifetime := n.routeLimit(path+".absoluteTimeout", from.AbsoluteTimeout, rule); lifetime != nil {
		session.Lifetime = *lifetime
	}
	switch kind := deref(from.Type, gateway.CookieBasedSessionPersistence); kind {
	case gateway.CookieBasedSessionPersistence:
		if !cookieName.MatchString(session.Name) {
			n.unusable(rule, fact.ReasonUnsupportedValue, path+".sessionName", "%q is not a name of a cookie", session.Name)
		}
	case gateway.HeaderBasedSessionPersistence:
		session.Header, session.Name = true, strings.ToLower(session.Name)
		if session.Name != "" && (!isHeaderName(session.Name) || slices.Contains(reserved, session.Name)) {
			n.unusable(rule, fact.ReasonUnsupportedValue, path+".sessionName", "%q is not a header that can name a session; choose one such as x-session", session.Name)
		}
		if from.CookieConfig != nil {
			n.unusable(rule, fact.ReasonUnsupportedValue, path+".cookieConfig", "a session with the type Header has no cookie; remove it, or set the type to Cookie")
		}
	default:
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".type", "%q is not a type of session persistence; use Cookie or Header", string(kind))
	}
	if session.Permanent && session.Lifetime < time.Second {
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".absoluteTimeout", "a permanent cookie needs an absoluteTimeout of at least 1s")
	}
	rule.Session = session
}

// reserved are headers that can't carry a token.
var reserved = append([]string{"cookie", "set-cookie"}, framing...)

// cookieName matches the names of cookies in RFC 6265, and none.
var cookieName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]*$")
