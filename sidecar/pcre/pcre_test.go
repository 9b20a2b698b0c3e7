package pcre

import (
	"regexp"
	"strings"
	"testing"
)

// understood are expressions that RE2 and PCRE2 both take, and that mean the same to Go's
// engine in the form that is written for PCRE2.
var understood = []string{
	"/books(/.*)?", "/a|/b", "[a-z]+@[^/]{2,5}", `\d+\.\d*`, `(?i)bOOk`, "(?s).*", `\Q*.*\E`, "a{3}", "(?U)a+?", `[[:alpha:]_]\w`, `\bx\b`, "(?P<name>a)b", "^/a$", "", "a||b", "é|a", `[é-ü]|b`, "(?m)^a$",
}

var subjects = []string{
	"", "/books", "/books/", "/books/a", "/booksa", "/a", "/b", "ab@cd", "ab@c/", "12.", "12.3", "1", "book", "BOOK", "a\nb", "*.*", "aaa", "aa", "aaaa", "x", "xx", "x1", "_a", "ab", "a", "b", "é", "ü", "\n", "a\n", "日本",
}

// TestWholeString compares what comes out with what RE2 says. Go's engine stands for
// PCRE2's, of which it has all that is written, but for the beginning.
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
				t.Errorf("%q becomes %q, which says %v of %q, want %v", expression, text, got, subject, want)
			}
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q becomes %q, which is not printable ASCII", expression, text)
		}
	}
}

// TestNoExpressions has what RE2 takes for none, among it what PCRE2 would run.
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

// TestParameterOnce is the same engine's, but for the lookahead, so it looks at the shape
// alone; drivers/haproxy asks a real HAProxy.
func TestParameterOnce(t *testing.T) {
	if text := ParameterOnce("a.b"); !strings.Contains(text, `a\.b(?:=`) || !strings.HasPrefix(text, `\A`) || !strings.HasSuffix(text, `\z`) {
		t.Error(text)
	}
}
