package mesh

// StringMatch is how a string is compared. Exactly one field is set; the zero
// StringMatch matches any string. Upper and lower case differ.
type StringMatch struct {
	// Exact is the whole string.
	Exact string `json:"exact,omitempty"`
	// Prefix is the string's beginning. Of a path it is whole elements: "/a" and "/a/"
	// are both a prefix of "/a" and "/a/b", and not of "/ab".
	Prefix string `json:"prefix,omitempty"`
	// Regex is an RE2 expression that the whole string must match. What is no
	// expression matches nothing.
	Regex string `json:"regex,omitempty"`
	// Present, for headers and query parameters, asks only that there is one.
	Present bool `json:"present,omitempty"`
}

// KeyMatch is a match of one header or query parameter. It holds for none that is
// not there. A value is compared as a whole, with the commas in it. If a header has
// several lines, no match of its value holds. Of a query parameter that is there several
// times the first value counts where requests are sent, and none where they are allowed.
type KeyMatch struct {
	// Name is in lower case for headers. "host" means the request's authority.
	Name string `json:"name"`
	StringMatch
}

// HTTPMatch is a condition on a request: all that it names must hold. The zero
// HTTPMatch holds for every request, and is the only one that holds for a
// connection that carries none. It has the meaning of Gateway API's
// HTTPRouteMatch, but that a path may be a regular expression and that there may be
// several methods. Request and Matches define it, and Permits where it is a rule of
// access.
type HTTPMatch struct {
	// Path is matched without the query.
	Path StringMatch `json:"path,omitzero"`
	// Methods are those allowed, sorted; none means any.
	Methods []string   `json:"methods,omitempty"`
	Headers []KeyMatch `json:"headers,omitempty"`
	Query   []KeyMatch `json:"query,omitempty"`
}
