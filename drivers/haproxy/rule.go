package haproxy

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/pcre"
)

// rule applies if Where and all of its parts hold.
type rule struct {
	Name, Where syntax.Text
	Parts       []part
	// HTTP says that the rule is for requests, not for connections.
	HTTP bool
}

// part is a condition that holds if one of its ACL lines does. The condition of a short one
// is written in the rule itself: HAProxy searches all ACLs for each name.
type part struct {
	Lines []syntax.Text
	short bool
}

const (
	// maxWords is how many words the condition of a line has: a line has at most 64, and a few
	// are for what the rule does.
	maxWords = 56
	// shortWords is how many words a short part has at most, with its brackets.
	shortWords = 7
)

// Lines returns the lines that must precede the condition If: the ACLs of the parts, and rules
// that decide about the first parts if they are too many for one line.
func (r rule) Lines() []syntax.Text {
	lines, _ := r.conditions()
	return lines
}

// If returns the condition in HAProxy's syntax.
func (r rule) If() syntax.Text {
	_, condition := r.conditions()
	return condition
}

func (r rule) conditions() (lines []syntax.Text, condition syntax.Text) {
	kind := syntax.Literal("tcp-request content")
	if r.HTTP {
		kind = syntax.Literal("http-request")
	}
	condition = r.Where
	words := len(strings.Fields(r.Where.String()))
	chained := 0
	for i, p := range r.Parts {
		own, size := syntax.Fill("{}-{}", r.Name, syntax.Number(i)), 1
		if p.short {
			own, size = syntax.Fill("{ {} }", p.Lines[0]), shortWords
		} else {
			for _, line := range p.Lines {
				lines = append(lines, syntax.Fill("acl {} {}", own, line))
			}
		}
		if words+size > maxWords {
			mark := syntax.Fill("{}:{}", r.Name, syntax.Number(chained))
			lines = append(lines, syntax.Fill("{} set-var(txn.part) str({}) if {}", kind, mark, condition))
			condition, words = syntax.Fill("{ var(txn.part) -m str {} }", mark), shortWords
			chained++
		}
		condition, words = syntax.Join(" ", condition, own), words+size
	}
	return lines, condition
}

// never is a part that does not hold, and plain one that holds for unambiguous paths.
var never, plain = part{Lines: []syntax.Text{syntax.Literal("always_false")}, short: true}, part{Lines: []syntax.Text{syntax.Literal("var(txn.plain) -m bool")}, short: true}

// is returns a part that holds if the fetched value is one of the values. Those that HAProxy
// can't express are left out.
func is(fetch syntax.Text, values []string) part {
	var words []syntax.Text
	for _, value := range values {
		if word, ok := syntax.Word(value); ok {
			words = append(words, word)
		}
	}
	return anyOf(fetch, words)
}

// anyOf returns a part that holds if the fetched value is one of the patterns.
func anyOf(fetch syntax.Text, patterns []syntax.Text) part {
	if len(patterns) == 0 {
		return never
	}
	p := part{short: len(patterns) == 1}
	// A line may have 64 words.
	for chunk := range slices.Chunk(patterns, 48) {
		p.Lines = append(p.Lines, syntax.Fill("{} -- {}", fetch, syntax.Join(" ", chunk...)))
	}
	return p
}

// or returns a part that holds if one of the parts does.
func or(parts ...part) part {
	var all part
	for _, p := range parts {
		all.Lines = append(all.Lines, p.Lines...)
	}
	if len(all.Lines) == 0 {
		return never
	}
	all.short = len(all.Lines) == 1 && parts[0].short
	return all
}

// when returns a rule for the requests that m permits: those that it matches, except those
// whose path or query the application could interpret differently.
func when(name, where syntax.Text, m mesh.HTTPMatch, parts ...part) rule {
	parts = append(parts, path(m.Path)...)
	if m.Path.Exact == "" && m.Path.Regex+strings.TrimSuffix(m.Path.Prefix, "/") != "" {
		parts = append(parts, plain)
	}
	parts = append(parts, methodAndHeaders(m)...)
	for _, q := range m.Query {
		parts = append(parts, is(syntax.Literal("query -m reg"), []string{pcre.ParameterOnce(q.Name)}))
		if !q.Present && q.StringMatch != (mesh.StringMatch{}) {
			parts = append(parts, value(syntax.Fetch("url_param({}),url_dec(1)", syntax.Name(q.Name)), q.StringMatch))
		}
	}
	return rule{Name: name, Where: where, Parts: parts, HTTP: true}
}

// matching returns a rule for the requests that m matches. The path is normalized before.
func matching(name, where syntax.Text, m mesh.HTTPMatch, parts ...part) rule {
	parts = append(append(parts, path(m.Path)...), methodAndHeaders(m)...)
	for _, q := range m.Query {
		found := pcre.Parameter(q.Name)
		parts = append(parts, is(syntax.Literal("query -m reg"), []string{found}))
		if !q.Present && q.StringMatch != (mesh.StringMatch{}) {
			parts = append(parts, value(syntax.Fetch(`query,regsub({},"\\1"),url_dec(1)`, syntax.Name(found)), q.StringMatch))
		}
	}
	return rule{Name: name, Where: where, Parts: parts, HTTP: true}
}

// path returns the part of a path, or none if every path matches.
func path(m mesh.StringMatch) []part {
	prefix := strings.TrimSuffix(m.Prefix, "/")
	switch {
	case m.Exact == "" && prefix != "":
		return []part{or(is(syntax.Literal("path -m str"), []string{prefix}), is(syntax.Literal("path -m beg"), []string{prefix + "/"}))}
	case m.Exact+m.Prefix+m.Regex != "":
		return []part{value(syntax.Fetch("path"), m)}
	}
	return nil
}

func methodAndHeaders(m mesh.HTTPMatch) (parts []part) {
	if len(m.Methods) > 0 {
		parts = append(parts, is(syntax.Literal("method -m str"), m.Methods))
	}
	for _, h := range m.Headers {
		name := syntax.Name(h.Name)
		lines := func(count string) part {
			fetch, ok := syntax.Fetch("req.fhdr_cnt({})", name).Word()
			if !ok {
				return never
			}
			return is(syntax.Fill("{} -m int", fetch), []string{count})
		}
		if h.Present || h.StringMatch == (mesh.StringMatch{}) {
			parts = append(parts, lines("1:"))
		} else {
			// Of several lines HAProxy would compare only the last.
			parts = append(parts, lines("1"), value(syntax.Fetch("req.fhdr({})", name), h.StringMatch))
		}
	}
	return parts
}

// value returns the part that the expression has the value, or one that never holds if HAProxy
// can't express the expression.
func value(e syntax.Expression, m mesh.StringMatch) part {
	fetch, ok := e.Word()
	switch {
	case !ok:
		return never
	case m.Exact != "":
		return is(syntax.Fill("{} -m str", fetch), []string{m.Exact})
	case m.Prefix != "":
		return is(syntax.Fill("{} -m beg", fetch), []string{m.Prefix})
	}
	return is(syntax.Fill("{} -m reg", fetch), []string{pcre.WholeString(m.Regex)})
}
