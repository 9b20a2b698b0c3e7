package pcre

import (
	"regexp"
	"strings"
	"testing"
)

// understood are expressions that RE2 and PCRE2 both support. In the form for PCRE2 they
// mean the same to Go's engine.
var understood = []string{
	"/books(/.*)?", "/a|/b", "[a-z]+@[^/]{2,5}", `\d+\.\d*`, `(?i)bOOk`, "(?s).*", `\Q*.*\E`, "a{3}", "(?U)a+?", `[[:alpha:]_]\w`, `\bx\b`, "(?P<name>a)b", "^/a$", "", "a||b", "é|a", `[é-ü]|b`, "(?m)^a$",
}

var subjects = []string{
	"", "/books", "/books/", "/books/a", "/booksa", "/a", "/b", "ab@cd", "ab@c/", "12.", "12.3", "1", "book", "BOOK", "a\nb", "*.*", "aaa", "aa", "aaaa", "x", "xx", "x1", "_a", "ab", "a", "b", "é", "ü", "\n", "a\n", "日本",
}

// TestWholeString compares the results with RE2. Go's engine replaces PCRE2, since it
// supports everything in the expressions except for their start.
func TestWholeString(t *testing.T) {
	const begin, end = `(*LIMIT_MATCH=100000)\A(?=[\x00-\x7f]*\z)(?:`, `)\z`
	for _, expression := range understood {
		text := WholeString(expression)
		if !strings.HasPrefix(text, begin) || !strings.HasSuffix(text, end) {
			t.Errorf("%q becomes %q", expression, text)
			continue
		}
		written, err := regexp.Compile(`\A(?:` + text[len(begin):])
		if err != nil {
			t.Errorf("%q becomes %q: %v", expression, text, err)
			continue
		}
		whole := regexp.MustCompile(`\A(?:` + expression + `)\z`)
		for _, subject := range subjects {
			ascii := strings.IndexFunc(subject, func(r rune) bool { return r > 0x7f }) < 0
			if got, want := ascii && written.MatchString(subject), ascii && whole.MatchString(subject); got != want {
				t.Errorf("%q becomes %q, which gives %v for %q, want %v", expression, text, got, subject, want)
			}
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q becomes %q, which is not printable ASCII", expression, text)
		}
	}
}

// TestNoExpressions has expressions that RE2 rejects, some of which PCRE2 accepts.
func TestNoExpressions(t *testing.T) {
	for _, expression := range []string{"(", "a)(b", `\1`, "(?R)", "(?=a)", "(?<!a)b", "a++", "(*ACCEPT)a", `\C`, "(?#a)", "(?>a)", `\Q0`, "(a{900}){900}", strings.Repeat("(ab|cd)", 400)} {
		if text := WholeString(expression); text != "" {
			t.Errorf("%q becomes %q", expression, text)
		}
	}
}

func FuzzWholeString(f *testing.F) {
	for _, expression := range understood {
		for _, subject := range subjects[:5] {
			f.Add(expression, subject)
		}
	}
	f.Fuzz(func(t *testing.T, expression, subject string) {
		text := WholeString(expression)
		if text == "" || strings.ContainsFunc(subject, func(r rune) bool { return r > 0x7f }) {
			return
		}
		written := regexp.MustCompile(`\A(?:` + text[strings.Index(text, `\z)(?:`)+6:])
		if written.MatchString(subject) && !regexp.MustCompile(`\A(?:`+expression+`)\z`).MatchString(subject) {
			t.Errorf("%q becomes %q, which matches %q", expression, text, subject)
		}
	})
}

// TestParameterOnce checks only the text, since Go's engine has no lookahead;
// drivers/haproxy tests it with a real HAProxy.
func TestParameterOnce(t *testing.T) {
	if text := ParameterOnce("a.b"); !strings.Contains(text, `a\.b(?:=`) || !strings.HasPrefix(text, `\A`) || !strings.HasSuffix(text, `\z`) {
		t.Error(text)
	}
}
