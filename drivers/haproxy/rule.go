package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// rule is a condition: what Where names holds, and all of its parts do. A part is lines of
// the configuration, of which one is enough.
type rule struct {
	Name, Where string
	Parts       [][]string
}

// If returns the condition as the configuration has it, where the parts are named after
// the rule.
func (r rule) If() string {
	words := []string{r.Where}
	for i := range r.Parts {
		words = append(words, fmt.Sprintf("%s-%d", r.Name, i))
	}
	return strings.Join(words, " ")
}

// never is a part that does not hold.
var never = []string{"always_false"}

// is returns a part that holds if what is fetched is one of the values. A value that can't
// be written is never met.
func is(fetch string, values ...string) []string {
	var lines, words []string
	for _, value := range values {
		if word := quote(value); word != "" {
			words = append(words, word)
		}
	}
	// A line may have 64 words.
	for chunk := range slices.Chunk(words, 48) {
		lines = append(lines, fetch+" -- "+strings.Join(chunk, " "))
	}
	if len(lines) == 0 {
		return never
	}
	return lines
}

const longestValue = 4 << 10

// quote returns a value as one word of the configuration, and "" for what is not printable
// ASCII: a line break would end the rule, and no request has one.
func quote(value string) string {
	if value == "" || len(value) > longestValue || strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return ""
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

var (
	headerName    = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	parameterName = regexp.MustCompile(`^[A-Za-z0-9_.~-]+$`)
)

// when returns a rule for the requests that m holds for, unless the application could read
// their path or query otherwise. What can't be said holds for nothing.
func when(name, where string, m mesh.HTTPMatch, parts ...[]string) rule {
	// A line has room for so many names.
	if len(m.Headers)+len(m.Query) > 20 {
		return rule{name, where, [][]string{never}}
	}
	prefix := strings.TrimSuffix(m.Path.Prefix, "/")
	switch {
	case m.Path.Exact != "":
		parts = append(parts, is("path -m str", m.Path.Exact))
	case m.Path.Prefix == "/":
		parts = append(parts, is("path -m beg", "/"))
	case m.Path.Prefix != "":
		parts = append(parts, append(is("path -m str", prefix), is("path -m beg", prefix+"/")...))
	case m.Path.Regex != "":
		parts = append(parts, value("path", m.Path))
	}
	if m.Path.Regex != "" || prefix != "" {
		parts = append(parts, []string{"var(txn.plain) -m bool"})
	}
	if len(m.Methods) > 0 {
		parts = append(parts, is("method -m str", m.Methods...))
	}
	for _, h := range m.Headers {
		if !headerName.MatchString(h.Name) {
			return rule{name, where, [][]string{never}}
		}
		if h.StringMatch == (mesh.StringMatch{}) || h.Present {
			parts = append(parts, is("req.fhdr_cnt("+h.Name+") -m int", "1:"))
			continue
		}
		// Of several lines HAProxy would compare the last, and the application reads all.
		parts = append(parts, is("req.fhdr_cnt("+h.Name+") -m int", "1"), value("req.fhdr("+h.Name+")", h.StringMatch))
	}
	for _, q := range m.Query {
		if !parameterName.MatchString(q.Name) {
			return rule{name, where, [][]string{never}}
		}
		parts = append(parts, is("query -m reg", once(q.Name)))
		if q.StringMatch != (mesh.StringMatch{}) && !q.Present {
			parts = append(parts, value("url_param("+q.Name+"),url_dec(1)", q.StringMatch))
		}
	}
	return rule{name, where, parts}
}

func value(fetch string, m mesh.StringMatch) []string {
	switch {
	case m.Exact != "":
		return is(fetch+" -m str", m.Exact)
	case m.Prefix != "":
		return is(fetch+" -m beg", m.Prefix)
	}
	return is(fetch+" -m reg", pcre(m.Regex))
}

// once is a query with the parameter in it once, and without names that are escaped.
func once(name string) string {
	const other = `[^&=;%+#]*(?:=[^&;#]*)?`
	name = regexp.QuoteMeta(name)
	return `\A(?!(?:.*&)?` + name + `(?:=[^&]*)?&(?:.*&)?` + name + `(?:[=&]|\z))(?:` + other + `&)*` + name + `(?:=[^&;#]*)?(?:&` + other + `)*\z`
}
