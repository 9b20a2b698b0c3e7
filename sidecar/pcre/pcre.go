// Package pcre converts the regular expressions of package mesh, which are RE2, for
// proxies that use PCRE2.
package pcre

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// maxInstructions limits the compiled size of an expression to what PCRE2, which
// expands repetitions, accepts.
const maxInstructions = 1000

// WholeString returns a PCRE2 expression that matches exactly the complete ASCII
// strings that the RE2 expression matches, or "" if that is invalid or too long. It is
// generated from the parsed expression, so that no syntax has another meaning in PCRE2,
// and has a match limit, since PCRE2 can take exponential time.
func WholeString(expression string) string {
	text := asciiForm(expression)
	if text == "" {
		return ""
	}
	return `(*LIMIT_MATCH=100000)\A(?=[\x00-\x7f]*\z)` + text
}

// NoWholeString returns a PCRE2 expression that matches exactly the complete ASCII strings
// that the RE2 expression does not match, or "" if that is invalid or too long. PCRE2 gives up
// some strings after many steps, so what must be refused in doubt is what this one does not match.
func NoWholeString(expression string) string {
	text := asciiForm(expression)
	if text == "" {
		return ""
	}
	return `(*LIMIT_MATCH=100000)\A(?=[\x00-\x7f]*\z)(?!` + text + `)`
}

// asciiForm returns what matches the rest of an ASCII string in the syntax of PCRE2, or "".
func asciiForm(expression string) string {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return ""
	}
	// `\Q0` is valid only outside of brackets, so package mesh considers it invalid.
	if _, err := syntax.Parse(`(?:`+expression+`)`, syntax.Perl); err != nil {
		return ""
	}
	// Before Simplify, which expands repetitions.
	ascii(parsed)
	text := parsed.String()
	if program, err := syntax.Compile(parsed.Simplify()); err != nil || len(program.Inst) > maxInstructions {
		return ""
	}
	return `(?:` + text + `)\z`
}

// none is a character class that matches no ASCII character.
var none = []rune{0x80, 0x80}

// ascii reduces an expression to what an ASCII string can match.
func ascii(re *syntax.Regexp) {
	for _, sub := range re.Sub {
		ascii(sub)
	}
	// PCRE2's dollar also matches before a trailing newline.
	re.Flags &^= syntax.WasDollar
	switch re.Op {
	case syntax.OpNoMatch:
		*re = syntax.Regexp{Op: syntax.OpCharClass, Rune: none}
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			if r > 0x7f {
				*re = syntax.Regexp{Op: syntax.OpCharClass, Rune: none}
				return
			}
		}
	case syntax.OpCharClass:
		var pairs []rune
		for i := 0; i+1 < len(re.Rune) && re.Rune[i] <= 0x7f; i += 2 {
			pairs = append(pairs, re.Rune[i], min(re.Rune[i+1], 0x7f))
		}
		if re.Rune = pairs; len(pairs) == 0 {
			re.Rune = none
		}
	}
}

// AmbiguousQuery returns an expression that finds, in queries without the question mark, what
// mesh.AmbiguousQuery matches. Its time is proportional to the query's length.
func AmbiguousQuery(parameter string) string {
	name := regexp.QuoteMeta(parameter)
	again := name + `(?:[=&]|\z)`
	// Possessive, so that a long query needs no stack.
	return `[;#]|(?:\A|&)(?:[^=&%+]*+[%+]|` + name + `(?=[=&])(?:[^&]*+&(?!` + again + `))*+[^&]*+&` + again + `)`
}

// ParameterOnce returns an expression that matches queries, without the question mark,
// that have the parameter exactly once. It rejects queries that applications may read
// differently: with escaped names, semicolons or a fragment.
func ParameterOnce(name string) string {
	const other = `[^&=;%+#]*(?:=[^&;#]*)?`
	name = regexp.QuoteMeta(name)
	return `\A(?!(?:.*&)?` + name + `(?:=[^&]*)?&(?:.*&)?` + name + `(?:[=&]|\z))(?:` + other + `&)*` + name + `(?:=[^&;#]*)?(?:&` + other + `)*\z`
}

// Parameter returns an expression that matches queries, without the question mark, that have
// the parameter. Its first group is the value of the first one, still encoded. As in package
// mesh, names are compared decoded, parameters with a semicolon or a malformed escape are
// ignored, and one without an equals sign has an empty value.
func Parameter(name string) string {
	var encoded strings.Builder
	for i := range len(name) {
		c := name[i]
		hex := func(digit byte) string {
			if low := digit | 0x20; low >= 'a' {
				return "[" + string(low) + string(low-0x20) + "]"
			}
			return string(digit)
		}
		digits := fmt.Sprintf("%02x", c)
		escaped := "%" + hex(digits[0]) + hex(digits[1])
		switch {
		case c == ' ':
			fmt.Fprintf(&encoded, `(?:\+|%s)`, escaped)
		case c <= ' ' || c > '~' || strings.IndexByte("+&=;%#", c) >= 0:
			encoded.WriteString(escaped)
		default:
			fmt.Fprintf(&encoded, "(?:%s|%s)", regexp.QuoteMeta(string(c)), escaped)
		}
	}
	const text = `(?:[^&;%]|%[0-9a-fA-F]{2})*+`
	with := func(value string) string { return encoded.String() + `(?:=` + value + `)?+(?=&|\z)` }
	// Possessive, so that a long query needs no stack.
	return `\A(?:(?!` + with(text) + `)[^&]*+&)*+` + with(`(`+text+`)`) + `.*\z`
}
