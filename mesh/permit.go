package mesh

import (
	"regexp"
	"slices"
	"strings"
)

// AmbiguousPath is an RE2 and PCRE2 expression that finds paths which some applications
// read as a different path. In order, it finds: escaped control characters, "#", "%",
// ".", "/", ";", "?" and "\"; the first bytes of overlong UTF-8; percent signs without
// two hex digits; characters that are illegal in a URL path; empty segments and dot
// segments, including segments that become dot segments once their parameters (";...")
// are dropped.
const AmbiguousPath = `(?i)%(?:[01][0-9a-f]|2[35ef]|3[bf]|5c|7f|c[01]|e0%[89]|f0%8|f8%8|fc%8)|%(?:[^0-9a-f]|$|[0-9a-f](?:[^0-9a-f]|$))|[\\#]|//|/\.\.?(?:[/;]|$)`

var ambiguousPath = regexp.MustCompile(AmbiguousPath)

// Permits reports whether an access rule with the match m allows r. It is stricter than
// Matches: it does not hold if the application could read the request differently. These
// are requests whose path contains AmbiguousPath, unless m compares no path or an exact
// one. If m has conditions on the query, these are also queries with a semicolon, with an
// escaped name, or with a repeated parameter that m compares.
func (m HTTPMatch) Permits(r *Request) bool { return m.Refusal(r) == "" }

// Refusal returns the reason why m does not permit r: the result of Mismatch, "path
// spelling" or "query spelling". It returns "" if r is permitted.
func (m HTTPMatch) Refusal(r *Request) string {
	if part := m.Mismatch(r); part != "" || r == nil {
		return part
	}
	path, query, _ := strings.Cut(r.Path, "?")
	if m.Path.isPattern() && ambiguousPath.MatchString(path) {
		return "path spelling"
	}
	if len(m.Query) > 0 && !isPlainQuery(query, m.Query) {
		return "query spelling"
	}
	return ""
}

// isPattern reports whether m matches some paths, but neither all nor a single one.
func (m StringMatch) isPattern() bool {
	return m.Exact == "" && (strings.Trim(m.Prefix, "/") != "" || m.Regex != "")
}

// isPlainQuery reports whether every application reads the compared parameters alike.
func isPlainQuery(query string, compared []KeyMatch) bool {
	if strings.ContainsAny(query, ";#") {
		return false
	}
	seen := make(map[string]int)
	for part := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(part, "=")
		if strings.ContainsAny(name, "%+") {
			return false
		}
		seen[name]++
	}
	return !slices.ContainsFunc(compared, func(m KeyMatch) bool { return seen[m.Name] != 1 })
}
