package haproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// hostile are texts with a meaning in HAProxy's configuration, its formats, expressions or
// patterns, and names that Gateway API allows for headers.
var hostile = []string{
	"a", "a b", `it's "a" $HOME # \ %[src] %`, "'", `'\''`, "a\nbind :1", "{ always_true }", "/a'; http-request allow", "-f /etc/passwd", "--", "é", "\x00", "${HOME}", "\u0085", "\u2028",
	"(a+)+b", "[[.a.]]", `\Q*\E`, "a{1000}", "(?i)k", `\pL`, "a|b)", strings.Repeat("ab", 3000), "*.example.com", "x)y", "a,b", "%", "127.0.0.1", "localhost",
	"x#", "x!y", "#", "!#$%&'*+-.^_`|~", `'\r\nx-pad a\r\n\r\nDELETE\ /smuggled\ HTTP/1.1\r\nhost:\ forged\r\nx-end:\ 1 #'`, "%[lua.x]", `"`, `\`, "]", "a]b[", "$top", "a[]", strings.Repeat("x-header, ", 1700), "",
}

// seeds is how many Views there are.
const seeds = 30

// FuzzTranslate checks that a text of a user in any field of a View changes nothing but words
// of the configuration, and that a real HAProxy accepts the result.
func FuzzTranslate(f *testing.F) {
	for i, text := range hostile {
		f.Add(text, uint64(i))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		seed %= seeds
		view := drivertest.RandomView(text, seed)
		files, err := Driver{}.Translate(view)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range linesOf(files) {
			if !harmless()[line.shape] {
				t.Errorf("the text %q became a line of its own: %s\n%s", text, line.text, line.shape)
			}
		}
		if err := check(t, view); err != nil {
			t.Fatal(err)
		}
	})
}

// harmless returns the shapes of the lines that texts without a special meaning cause, in so many
// Views that they have all lines that a configuration can have.
var harmless = sync.OnceValue(func() map[string]bool {
	shapes := make(map[string]bool)
	for seed := range uint64(10 * seeds) {
		for _, text := range []string{"harmless", "no name"} {
			files, err := Driver{}.Translate(drivertest.RandomView(text, seed))
			if err != nil {
				panic(err)
			}
			for _, line := range linesOf(files) {
				shapes[line.shape] = true
			}
		}
	}
	return shapes
})

// configLine is a line of the configuration. Its shape is what it does, without the texts of a
// user and what is counted or hashed.
type configLine struct{ text, shape string }

var counted = regexp.MustCompile(`\b[0-9a-f]{8}\b|\d+`)

// linesOf splits the configuration as HAProxy does.
func linesOf(files []driver.File) []configLine {
	var lines []configLine
	for text := range strings.Lines(string(files[0].Content)) {
		if words := wordsOf(strings.TrimSuffix(text, "\n")); len(words) > 0 {
			for _, shape := range shapesOf(words) {
				lines = append(lines, configLine{text, shape})
			}
		}
	}
	for _, file := range files[2:5] {
		for text := range strings.Lines(string(file.Content)) {
			lines = append(lines, configLine{text, fmt.Sprint(file.Name, len(strings.Fields(text)))})
		}
	}
	return lines
}

// wordsOf returns the words of a line. A word in quotes, which may contain a user's text, is
// only its quotes.
func wordsOf(line string) []string {
	var words []string
	var word strings.Builder
	var quote byte
	inWord := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c == '\'', quote == '"' && c == '"':
			quote = 0
		case quote == '\'' || quote == '"' && c != '\\' && c != '$':
			// A text.
		case c == '\\' && i+1 < len(line):
			if i++; line[i] != '\'' {
				word.WriteString(line[i-1 : i+1])
			}
		case quote == 0 && (c == '\'' || c == '"'):
			if quote, inWord = c, true; !strings.HasSuffix(word.String(), "''") {
				word.WriteString("''")
			}
		case c == '#':
			i = len(line)
		case c == ' ' || c == '\t':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// names are words that follow these, and are names of parts.
var names = map[string]bool{"backend": true, "use_backend": true, "server": true, "acl": true, "listen": true, "x-outrigger-to": true}

// shapesOf returns what a line does, and each of its conditions.
func shapesOf(words []string) []string {
	for i, word := range words {
		// Names are unique, and contain only safe characters.
		if i > 0 && names[words[i-1]] && section.MatchString(word) || hashed.MatchString(word) {
			words[i] = "NAME"
		} else if i == 2 && words[0] == "server" && strings.Contains(word, ":") && section.MatchString(word) {
			words[i] = "ADDRESS"
		} else {
			// Names of headers that need no quotes are like others.
			word = fetches.ReplaceAllString(inner.ReplaceAllString(word, "$1(NAME)"), "''")
			words[i] = counted.ReplaceAllString(word, "N")
		}
	}
	// Values that a condition is compared with are one kind of word, however many there are.
	// So are values that are names, which are not quoted.
	if i := slices.Index(words, "--"); i > 0 && words[0] == "acl" {
		others := slices.DeleteFunc(words[i+1:], func(word string) bool { return word == "''" || section.MatchString(word) })
		words = append(words[:i+1], append([]string{"V"}, others...)...)
	}
	rule, condition, _ := strings.Cut(values.ReplaceAllString(strings.Join(words, " "), "-- V"), " if ")
	shapes := []string{rule}
	for _, one := range atoms.FindAllString(condition, -1) {
		if section.MatchString(one) && one != "or" && one != "||" {
			one = "NAME"
		}
		shapes = append(shapes, "if "+one)
	}
	return shapes
}

var (
	section = regexp.MustCompile(`^!?[A-Za-z0-9_.:-]+$`)
	hashed  = regexp.MustCompile(`^[A-Za-z0-9_.:-]*_[0-9a-f]{16}(:try)?(:h2)?$`)
	inner   = regexp.MustCompile(`\b(str|table)\([A-Za-z0-9_.:/-]*\)`)
	fetches = regexp.MustCompile(`^(req\.fhdr|req\.fhdr_cnt|req\.cook|url_param)\([A-Za-z0-9_.-]*\)(,url_dec\(1\))?$`)
	values  = regexp.MustCompile(`-- [^ ]+( \'\')*`)
	atoms   = regexp.MustCompile(`!?\{ [^{}]* \}|\S+`)
)
