package mesh

import (
	"regexp"
	"slices"
	"strings"
)

// AmbiguousPath is an expression of RE2 and PCRE2 that is found in the paths that some
// applications read as other paths. In turn: escaped control characters, "#", "%", ".",
// "/", ";", "?" and "\"; the beginnings of overlong UTF-8; percent signs that escape
// nothing; what an address has no place for; empty segments, dot segments, and those that
// are dot segments to who drops the parameters behind a semicolon.
const AmbiguousPath = `(?i)%(?:[01][0-9a-f]|2[35ef]|3[bf]|5c|7f|c[01]|e0%[89]|f0%8|f8%8|fc%8)|%(?:[^0-9a-f]|$|[0-9a-f](?:[^0-9a-f]|$))|[\\#]|//|/\.\.?(?:[/;]|$)`

var ambiguousPath = regexp.MustCompile(AmbiguousPath)

// Permits reports whether r may pass by m. It is Matches, but that it does not hold where
// the application could read something else than m has compared: it does not hold for a
// path with AmbiguousPath in it unless m compares the whole path or none, nor, if m has
// conditions on the query, for a query with a semicolon, with a name that is escaped, or
// with such a parameter twice.
func (m HTTPMatch) Permits(r *Request) bool { return m.Refusal(r) == "" }

// Refusal returns why r may not pass by m: what Mismatch returns, or else "path spelling"
// or "query spelling". It returns "" if r may.
func (m HTTPMatch) Refusal(r *Request) string {
	if part := m.Mismatch(r); part != "" || r == nil {
		return part
	}
	path, query, _ := strings.Cut(r.Path, "?")
	if m.Path.isOfSeveral() && ambiguousPath.MatchString(path) {
		return "path spelling"
	}
	if len(m.Query) > 0 && !isPlainQuery(query, m.Query) {
		return "query spelling"
	}
	return ""
}

// isOfSeveral reports whether m holds for some paths, and not for one only.
func (m StringMatch) isOfSeveral() bool {
	return m.Exact == "" && (strings.Trim(m.Prefix, "/") != "" || m.Regex != "")
}

// isPlainQuery reports whether all applications read those parameters of the query alike.
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
