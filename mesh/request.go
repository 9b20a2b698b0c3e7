package mesh

import (
	"regexp"
	"slices"
	"strings"
)

// Request has the parts of an HTTP request that a proxy can match. It serves to define
// the semantics of matches and rules.
type Request struct {
	// Method is in upper case, for example "GET".
	Method string
	// Host is the authority, with or without a port.
	Host string
	// Path begins with a slash and may have a query. It is the path that is forwarded: it is
	// normalized before matching, see Normalize of Destination, InboundPort and EgressRoutes.
	Path string
	// Headers has the forwarded header lines by lower-case name: proxies that join or drop
	// lines do so before matching. Matches of "host" use Host instead.
	Headers map[string][]string
	// Token is the verified token, see VerifyToken, or nil.
	Token *Token
}

// Matches reports whether all conditions of m hold for r. A nil Request is a connection
// whose requests are not visible: only the zero HTTPMatch matches it.
func (m HTTPMatch) Matches(r *Request) bool { return m.Mismatch(r) == "" }

// Mismatch names the first part of m that does not hold for r: "path", "method", `header
// "x"`, `query parameter "x"` or "token". It returns "requests" if r is nil and m is not zero, and
// "" if m matches.
func (m HTTPMatch) Mismatch(r *Request) string {
	if r == nil {
		if m.isZero() {
			return ""
		}
		return "requests"
	}
	path, query, _ := strings.Cut(r.Path, "?")
	if !m.Path.matchesPath(path) {
		return "path"
	}
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, r.Method) {
		return "method"
	}
	for _, header := range m.Headers {
		if !header.matchesLines(r.header(header.Name)) {
			return `header "` + header.Name + `"`
		}
	}
	for _, parameter := range m.Query {
		if !parameter.matches(QueryParameter(query, parameter.Name)) {
			return `query parameter "` + parameter.Name + `"`
		}
	}
	if m.Token != nil && !m.Token.Matches(r.Token) {
		return "token"
	}
	return ""
}

func (m HTTPMatch) isZero() bool {
	return m.Path == StringMatch{} && len(m.Methods)+len(m.Headers)+len(m.Query) == 0 && m.Token == nil
}

// Matches reports whether m matches s. An invalid Regex matches nothing.
func (m StringMatch) Matches(s string) bool {
	switch {
	case m.Exact != "":
		return s == m.Exact
	case m.Prefix != "":
		return strings.HasPrefix(s, m.Prefix)
	case m.Regex != "":
		// Compile it alone first: "a)(b" is valid only inside the group below.
		if _, err := regexp.Compile(m.Regex); err != nil {
			return false
		}
		whole, err := regexp.Compile(`\A(?:` + m.Regex + `)\z`)
		return err == nil && whole.MatchString(s)
	}
	return true
}

// matchesPath is Matches, except that a prefix must end at a path element.
func (m StringMatch) matchesPath(path string) bool {
	if m.Exact != "" || m.Prefix == "" {
		return m.Matches(path)
	}
	prefix := strings.TrimRight(m.Prefix, "/")
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// matches requires the header or parameter to be present.
func (m KeyMatch) matches(value string, present bool) bool {
	return present && m.StringMatch.Matches(value)
}

// matchesLines requires a single line if the value matters: of several lines, the
// application might read one that was not compared.
func (m KeyMatch) matchesLines(lines []string) bool {
	return m.matches(first(lines), len(lines) > 0) && (len(lines) == 1 || !m.comparesValue())
}

// comparesValue reports whether m depends on the value.
func (m KeyMatch) comparesValue() bool { return m.Exact != "" || m.Prefix != "" || m.Regex != "" }

// header returns the lines of a header.
func (r *Request) header(name string) []string {
	switch {
	case name != "host":
		return r.Headers[name]
	case r.Host == "":
		return nil
	}
	return []string{r.Host}
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
