package terminal

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"shop/cart":              "shop/cart",
		"Käse 猫 🦀":               "Käse 猫 🦀",
		`\d+\.html`:              `\d+\.html`,
		"it's \"quoted\"":        "it's \"quoted\"",
		"\x1b[2Jgone":            `\x1b[2Jgone`,
		"a\r\nshop/cart: fine":   `a\r\nshop/cart: fine`,
		"a\tb\x00\x7f\a":         `a\tb\x00\x7f\a`,
		"\u009b31mred":           `\u009b31mred`,
		"safe\u202egpj.exe":      `safe\u202egpj.exe`,
		"a\u2066b\u200bc\ufeffd": `a\u2066b\u200bc\ufeffd`,
		"a\u2028b\u0085c":        `a\u2028b\u0085c`,
		"bad\xff\xc3(":           `bad\xff\xc3(`,
		"\U000e0041tag":          `\U000e0041tag`,
	} {
		if got := Line(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	if got := Text("a\n\tb\x1b\r\n"); got != "a\n\tb\\x1b\\r\n" {
		t.Errorf("a text becomes %q", got)
	}
}

func TestSprintf(t *testing.T) {
	const hostile = "a\nb\x1b"
	name := mesh.Name{Namespace: "shop", Name: hostile}
	got := sprintf("%s %q %v %-8s|%5d %v %s %.1f\n", hostile, hostile, name, "x", 7, errors.New(hostile), time.Second, 0.25)
	want := `a\nb\x1b "a\nb\x1b" shop/a\nb\x1b x       |    7 a\nb\x1b 1s 0.2` + "\n"
	if got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
	var b strings.Builder
	_, _ = Fprintln(&b, "warning:", name, hostile)
	table := NewTable(&b, 3)
	table.Header("NAME\tPODS")
	table.Row("a\tb\nc", "1")
	_ = table.Flush()
	_, _ = FprintError(&b, fmt.Errorf("reading: %w", errors.Join(errors.New("one\x1b"), errors.New("two"))))
	want = `warning: shop/a\nb\x1b a\nb\x1b
NAME      PODS
a\tb\nc   1
error: reading: one\x1b
    two
`
	if b.String() != want {
		t.Errorf("it is %q, want %q", b.String(), want)
	}
}

// FuzzWriter gives a text to a writer in two parts: the result is that of the whole text, holds
// nothing that controls a terminal, and is not changed by a second pass.
func FuzzWriter(f *testing.F) {
	for _, text := range []string{"a\x1b[0m\n", "Käse 猫 🦀\n", "\xf0\x9f\xff", "\u202e\xe2\x80", "\xff\xff\xff\xff"} {
		for at := range len(text) {
			f.Add(text, at)
		}
	}
	f.Fuzz(func(t *testing.T, text string, at int) {
		if at < 0 || at > len(text) {
			return
		}
		var b strings.Builder
		w := Writer(&b)
		for _, part := range []string{text[:at], text[at:], "\n"} {
			if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if want := Text(text + "\n"); b.String() != want {
			t.Errorf("it is %q, want %q", b.String(), want)
		}
		for _, text := range []string{b.String(), Line(text)} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }) {
				t.Errorf("%q is not safe", text)
			}
			if again := Text(text); again != text {
				t.Errorf("%q becomes %q", text, again)
			}
		}
		if strings.ContainsAny(Line(text), "\n\t") {
			t.Errorf("%q is not a line", Line(text))
		}
	})
}
