// Package pcre writes the regular expressions of package mesh, which are RE2, for proxies
// whose expressions are those of PCRE2.
package pcre

import (
	"regexp"
	"regexp/syntax"
)

// longestProgram is how many instructions an expression may have, so that PCRE2, which
// writes out repetitions, takes it.
const longestProgram = 1000

// WholeString returns an expression of PCRE2 that matches the whole ASCII strings that the RE2
// expression matches, and no others, or "" for what is no expression of RE2 or too long.
// It is written anew from what was parsed, so that nothing in it means something else to
// PCRE2, and gives up after so many steps, as PCRE2 may take for ever where RE2 does not.
func WholeString(expression string) string {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return ""
	}
	// `\Q0` is an expression by itself and in no brackets, so package mesh takes it for none.
	if _, err := syntax.Parse(`(?:`+expression+`)`, syntax.Perl); err != nil {
		return ""
	}
	// Before Simplify, which writes out repetitions.
	ascii(parsed)
	text := parsed.String()
	if program, err := syntax.Compile(parsed.Simplify()); err != nil || len(program.Inst) > longestProgram {
		return ""
	}
	return `(*LIMIT_MATCH=100000)\A(?=[\x00-\x7f]*\z)(?:` + text + `)\z`
}

// none are the runes of a class that no ASCII string matches.
var none = []rune{0x80, 0x80}

// ascii leaves of an expression what an ASCII string can match.
func ascii(re *syntax.Regexp) {
	for _, sub := range re.Sub {
		ascii(sub)
	}
	// PCRE2's dollar would also match before a line's end.
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

// ParameterOnce returns an expression for queries, without the question mark, that hold
// the parameter once. It does not match queries in which something is not as all
// applications read it: names that are escaped, semicolons, or a fragment.
func ParameterOnce(name string) string {
	const other = `[^&=;%+#]*(?:=[^&;#]*)?`
	name = regexp.QuoteMeta(name)
	return `\A(?!(?:.*&)?` + name + `(?:=[^&]*)?&(?:.*&)?` + name + `(?:[=&]|\z))(?:` + other + `&)*` + name + `(?:=[^&;#]*)?(?:&` + other + `)*\z`
}
