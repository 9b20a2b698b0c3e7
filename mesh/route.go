package mesh

import (
	"slices"
	"strconv"
	"strings"
)

// HeaderChanges change the headers of a message: Set first, then Add, then Remove, as in
// Gateway API. Names are in lower case. A name in Remove is in neither Set nor Add, and at
// most once in Set. The zero HeaderChanges change nothing.
type HeaderChanges struct {
	// Set replaces all lines of a header by one.
	Set []Header `json:"set,omitempty"`
	// Add appends a line to a response. To a request it appends a value, joined with the
	// others by a comma as in RFC 9110, since not every server's proxy passes on several
	// lines; only "cookie" gets a line.
	Add []Header `json:"add,omitempty"`
	// Remove removes all lines of the headers.
	Remove []string `json:"remove,omitempty"`
}

// IsZero reports whether nothing is changed.
func (c HeaderChanges) IsZero() bool { return len(c.Set)+len(c.Add)+len(c.Remove) == 0 }

// Then returns the changes that do the same as c followed by next.
func (c HeaderChanges) Then(next HeaderChanges) HeaderChanges {
	has := func(headers []Header, name string) bool {
		return slices.ContainsFunc(headers, func(h Header) bool { return h.Name == name })
	}
	overridden := func(h Header) bool { return has(next.Set, h.Name) || slices.Contains(next.Remove, h.Name) }
	both := HeaderChanges{
		Set: append(slices.DeleteFunc(slices.Clone(c.Set), overridden), next.Set...),
		Add: slices.DeleteFunc(slices.Clone(c.Add), overridden),
	}
	for _, h := range next.Add {
		if slices.Contains(c.Remove, h.Name) && !has(both.Set, h.Name) {
			// The lines that c removes must not come back.
			both.Set = append(both.Set, h)
		} else {
			both.Add = append(both.Add, h)
		}
	}
	for _, name := range slices.Concat(c.Remove, next.Remove) {
		if !has(both.Set, name) && !slices.Contains(both.Remove, name) {
			both.Remove = append(both.Remove, name)
		}
	}
	return both
}

// Joined returns changes of a request that do the same, in which no name but "cookie" is
// twice in Add, or in both Set and Add.
func (c HeaderChanges) Joined() HeaderChanges {
	joined := HeaderChanges{Set: slices.Clone(c.Set), Remove: c.Remove}
	join := func(to []Header, h Header) bool {
		i := slices.IndexFunc(to, func(o Header) bool { return o.Name == h.Name })
		if i >= 0 {
			to[i].Value += "," + h.Value
		}
		return i >= 0
	}
	for _, h := range c.Add {
		if h.Name == "cookie" || !join(joined.Set, h) && !join(joined.Add, h) {
			joined.Add = append(joined.Add, h)
		}
	}
	return joined
}

// Apply changes the header lines, by lower-case name. It does not change the argument.
func (c HeaderChanges) Apply(headers map[string][]string) map[string][]string {
	changed := map[string][]string{}
	for name, lines := range headers {
		changed[name] = slices.Clone(lines)
	}
	for _, h := range c.Set {
		changed[h.Name] = []string{h.Value}
	}
	for _, h := range c.Add {
		changed[h.Name] = append(changed[h.Name], h.Value)
	}
	for _, name := range c.Remove {
		delete(changed, name)
	}
	return changed
}

// Rewrite changes a request before it is forwarded. An empty field leaves the request's.
type Rewrite struct {
	// Host replaces the authority.
	Host string `json:"host,omitempty"`
	// Path replaces the path.
	Path PathChange `json:"path,omitzero"`
}

// Redirect is answered by the client's proxy. An empty field means the request's own.
type Redirect struct {
	// Scheme is "http" or "https".
	Scheme string `json:"scheme,omitempty"`
	Host   string `json:"host,omitempty"`
	// Port is left out of the URL if it is the scheme's default. If it is 0, it is the
	// scheme's default with a Scheme, and otherwise the port of the Destination.
	Port uint16     `json:"port,omitempty"`
	Path PathChange `json:"path,omitzero"`
	// Status is 301, 302, 303, 307 or 308.
	Status uint16 `json:"status"`
	// Response changes the headers of the redirect itself. It changes no "location".
	Response HeaderChanges `json:"response,omitzero"`
}

// CORS lets browsers share answers with pages of other origins, as in the Fetch standard. The
// proxy answers preflight requests itself with 204: requests with the method OPTIONS and the
// headers Origin and Access-Control-Request-Method. If the origin does not match, it adds no
// headers.
type CORS struct {
	// Origin matches the header Origin, which Access-Control-Allow-Origin repeats.
	Origin StringMatch `json:"origin"`
	// Methods, Headers and Expose are the values of Access-Control-Allow-Methods,
	// Access-Control-Allow-Headers and Access-Control-Expose-Headers. If Methods or Headers
	// is "*", the value is what the preflight request asks for. An empty one is left out.
	Methods string `json:"methods,omitempty"`
	Headers string `json:"headers,omitempty"`
	Expose  string `json:"expose,omitempty"`
	// Credentials adds Access-Control-Allow-Credentials.
	Credentials bool `json:"credentials,omitempty"`
	// MaxAge is in seconds.
	MaxAge uint32 `json:"maxAge"`
}

// Mirror is a Backend that gets a copy of some requests, as they are forwarded, with the same
// host. The proxy ignores its answers, and the request does not wait for them. Copies of
// requests with long bodies may be left out.
type Mirror struct {
	// Backend is its key in the Outbound's Table.
	Backend string `json:"backend"`
	// Numerator and Denominator are the share of the requests. The Numerator is at least 1
	// and at most the Denominator.
	Numerator   uint32 `json:"numerator"`
	Denominator uint32 `json:"denominator"`
}

// PathChange replaces the path of a request or, with Prefix, the prefix that the route
// matched. The query stays. The zero PathChange changes nothing.
type PathChange struct {
	// Full begins with a slash.
	Full string `json:"full,omitempty"`
	// Prefix is set for routes whose match has a path prefix, and begins with a slash. A
	// trailing slash is as if it were not there.
	Prefix string `json:"prefix,omitempty"`
}

// Of returns the changed path. The argument has no query, and matches the prefix.
func (c PathChange) Of(path, prefix string) string {
	switch {
	case c.Full != "":
		return c.Full
	case c.Prefix == "":
		return path
	}
	rest := strings.TrimPrefix(path, strings.TrimSuffix(prefix, "/"))
	changed := strings.TrimSuffix(c.Prefix, "/")
	if rest == "" && changed == "" {
		return "/"
	}
	return changed + rest
}

// Location returns the URL of the redirect for a request with the host to a Destination
// with the port. The prefix is that of the route's match.
func (r *Redirect) Location(host, path, prefix string, port uint16) string {
	path, query, hasQuery := strings.Cut(path, "?")
	scheme, to := r.Scheme, r.PortFor(port)
	if scheme == "" {
		scheme = "http"
	}
	authority := r.Host
	if authority == "" {
		authority = hostOnly(host)
	}
	location := scheme + "://" + authority
	if to != 0 {
		location += ":" + strconv.Itoa(int(to))
	}
	location += r.Path.Of(path, prefix)
	if hasQuery {
		location += "?" + query
	}
	return location
}

// PortFor returns the port in the URL for a Destination with the port, 0 for none.
func (r *Redirect) PortFor(port uint16) uint16 {
	to := r.Port
	if to == 0 && r.Scheme == "" {
		to = port
	}
	if to == 80 && r.Scheme != "https" || to == 443 && r.Scheme == "https" {
		return 0
	}
	return to
}

// Forwarded returns the request that the server of a backend gets, or nil for a connection.
// The argument matches the route, and is not changed.
func (r *Route) Forwarded(request *Request, backend WeightedBackend) *Request {
	if request == nil {
		return nil
	}
	changed := *request
	changed.Headers = backend.Request.Apply(request.Headers)
	if r.Rewrite != nil {
		if r.Rewrite.Host != "" {
			changed.Host = r.Rewrite.Host
		}
		path, query, hasQuery := strings.Cut(request.Path, "?")
		if changed.Path = r.Rewrite.Path.Of(path, r.Match.Path.Prefix); hasQuery {
			changed.Path += "?" + query
		}
	}
	return &changed
}
