// Package terminal writes text for people. Names and values of objects, texts of clients and
// messages of proxies can contain anything, so the package makes what would control a terminal
// visible: escape sequences, other control characters, marks that change the direction of text,
// characters that nobody sees, and bytes that are not UTF-8. Inside a value it does the same with
// line breaks and tabs, so that no value can look like a line of its own. An escape character
// becomes \x1b, and a line break \n.
//
// All commands write their text with this package, and a test of package cli forbids package fmt
// for it. JSON and YAML for programs are written as they are. The package knows nothing of the
// mesh.
package terminal

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Line returns a value on one line: line breaks and tabs become visible too.
func Line(value string) string { return visible(value, "") }

// Word returns a value as one word of a line: spaces become visible too.
func Word(value string) string { return strings.ReplaceAll(Line(value), " ", `\x20`) }

// Text returns a text of several lines, which keeps its line breaks and tabs. Values that were put
// into it must be the result of Line.
func Text(text string) string { return visible(text, "\n\t") }

// visible replaces all characters of a text that do not print as themselves, but for those in keep.
func visible(text, keep string) string {
	if isPlain(text) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case strconv.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
	}
	return b.String()
}

// isPlain reports whether a text consists of printable ASCII, as most do.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// sprintf is [fmt.Sprintf], but each argument stays on one line, as with Line. The format must be a
// constant.
func sprintf(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...) // It has go vet check the calls.
	}
	return fmt.Sprintf(format, lines(args)...)
}

// Fprintf writes the result of sprintf.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	if false {
		_ = fmt.Sprintf(format, args...) // It has go vet check the calls.
	}
	return fmt.Fprintf(w, format, lines(args)...)
}

// Fprintln writes its arguments as one line, with spaces between them.
func Fprintln(w io.Writer, args ...any) (int, error) {
	return fmt.Fprintln(w, lines(args)...)
}

// FprintError writes an error. Its other lines are indented, so that none of them can look like
// output of the command.
func FprintError(w io.Writer, err error) (int, error) {
	first, rest, several := strings.Cut(Text(err.Error()), "\n")
	if !several {
		return fmt.Fprintln(w, "error:", first)
	}
	other := strings.Split(rest, "\n")
	for i, line := range other {
		if !strings.HasPrefix(line, " ") {
			other[i] = "    " + line
		}
	}
	return fmt.Fprintln(w, "error:", first+"\n"+strings.Join(other, "\n"))
}

// lines wraps the arguments of a format.
func lines(args []any) []any {
	wrapped := make([]any, len(args))
	for i, arg := range args {
		wrapped[i] = line{arg}
	}
	return wrapped
}

// line is an argument that is formatted as itself, and then by Line.
type line struct{ value any }

// Format implements [fmt.Formatter].
func (l line) Format(state fmt.State, verb rune) {
	_, _ = io.WriteString(state, Line(fmt.Sprintf(fmt.FormatString(state, verb), l.value)))
}
