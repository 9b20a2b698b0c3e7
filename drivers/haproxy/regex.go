package haproxy

import (
	"fmt"
	"regexp/syntax"
	"strings"
)

// longestProgram is how many instructions an expression may have, so that PCRE2, which
// writes out repetitions, takes it.
const longestProgram = 1000

// pcre returns an expression of PCRE2 that matches the whole ASCII strings that the RE2
// expression matches, and no others. It is written anew from what was parsed, so that
// nothing in it means something else to PCRE2, and gives up after so many steps, as PCRE2
// may take for ever where RE2 does not. It returns "" for what is no expression of
// RE2 or too long.
func pcre(expression string) string {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return ""
	}
	if program, err := syntax.Compile(parsed.Simplify()); err != nil || len(program.Inst) > longestProgram {
		return ""
	}
	// Simplify would write out repetitions, so it is not what is written.
	var out strings.Builder
	out.WriteString(`(*LIMIT_MATCH=100000)\A(?=[\x00-\x7f]*\z)(?:`)
	writeExpression(&out, parsed)
	out.WriteString(`)\z`)
	return out.String()
}

func writeExpression(out *strings.Builder, re *syntax.Regexp) {
	group := func(op string) {
		out.WriteString("(?:")
		writeExpression(out, re.Sub[0])
		out.WriteString(")" + op)
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			writeRune(out, r, re.Flags&syntax.FoldCase != 0)
		}
	case syntax.OpCharClass:
		writeClass(out, re.Rune)
	case syntax.OpAnyCharNotNL:
		out.WriteString(`[^\n]`)
	case syntax.OpAnyChar:
		out.WriteString(`[\x00-\x7f]`)
	case syntax.OpBeginLine:
		out.WriteString(`(?m:^)`)
	case syntax.OpEndLine:
		out.WriteString(`(?m:$)`)
	case syntax.OpBeginText:
		out.WriteString(`\A`)
	case syntax.OpEndText:
		out.WriteString(`\z`)
	case syntax.OpWordBoundary:
		out.WriteString(`\b`)
	case syntax.OpNoWordBoundary:
		out.WriteString(`\B`)
	case syntax.OpCapture:
		group("")
	case syntax.OpStar:
		group("*")
	case syntax.OpPlus:
		group("+")
	case syntax.OpQuest:
		group("?")
	case syntax.OpRepeat:
		if re.Max < 0 {
			group(fmt.Sprintf("{%d,}", re.Min))
		} else {
			group(fmt.Sprintf("{%d,%d}", re.Min, re.Max))
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			writeExpression(out, sub)
		}
	case syntax.OpAlternate:
		out.WriteString("(?:")
		for i, sub := range re.Sub {
			if i > 0 {
				out.WriteByte('|')
			}
			writeExpression(out, sub)
		}
		out.WriteByte(')')
	default:
		out.WriteString(nothing)
	}
}

// nothing is an expression that never matches.
const nothing = `(?!)`

// writeRune writes a character, or one that matches none if it is not ASCII.
func writeRune(out *strings.Builder, r rune, fold bool) {
	switch {
	case r > 0x7f:
		out.WriteString(nothing)
	case fold:
		fmt.Fprintf(out, `(?i:\x%02x)`, r)
	case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '/' || r == '-' || r == '_':
		out.WriteRune(r)
	default:
		fmt.Fprintf(out, `\x%02x`, r)
	}
}

// writeClass writes the ASCII part of a class, whose runes are pairs.
func writeClass(out *strings.Builder, pairs []rune) {
	var class strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] <= 0x7f {
			fmt.Fprintf(&class, `\x%02x-\x%02x`, pairs[i], min(pairs[i+1], 0x7f))
		}
	}
	if class.Len() == 0 {
		out.WriteString(nothing)
		return
	}
	out.WriteString("[" + class.String() + "]")
}
