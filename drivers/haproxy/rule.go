package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/pcre"
)

// rule applies if Where and all of its parts hold. A part is a list of ACL lines, of which
// one must hold.
type rule struct {
	Name, Where string
	Parts       [][]string
	// HTTP says that the rule is for requests, not for connections.
	HTTP bool
	// To are the targets of a route. Inbound rules have none: what they match is allowed.
	To      []draw
	Session *mesh.Session
}

// If returns the condition in HAProxy's syntax. The ACLs of the parts are named after the
// rule.
func (r rule) If() string {
	words := []string{r.Where}
	for i := range r.Parts {
		words = append(words, fmt.Sprintf("%s-%d", r.Name, i))
	}
	return strings.Join(words, " ")
}

// never is a part that does not hold, and plain one that holds for unambiguous paths.
var never, plain = []string{"always_false"}, []string{"var(txn.plain) -m bool"}

// is returns a part that holds if the fetched value is one of the values. Those that can't
// be quoted are left out.
func is(fetch string, values []string) []string {
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

// quote returns a value as one word of the configuration, or "" if it is too long or not
// printable ASCII: a line break would end the rule.
func quote(value string) string {
	if value == "" || len(value) > 4<<10 || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// word matches names of hosts, headers and parameters that the configuration can contain,
// and noWord the characters that it can't.
var word, noWord = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`), regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// when returns a rule for the requests that m matches, except those whose path or query
// the application could interpret differently. A match that HAProxy can't express never
// holds.
func when(name, where string, m mesh.HTTPMatch, parts ...[]string) rule {
	prefix := strings.TrimSuffix(m.Path.Prefix, "/")
	switch {
	case m.Path.Exact == "" && prefix != "":
		parts = append(parts, append(is("path -m str", []string{prefix}), is("path -m beg", []string{prefix + "/"})...), plain)
	case m.Path.Exact != "" || m.Path.Prefix != "":
		parts = append(parts, value("path", m.Path))
	case m.Path.Regex != "":
		parts = append(parts, value("path", m.Path), plain)
	}
	if len(m.Methods) > 0 {
		parts = append(parts, is("method -m str", m.Methods))
	}
	known := true
	for _, h := range m.Headers {
		known = known && word.MatchString(h.Name)
		if h.Present || h.StringMatch == (mesh.StringMatch{}) {
			parts = append(parts, is("req.fhdr_cnt("+h.Name+") -m int", []string{"1:"}))
		} else {
			// Of several lines HAProxy would compare only the last.
			parts = append(parts, is("req.fhdr_cnt("+h.Name+") -m int", []string{"1"}), value("req.fhdr("+h.Name+")", h.StringMatch))
		}
	}
	for _, q := range m.Query {
		known = known && word.MatchString(q.Name)
		parts = append(parts, is("query -m reg", []string{pcre.ParameterOnce(q.Name)}))
		if !q.Present && q.StringMatch != (mesh.StringMatch{}) {
			parts = append(parts, value("url_param("+q.Name+"),url_dec(1)", q.StringMatch))
		}
	}
	// A line of the configuration has at most 64 words.
	if !known || len(parts) > 45 {
		parts = [][]string{never}
	}
	return rule{Name: name, Where: where, Parts: parts}
}

func value(fetch string, m mesh.StringMatch) []string {
	switch {
	case m.Exact != "":
		return is(fetch+" -m str", []string{m.Exact})
	case m.Prefix != "":
		return is(fetch+" -m beg", []string{m.Prefix})
	}
	return is(fetch+" -m reg", []string{pcre.WholeString(m.Regex)})
}
