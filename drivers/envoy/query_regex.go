package envoy

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// escapedRegex returns an expression for values of parameters as they are written, which matches
// those that the given expression matches once they are decoded, and whether that has the empty
// value. It returns false for expressions that would become too long, and for those with word
// boundaries, or anchors elsewhere than at their ends.
func escapedRegex(text string) (escaped string, empty, ok bool) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return "", false, false
	}
	w := &escapingWriter{ok: true}
	empty = w.write(withoutAnchors(parsed))
	if !w.ok || w.Len() > maxEscaped {
		return "", false, false
	}
	if steps, err := mesh.RegexSteps(w.String()); err != nil || steps > maxSteps/4 {
		return "", false, false
	}
	return "(?:" + w.String() + ")", empty, true
}

// maxEscaped bounds the length of an expression.
const maxEscaped = 16 << 10

// withoutAnchors removes anchors from the ends of an expression that must match a whole value.
func withoutAnchors(re *syntax.Regexp) *syntax.Regexp {
	isAnchor := func(re *syntax.Regexp, op syntax.Op) bool { return re.Op == op }
	switch {
	case isAnchor(re, syntax.OpBeginText) || isAnchor(re, syntax.OpEndText):
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}
	case re.Op != syntax.OpConcat:
		return re
	}
	sub := re.Sub
	for len(sub) > 0 && isAnchor(sub[0], syntax.OpBeginText) {
		sub = sub[1:]
	}
	for len(sub) > 0 && isAnchor(sub[len(sub)-1], syntax.OpEndText) {
		sub = sub[:len(sub)-1]
	}
	return &syntax.Regexp{Op: syntax.OpConcat, Sub: sub}
}

// escapingWriter writes an expression for escaped text.
type escapingWriter struct {
	strings.Builder
	ok bool
}

// write writes the expression, and reports whether it matches the empty text.
func (w *escapingWriter) write(re *syntax.Regexp) (empty bool) {
	if w.Len() > maxEscaped {
		w.ok = false
	}
	if !w.ok {
		return false
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return true
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			class := []rune{r, r}
			if re.Flags&syntax.FoldCase != 0 {
				for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
					class = append(class, next, next)
				}
			}
			w.class(class)
		}
		return len(re.Rune) == 0
	case syntax.OpCharClass:
		w.class(re.Rune)
	case syntax.OpAnyCharNotNL:
		w.class([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.OpAnyChar:
		w.class([]rune{0, unicode.MaxRune})
	case syntax.OpCapture:
		return w.group(re.Sub[0], "")
	case syntax.OpStar:
		w.group(re.Sub[0], "*")
		return true
	case syntax.OpQuest:
		w.group(re.Sub[0], "?")
		return true
	case syntax.OpPlus:
		return w.group(re.Sub[0], "+")
	case syntax.OpRepeat:
		most := ""
		if re.Max >= 0 {
			most = fmt.Sprint(re.Max)
		}
		return w.group(re.Sub[0], fmt.Sprintf("{%d,%s}", re.Min, most)) || re.Min == 0
	case syntax.OpConcat:
		empty = true
		for _, sub := range re.Sub {
			if !w.write(sub) {
				empty = false
			}
		}
		return empty
	case syntax.OpAlternate:
		w.WriteString("(?:")
		for i, sub := range re.Sub {
			if i > 0 {
				w.WriteByte('|')
			}
			if w.write(sub) {
				empty = true
			}
		}
		w.WriteByte(')')
		return empty
	default:
		w.ok = false
	}
	return false
}

func (w *escapingWriter) group(re *syntax.Regexp, after string) (empty bool) {
	w.WriteString("(?:")
	empty = w.write(re)
	w.WriteString(")" + after)
	return empty
}

// The escapes of all characters outside ASCII.
const (
	following = `%[89ABab]` + hexDigit
	manyBytes = `%[CDcd]` + hexDigit + following + `|%[Ee]` + hexDigit + `(?:` + following + `){2}|%[Ff][0-4](?:` + following + `){3}`
)

// maxListed is how many characters outside ASCII a class may have, unless it has all.
const maxListed = 32

// class writes a class of characters, given as pairs of the first and the last of each range.
func (w *escapingWriter) class(ranges []rune) {
	var plain, escapes strings.Builder
	outside := 0
	var listed []string
	for i := 0; i < len(ranges); i += 2 {
		first := max(ranges[i], utf8.RuneSelf)
		if first > ranges[i+1] {
			continue
		}
		count := int(ranges[i+1] - first + 1)
		outside += count
		for r := first; r <= ranges[i+1] && count+len(listed) <= maxListed; r++ {
			listed = append(listed, queryText(string(r)))
		}
	}
	has := func(c rune) bool {
		for i := 0; i < len(ranges); i += 2 {
			if c >= ranges[i] && c <= ranges[i+1] {
				return true
			}
		}
		return false
	}
	for c := rune(0); c < utf8.RuneSelf; c++ {
		isPlain := func(c rune) bool { return c < utf8.RuneSelf && has(c) && !strings.ContainsRune(" +&;%#", c) }
		if last := c; isPlain(c) {
			for isPlain(last + 1) {
				last++
			}
			fmt.Fprintf(&plain, `\x%02x-\x%02x`, c, last)
			c = last
		}
	}
	if has(' ') {
		plain.WriteString("+")
	}
	// Characters that share the first digit of their escapes are one alternative.
	for high := range rune(8) {
		var low strings.Builder
		for digit := range rune(16) {
			if has(high<<4 | digit) {
				fmt.Fprintf(&low, "%x", digit)
			}
		}
		if low.Len() > 0 {
			fmt.Fprintf(&escapes, "|%%%d[%s%s]", high, low.String(), strings.ToUpper(strings.TrimLeft(low.String(), "0123456789")))
		}
	}
	switch all := int(unicode.MaxRune) - utf8.RuneSelf + 1; {
	case outside == all:
		escapes.WriteString("|" + manyBytes)
	case outside == len(listed):
		for _, one := range listed {
			escapes.WriteString("|" + one)
		}
	default:
		w.ok = false
	}
	alternatives := escapes.String()
	if plain.Len() > 0 {
		alternatives = "|[" + plain.String() + "]" + alternatives
	}
	if alternatives == "" {
		w.WriteString(`[^\x00-\x{10FFFF}]`)
		return
	}
	w.WriteString("(?:" + alternatives[1:] + ")")
}
