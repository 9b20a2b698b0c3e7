package haproxy

import (
	"regexp"
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
	// not says that the rule applies if the part does not hold.
	not bool
	// unless are set for a part without lines, which holds unless all of them do.
	unless []part
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
	// named returns the condition of a part, and its words.
	named := func(own syntax.Text, p part) (syntax.Text, int) {
		size := 1
		if p.short {
			own, size = syntax.Fill("{ {} }", p.Lines[0]), shortWords
		} else {
			for _, line := range p.Lines {
				lines = append(lines, syntax.Fill("acl {} {}", own, line))
			}
		}
		if p.not {
			own = syntax.Fill("!{}", own)
		}
		return own, size
	}
	for i, p := range r.Parts {
		own, size := syntax.Fill("{}-{}", r.Name, syntax.Number(i)), shortWords
		if p.unless == nil {
			own, size = named(own, p)
		} else {
			var all []syntax.Text
			for j, sub := range p.unless {
				one, _ := named(syntax.Fill("{}-{}", own, syntax.Number(j)), sub)
				all = append(all, one)
			}
			mark := syntax.Fill("txn.unless{}", syntax.Number(i))
			lines = append(lines, syntax.Fill("{} set-var({}) str({}) if {}", kind, mark, own, syntax.Join(" ", all...)))
			own = syntax.Fill("!{ var({}) -m str {} }", mark, own)
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

// always holds, and never does not.
var always, never = shortPart(syntax.Literal("always_true")), shortPart(syntax.Literal("always_false"))

// plain holds for paths that are not ambiguous, normalPath for those that are normal, and clearPath for those
// that are both and have no parameters.
var (
	plain      = shortPart(syntax.Literal("var(txn.plain) -m bool"))
	normalPath = shortPart(syntax.Literal("var(txn.normal) -m bool"))
	clearPath  = shortPart(syntax.Literal("var(txn.clear) -m bool"))
	// Of tokens, see token.lua.
	verified, unclearToken = shortPart(syntax.Literal("var(txn.token) -m bool")), shortPart(syntax.Literal("var(txn.token_unclear) -m bool"))
)

// claims returns the part that the claims of a token satisfy the condition, if it is verified.
func claims(m *mesh.TokenMatch) part {
	name, _ := syntax.Plain(m.Name())
	return shortPart(syntax.Fill("var(txn.token.{}) -m bool", name))
}

func shortPart(line syntax.Text) part { return part{Lines: []syntax.Text{line}, short: true} }

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
	if text := m.Path.Exact + m.Path.Prefix; text != "" && strings.Trim(text, "/") != "" {
		// No normal path has other texts, but one that came may.
		normal, ok := mesh.NormalPath(text)
		if !ok || normal != text || strings.Contains(strings.TrimRight(text, "/"), "//") {
			parts = append(parts, never)
		}
	}
	switch {
	case isExpression(m.Path):
		// An expression can match the path as it came and not the normal one.
		parts = append(parts, plain, normalPath)
	case m.Path.Exact == "" && strings.TrimRight(m.Path.Prefix, "/") != "":
		parts = append(parts, plain)
	}
	parts = append(parts, methodAndHeaders(m)...)
	for _, q := range m.Query {
		parts = append(parts, is(syntax.Literal("query -m reg"), []string{pcre.ParameterOnce(q.Name)}))
		if !q.Present && q.StringMatch != (mesh.StringMatch{}) {
			parts = append(parts, value(syntax.Fetch("url_param({}),url_dec(1)", syntax.Name(q.Name)), q.StringMatch))
		}
	}
	if m.Token != nil {
		parts = append(parts, verified, claims(m.Token))
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

// denying returns a rule for the requests that m denies: those that it matches, and those whose path,
// headers or query the application could read so that it does. What HAProxy can't express holds.
func denying(name, where syntax.Text, m mesh.HTTPMatch, parts ...part) rule {
	if isExpression(m.Path) {
		parts = append(parts, part{unless: []part{noValue(syntax.Fetch("path"), m.Path.Regex), clearPath}})
	} else if paths := path(m.Path); len(paths) > 0 {
		if p := orAlways(paths[0]); !slices.Equal(p.Lines, always.Lines) {
			parts = append(parts, part{unless: []part{not(p), clearPath}})
		}
	}
	if len(m.Methods) > 0 && !slices.ContainsFunc(m.Methods, func(method string) bool { _, ok := syntax.Word(method); return !ok }) {
		parts = append(parts, is(syntax.Literal("method -m str"), m.Methods))
	}
	for _, h := range m.Headers {
		name := syntax.Name(h.Name)
		fetch, ok := syntax.Fetch("req.fhdr_cnt({})", name).Word()
		if !ok {
			continue
		}
		count := func(n string) part { return is(syntax.Fill("{} -m int", fetch), []string{n}) }
		parts = append(parts, count("1:"))
		if pattern, ok := mesh.DeniedValue(h.StringMatch); ok && !h.Present && h.StringMatch != (mesh.StringMatch{}) {
			parts = append(parts, part{unless: []part{count("1"), noValue(syntax.Fetch("req.fhdr({})", name), pattern)}})
		}
	}
	for _, q := range m.Query {
		ambiguous := is(syntax.Literal("query -m reg"), []string{pcre.AmbiguousQuery(q.Name)})
		found, decoded := is(syntax.Literal("query -m reg"), []string{pcre.Parameter(q.Name)}), syntax.Fetch("url_param({}),url_dec(1)", syntax.Name(q.Name))
		switch {
		case q.Exact+q.Prefix != "":
			parts = append(parts, orAlways(value(decoded, q.StringMatch), ambiguous))
		case q.Regex != "":
			differs := noValue(decoded, q.Regex)
			if !q.StringMatch.Matches("") && !slices.Equal(differs.Lines, never.Lines) {
				// HAProxy finds no parameter without an equals sign.
				differs = or(differs, is(syntax.Literal("query -m reg"), []string{`(?:\A|&)` + regexp.QuoteMeta(q.Name) + `(?:&|\z)`}))
			}
			parts = append(parts, orAlways(found, ambiguous), part{unless: []part{differs, not(ambiguous)}})
		default:
			parts = append(parts, orAlways(found, ambiguous))
		}
	}
	if m.Token != nil {
		parts = append(parts, or(unclearToken, claims(m.Token)))
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return slices.Equal(p.Lines, always.Lines) })
	return rule{Name: name, Where: where, Parts: parts, HTTP: true}
}

func isExpression(m mesh.StringMatch) bool { return m.Regex != "" && m.Exact+m.Prefix == "" }

// noValue returns the part that the fetched value is not one of those of the expression. It does not
// hold if HAProxy cannot tell.
func noValue(e syntax.Expression, expression string) part {
	fetch, ok := e.Word()
	if !ok {
		return never
	}
	return is(syntax.Fill("{} -m reg", fetch), []string{pcre.NoWholeString(expression)})
}

// orAlways is or, but holds always if one of the parts never does.
func orAlways(parts ...part) part {
	if slices.ContainsFunc(parts, func(p part) bool { return slices.Equal(p.Lines, never.Lines) }) {
		return always
	}
	return or(parts...)
}

// not returns the part that holds if p does not.
func not(p part) part {
	p.not = !p.not
	return p
}

// path returns the part of a path, or none if every path matches.
func path(m mesh.StringMatch) []part {
	prefix := strings.TrimRight(m.Prefix, "/")
	switch {
	case m.Exact == "" && m.Prefix != "" && prefix == "":
	case m.Exact == "" && prefix != "":
		return []part{or(is(syntax.Literal("path -m str"), []string{prefix}), is(syntax.Literal("path -m beg"), []string{prefix + "/"}))}
	case m.Exact != "":
		return []part{is(syntax.Literal("path -m str"), []string{m.Exact})}
	case m.Regex != "":
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
		// Other comparisons end at a NUL.
		return is(syntax.Fill("{} -m reg", fetch), []string{`\A` + regexp.QuoteMeta(m.Exact) + `\z`})
	case m.Prefix != "":
		return is(syntax.Fill("{} -m beg", fetch), []string{m.Prefix})
	}
	return is(syntax.Fill("{} -m reg", fetch), []string{pcre.WholeString(m.Regex)})
}
