package mesh

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Request is what a proxy sees of an HTTP request. It stands for no real one: it is
// what the meaning of matches and rules is defined with.
type Request struct {
	// Method is in upper case, for example "GET".
	Method string
	// Host is the authority, with or without a port.
	Host string
	// Path begins with a slash and may end with a query. It is the path that is
	// passed on: a proxy that normalizes paths does so before it matches.
	Path string
	// Headers are the lines, by names in lower case, that are passed on: a proxy that
	// joins or drops lines does so before it matches. A match of "host" is of Host.
	Headers map[string][]string
}

// Matches reports whether all that m names holds for r. A nil Request stands for a
// connection whose requests nobody sees: only the zero HTTPMatch holds for it.
func (m HTTPMatch) Matches(r *Request) bool { return m.Mismatch(r) == "" }

// Mismatch returns the first part of m that does not hold for r, in words: "path",
// "method", `header "x"` or `query parameter "x"`, and "requests" if r is nil and m
// names anything. It returns "" if m holds.
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
	// A part of a query that cannot be read is no parameter.
	parameters, _ := url.ParseQuery(query)
	for _, parameter := range m.Query {
		values := parameters[parameter.Name]
		if !parameter.matches(first(values), len(values) > 0) {
			return `query parameter "` + parameter.Name + `"`
		}
	}
	return ""
}

func (m HTTPMatch) isZero() bool {
	return m.Path == StringMatch{} && len(m.Methods)+len(m.Headers)+len(m.Query) == 0
}

// Matches reports whether m holds for s. A Regex that is none matches nothing.
func (m StringMatch) Matches(s string) bool {
	switch {
	case m.Exact != "":
		return s == m.Exact
	case m.Prefix != "":
		return strings.HasPrefix(s, m.Prefix)
	case m.Regex != "":
		// First by itself: "a)(b" is only an expression with brackets around it.
		if _, err := regexp.Compile(m.Regex); err != nil {
			return false
		}
		whole, err := regexp.Compile(`\A(?:` + m.Regex + `)\z`)
		return err == nil && whole.MatchString(s)
	}
	return true
}

// matchesPath is Matches, but that a prefix ends where an element of the path does.
func (m StringMatch) matchesPath(path string) bool {
	if m.Exact != "" || m.Prefix == "" {
		return m.Matches(path)
	}
	prefix := strings.TrimSuffix(m.Prefix, "/")
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// matches asks for the header or parameter to be there, whatever its value.
func (m KeyMatch) matches(value string, present bool) bool {
	return present && m.StringMatch.Matches(value)
}

// matchesLines asks for one line if the value matters: of several an application may read
// another than was compared.
func (m KeyMatch) matchesLines(lines []string) bool {
	return m.matches(first(lines), len(lines) > 0) && (len(lines) == 1 || !m.comparesValue())
}

// comparesValue reports whether not every value will do.
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
