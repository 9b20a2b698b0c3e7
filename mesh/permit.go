package mesh

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// AmbiguousPath is an RE2 and PCRE2 expression that finds paths which some applications
// read as a different path. In order, it finds: escaped control characters, "#", "%",
// ".", "/", ";", "?" and "\"; the first bytes of overlong UTF-8; percent signs without
// two hex digits; characters that are illegal in a URL path; empty segments and dot
// segments, including segments that become such ones once their parameters (";...") are dropped.
const AmbiguousPath = `(?i)%(?:[01][0-9a-f]|2[35ef]|3[bf]|5c|7f|c[01]|e0%[89]|f0%8|f8%8|fc%8)|%(?:[^0-9a-f]|$|[0-9a-f](?:[^0-9a-f]|$))|[\\#]|//|/;|/\.\.?(?:[/;]|$)`

// AmbiguousDeniedPath is such an expression for denials. It also finds paths with parameters: where an
// application drops these, "/admin;v=1/x" is "/admin/x".
const AmbiguousDeniedPath = AmbiguousPath + "|;"

// AbnormalPath is an RE2 and PCRE2 expression that finds paths which NormalPath changes or refuses,
// apart from those that AmbiguousPath finds. A proxy that does not normalize paths takes both for
// ambiguous in denials. It finds a first character that is no slash, escapes of characters that need
// none, and characters that need an escape.
const AbnormalPath = `^(?:[^/]|$)|%(?:2[dDeE]|3[0-9]|[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aAeE])|[^!-~]|["<>^\x60{|}]`

// RefusedPath is an RE2 and PCRE2 expression that finds paths for which NormalPath returns false.
const RefusedPath = `(?i)^(?:[^/]|$)|%00|[\x00-\x20\x7f#]|[/\\](?:(?:%2e|\.)?%2e|%2e\.?);`

var ambiguousPath, ambiguousDeniedPath = regexp.MustCompile(AmbiguousPath), regexp.MustCompile(AmbiguousDeniedPath)

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

// Denies reports whether a denial with the match m refuses r. It is wider than Matches, since it
// also holds if the application could read the request differently, and m match that. These are
// requests whose path contains AmbiguousDeniedPath if m compares a path, whose header has several lines
// or a list if m compares its value and one of them matches, and whose query is not plain if m has
// conditions on the query. Several lines always count as a match, and so does a value with bytes
// that are not ASCII if a header's value or a Regex of a parameter is compared, since proxies and
// applications disagree about invalid UTF-8. An invalid Regex matches every value. If m has a condition on the
// token, these are also requests with an AuthorizationHeader in which no token is verified. Denies holds for every connection whose requests are not visible, for which r is nil.
func (m HTTPMatch) Denies(r *Request) bool {
	if r == nil {
		return true
	}
	path, query, _ := strings.Cut(r.Path, "?")
	if m.comparesPath() && m.Path.isValid() && !m.Path.matchesPath(path) && !ambiguousDeniedPath.MatchString(path) {
		return false
	}
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, r.Method) {
		return false
	}
	for _, header := range m.Headers {
		if lines := r.header(header.Name); len(lines) == 0 || header.comparesValue() && len(lines) == 1 && !matchesDenied(header.StringMatch, lines[0]) {
			return false
		}
	}
	for _, parameter := range m.Query {
		value, present := QueryParameter(query, parameter.Name)
		found := present && (parameter.StringMatch.Matches(value) || !parameter.isValid() || parameter.isExpression() && !isASCII(value))
		if !found && !(StringMatch{Regex: AmbiguousQuery(parameter.Name)}).Matches(query) {
			return false
		}
	}
	return m.Token == nil || m.Token.denies(r)
}

// DeniedValue returns an RE2 and PCRE2 expression for the whole value of a header, which holds if a
// denial with the condition refuses the header: if the value satisfies the condition, or does so
// without what is before or after a comma, since applications may read a value as a list. It
// returns false for an invalid Regex: then every value is refused.
func DeniedValue(m StringMatch) (string, bool) {
	const before, after = `(?:(?s:.*),)?[ \t]*(?:`, `)[ \t]*(?:,(?s:.*))?`
	switch {
	case m.Exact != "":
		return before + regexp.QuoteMeta(m.Exact) + after, true
	case m.Prefix != "":
		return before + regexp.QuoteMeta(m.Prefix) + `(?s:.*)` + after, true
	case m.Regex != "":
		return before + m.Regex + after, m.isValid()
	}
	return `(?s:.*)`, true
}

// isValid reports whether the Regex, if it is compared, is one.
func (m StringMatch) isValid() bool {
	if m.Exact != "" || m.Prefix != "" {
		return true
	}
	_, err := regexp.Compile(m.Regex)
	return err == nil
}

func matchesDenied(m StringMatch, value string) bool {
	pattern, ok := DeniedValue(m)
	return !ok || !isASCII(value) || StringMatch{Regex: pattern}.Matches(value)
}

// isExpression reports whether the Regex is compared.
func (m StringMatch) isExpression() bool { return m.Regex != "" && m.Exact == "" && m.Prefix == "" }

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// AmbiguousQuery returns an RE2 and PCRE2 expression for a whole query, which holds if applications
// read different values of the parameter in it: if it has a semicolon, a "#", an escaped name, or
// the parameter several times.
func AmbiguousQuery(parameter string) string {
	name := regexp.QuoteMeta(parameter)
	return `(?:.*[;#].*|(?:.*&)?[^=&]*[%+].*|(?:.*&)?` + name + `(?:=[^&]*)?&(?:.*&)?` + name + `(?:[=&].*)?)`
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
