package mesh

import (
	"strconv"
	"time"
)

// Session keeps the requests of a client at the endpoint that answered its first one. The
// proxy gives the client a token that names the endpoint: in a cookie, or in a header of the
// response that the client sends with its next requests. A token counts as long as the
// endpoint can be used for new requests. Otherwise the proxy chooses an endpoint as for a
// request without a token, and gives the client another one. Anybody can write a token, so it
// must never lead to an endpoint that is not one of the Route's.
type Session struct {
	// Rule identifies the rule of the route. The token of one rule means nothing to another.
	Rule string `json:"rule"`
	// Cookie or Header is the name of the token. Header is in lower case.
	Cookie string `json:"cookie,omitempty"`
	Header string `json:"header,omitempty"`
	// Path is the cookie's.
	Path string `json:"path,omitempty"`
	// Lifetime is how long a token counts. 0 means no limit.
	Lifetime time.Duration `json:"lifetime,omitempty"`
	// Permanent tells the client to keep the cookie for the Lifetime. Otherwise it keeps the
	// cookie until its own session ends.
	Permanent bool `json:"permanent,omitempty"`
}

// Name returns the name of the cookie or header.
func (s *Session) Name() string { return s.Cookie + s.Header }

// Seconds returns the Lifetime in seconds, rounded up.
func (s *Session) Seconds() int64 { return int64((s.Lifetime + time.Second - 1) / time.Second) }

// Share returns what names a backend of the route in tokens.
func (s *Session) Share(backend string) string {
	return DigestOf([]string{s.Rule, backend}).String()[:8]
}

// Attributes returns what follows the value of the cookie in the header Set-Cookie.
func (s *Session) Attributes() string {
	attributes := "; Path=" + s.Path + "; HttpOnly"
	if s.Permanent {
		attributes += "; Max-Age=" + strconv.FormatInt(s.Seconds(), 10)
	}
	return attributes
}

// Key returns what names the endpoint in tokens. It does not contain the endpoint's address,
// unless that is all there is: tokens may leave the mesh.
func (e Endpoint) Key() string {
	name := []string{e.Workload, strconv.Itoa(int(e.Port))}
	if e.Workload == "" {
		for _, a := range e.Addresses {
			name = append(name, a.String())
		}
	}
	return DigestOf(name).String()[:16]
}
