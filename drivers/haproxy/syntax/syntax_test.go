package syntax

import (
	"strings"
	"testing"
	"testing/fstest"
)

// execute executes a template with the value of .X.
func execute(t *testing.T, text string, x any) (string, error) {
	t.Helper()
	parsed, err := Parse(fstest.MapFS{"a": {Data: []byte(text)}}, "a", nil)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = parsed.Execute(&out, map[string]any{"X": x})
	return out.String(), err
}

// TestTemplates checks that a template prints no strings, in whatever form.
func TestTemplates(t *testing.T) {
	word, _ := Word("it's")
	for _, text := range []string{
		"{{.X}}", "{{if .X}}{{.X}}{{end}}", "{{with .X}}{{.}}{{end}}", "{{range .X}}a{{else}}{{.X}}{{end}}{{.X}}", `{{printf "%s" .X}}`, `{{define "b"}}{{.}}{{end}}{{template "b" .X}}`,
		"{{$x := .X}}{{$x}}", "{{fill \"a {}\" .X}}", "{{literal .X}}", "{{fill .X}}", `{{.X | literal}}`, `{{literal (print .X)}}`, `{{if (literal .X)}}a{{end}}`, `{{"a"}}`,
	} {
		if out, err := execute(t, text, "a"); err == nil {
			t.Errorf("%s printed %q", text, out)
		}
	}
	if out, err := execute(t, `{{literal "a"}} {{fill "{}-{}" .X 1}} {{.X}}`, word); err != nil || out != `a 'it'\''s'-1 'it'\''s'` {
		t.Errorf("it printed %q, %v", out, err)
	}
}

// TestTexts has values that HAProxy can't have, and those that need quotes.
func TestTexts(t *testing.T) {
	for _, value := range []string{"a\nb", "a\rb", "\x00", "\x7f", "\u0085", "\xff", strings.Repeat("é", maxWord)} {
		all := map[string]func() (Text, bool){
			"word": func() (Text, bool) { return Word(value) }, "plain text": func() (Text, bool) { return Plain(value) }, "expression": Fetch("f({})", Name(value)).Word,
			"expression in a format": Fetched(Fetch("f({})", Name(value))).Word, "format": Value(value).Then(Constant("a")).Word,
		}
		for kind, word := range all {
			if _, ok := word(); ok {
				t.Errorf("%.10q is a valid %s", value, kind)
			}
		}
	}
	if _, ok := Word(""); ok {
		t.Error("a word is empty")
	}
	words := []Text{Section("a b'/c")}
	for _, w := range []func() (Text, bool){
		func() (Text, bool) { return Value("50%'").Then(Fetched(Fetch("f({})", Name(`a"\`)))).Word() },
		Fetch("f({})", Name("a b")).Word, Fetch("f({})", Name("a-b")).Word, Value("").Word,
	} {
		word, _ := w()
		words = append(words, word)
	}
	if got, want := Join(" ", words...).String(), `a:b::c '50%%'\''%[f("a\"\\")]' 'f("a b")' f(a-b) '%[var(txn.none)]'`; got != want {
		t.Errorf("the texts are %s, want %s", got, want)
	}
	if _, ok := Fetched(Fetch("f({})", Name("a]"))).Word(); ok {
		t.Error("a bracket ends the expression of a format")
	}
}
