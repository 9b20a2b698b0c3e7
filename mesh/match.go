package mesh

// StringMatch is a case-sensitive condition on a string. At most one field is set; the
// zero StringMatch matches any string.
type StringMatch struct {
	// Exact must equal the string.
	Exact string `json:"exact,omitempty"`
	// Prefix must be a prefix of the string. For paths it matches whole elements: "/a" and
	// "/a/" both match "/a" and "/a/b" but not "/ab". Slashes at its end count for nothing.
	Prefix string `json:"prefix,omitempty"`
	// Regex is an RE2 expression that must match the whole string. An invalid expression
	// matches nothing.
	Regex string `json:"regex,omitempty"`
	// Present, for headers and query parameters, matches any value.
	Present bool `json:"present,omitempty"`
}

// KeyMatch is a condition on one header or query parameter, which must be present. The
// whole value is compared, including commas. A condition on the value never holds for a
// header with several lines. QueryParameter says what the value of a query parameter is:
// decoded, and the first one if it is repeated. Access rules never match a repeated one.
type KeyMatch struct {
	// Name is in lower case for headers. "host" means the request's authority.
	Name string `json:"name"`
	StringMatch
}

// HTTPMatch is a condition on a request: all its parts must hold. The zero HTTPMatch
// matches every request, and is the only one that matches a connection without requests.
// It has the semantics of Gateway API's HTTPRouteMatch, except that the path may be a
// regular expression and several methods may be listed. Matches defines it for routing,
// Permits for access rules.
type HTTPMatch struct {
	// Path is matched without the query. The requests of a Destination or InboundPort that
	// compares paths have a NormalPath.
	Path StringMatch `json:"path,omitzero"`
	// Methods are the allowed methods, sorted. Empty means any.
	Methods []string   `json:"methods,omitempty"`
	Headers []KeyMatch `json:"headers,omitempty"`
	Query   []KeyMatch `json:"query,omitempty"`
	// Token is a condition on the user's token, nil for none. Only access rules have one.
	Token *TokenMatch `json:"token,omitempty"`
}
