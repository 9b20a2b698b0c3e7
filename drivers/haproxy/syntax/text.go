// Package syntax is the only way for text into HAProxy's configuration. Its types hold text
// that is safe in one place of the syntax, and can be made only by functions that quote or
// check. The compiler refuses a string in their place, unless it is a constant of the driver,
// and templates of this package print no strings.
//
// A line of the configuration is a Text. Its words can have a syntax of their own: an
// Expression fetches a part of a request, with Arguments such as the name of a header, and a
// Format gives the value of a header, in which a percent sign begins an Expression. Those
// become Text by quoting them as one word.
//
// What HAProxy can't express is marked as such, and makes everything that contains it so.
package syntax

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWord is the longest word. HAProxy's own buffers for lines grow; what it sends must fit
// into tune.bufsize.
const maxWord = 32 << 10

// maxArgument is the longest argument: HAProxy parses arguments in a buffer that is not
// longer because of tune.bufsize.
const maxArgument = 8 << 10

// constant is a string constant of the program. No other package can convert a variable to it.
type constant string

// Text is a part of a line of the configuration. The zero Text is empty.
type Text struct{ text string }

// String returns the text.
func (t Text) String() string { return t.text }

// IsZero reports whether the text is empty.
func (t Text) IsZero() bool { return t.text == "" }

// Literal returns a constant of the driver.
func Literal(text constant) Text { return Text{string(text)} }

// Fill returns the pattern with each "{}" replaced by one of the texts.
func Fill(pattern constant, texts ...Text) Text { return Text{fill(pattern, texts)} }

// Join returns the texts with the separator between them.
func Join(separator constant, texts ...Text) Text {
	parts := make([]string, len(texts))
	for i, t := range texts {
		parts[i] = t.text
	}
	return Text{strings.Join(parts, string(separator))}
}

// Number returns a number.
func Number[N ~int | ~int64 | ~uint16 | ~uint32 | ~uint64](n N) Text {
	return Text{strconv.FormatInt(int64(n), 10)}
}

var (
	plain   = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	noPlain = regexp.MustCompile(`[^A-Za-z0-9_.-]`)
)

// Plain returns the value as it is if it consists of letters, digits, dots, hyphens and
// underscores only, like the name of a host. Otherwise ok is false.
func Plain(value string) (t Text, ok bool) {
	if !plain.MatchString(value) {
		return Text{}, false
	}
	return Text{value}, true
}

// Section returns the name of a part of the configuration: characters that names can't have
// become colons. A very long one, which no object has, becomes its hash.
func Section(name string) Text {
	if len(name) > 512 {
		return Text{fmt.Sprintf("%x", sha256.Sum256([]byte(name)))}
	}
	return Text{noPlain.ReplaceAllString(name, ":")}
}

// Address returns an address without a zone, and Server one with a port.
func Address(a netip.Addr) Text { return Text{a.WithZone("").String()} }

// Server returns an address without a zone, with a port.
func Server(a netip.Addr, port uint16) Text {
	return Text{netip.AddrPortFrom(a.WithZone(""), port).String()}
}

// Range returns a range of addresses.
func Range(p netip.Prefix) Text { return Text{p.Masked().String()} }

// Word returns a value as one word, such as a pattern that is compared or the name of a
// header. If ok is false, HAProxy can't have it: it is empty, too long, no UTF-8 or
// has control characters.
func Word(value string) (word Text, ok bool) { return quote(value, value != "" && printable(value)) }

// quote puts quotes around a word. Nothing has a meaning within them but their end.
func quote(content string, ok bool) (Text, bool) {
	if !ok || len(content) > maxWord {
		return Text{}, false
	}
	return Text{"'" + strings.ReplaceAll(content, "'", `'\''`) + "'"}, true
}

// printable reports whether the value has no control characters. A line break would end the
// line, whatever is around it.
func printable(value string) bool {
	return utf8.ValidString(value) && !strings.ContainsFunc(value, unicode.IsControl)
}

// Argument is an argument of a function of an Expression.
type Argument struct {
	text string
	bad  bool
}

// Name returns the argument for a name, such as that of a header, which is never empty.
func Name(value string) Argument {
	if plain.MatchString(value) {
		return Argument{text: value}
	}
	return Argument{
		text: `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`,
		bad:  value == "" || len(value) > maxArgument/2 || !printable(value),
	}
}

// Expression fetches a part of a request or connection, and converts it.
type Expression struct {
	text string
	bad  bool
}

// Fetch returns the expression with each "{}" replaced by one of the arguments.
func Fetch(pattern constant, arguments ...Argument) Expression {
	e := Expression{text: fill(pattern, arguments)}
	for _, a := range arguments {
		e.bad = e.bad || a.bad
	}
	return e
}

// Length returns the argument for the number of bytes of a value.
func Length(value string) Argument { return Count(len(value)) }

// Count returns the argument for a number.
func Count(n int) Argument { return Argument{text: strconv.Itoa(n)} }

// String returns the argument.
func (a Argument) String() string { return a.text }

// Word returns the expression as one word.
func (e Expression) Word() (word Text, ok bool) {
	if !e.bad && !strings.ContainsAny(e.text, `"'\ #$`) {
		return Text{e.text}, true
	}
	return quote(e.text, !e.bad)
}

// Format is a log format, which gives a value. The zero Format gives an empty one.
type Format struct {
	text string
	bad  bool
}

// Value returns the format of a value.
func Value(value string) Format {
	return Format{text: strings.ReplaceAll(value, "%", "%%"), bad: !printable(value)}
}

// Fetched returns the format of what the expression fetches. A bracket would end it.
func Fetched(e Expression) Format {
	return Format{text: "%[" + e.text + "]", bad: e.bad || strings.ContainsAny(e.text, "[]")}
}

// Constant returns a format of the driver.
func Constant(format constant) Format { return Format{text: string(format)} }

// Decimal returns the format of a number.
func Decimal(n uint16) Format { return Format{text: strconv.Itoa(int(n))} }

// Then returns the format of the values in this order.
func (f Format) Then(next ...Format) Format {
	for _, n := range next {
		f.text, f.bad = f.text+n.text, f.bad || n.bad
	}
	return f
}

// IsZero reports whether the value is empty.
func (f Format) IsZero() bool { return f == Format{} }

// Word returns the format as one word. Rules refuse an empty one, so that of an empty value has
// a variable that is never set.
func (f Format) Word() (word Text, ok bool) {
	return quote(cmp.Or(f.text, "%[var(txn.none)]"), !f.bad)
}

func fill[T interface{ String() string }](pattern constant, values []T) string {
	parts := strings.Split(string(pattern), "{}")
	if len(parts) != len(values)+1 {
		panic("syntax: the pattern " + strconv.Quote(string(pattern)) + " has another number of places than there are texts")
	}
	var b strings.Builder
	for i, part := range parts {
		b.WriteString(part)
		if i < len(values) {
			b.WriteString(values[i].String())
		}
	}
	return b.String()
}
