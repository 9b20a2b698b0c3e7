package pipy

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// expressions are some that users write, and some that only test the automaton.
var expressions = []string{
	"", ".*", "/books/.*", "/books", "/books/[0-9]+", "/api/v[12]/(users|groups)/[^/]+", "/a(/.*)?", "(?i)/Books/[a-z]+", "/x|/y|/z.*",
	".*Firefox.*", "^/anchored$", "/a$", "$^", "^", "a**", "(a|b)*abb", "(a*)*b", "(a|aa)+", "[^a-z]*", `\d{3}-\d{4}`, `\bword\b`, `\Bx\B`, `.*\bid=[0-9]+\b.*`,
	`(?s).*`, `(?m)^a$`, `(?m)^a$\n^b$`, `a.b`, `[[:alpha:]]+`, `\pL+`, `\p{Greek}*`, `[^\x00-\x7F]+`, "é+", "[à-ü]*", "(?i)straße", "(?i)k", `\x{10000}`, `[😀-😎]`, "a{2,5}", "(ab){3}",
	"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", `(?U)a+b*`, `(a)(b)?(c)?`, `a|b|`, `(|a)b`, `\Qa.b\E`, `\z`, `\A/x`, `[\w.-]+@[\w.-]+`, ".{0,20}x", "[^/]*/[^/]*",
}

// texts returns strings that may match: made of parts of the expression and of characters
// that are easily confused.
func texts(random *rand.Rand, expression string, n int) []string {
	alphabet := append([]rune(expression), []rune("/ab01xZ _-.\n\té€😀KkſS")...)
	out := []string{"", "/", "\n", "a", expression}
	for range n {
		var b strings.Builder
		for range random.IntN(12) {
			if random.IntN(4) == 0 {
				b.WriteString([]string{"/books/", "ab", "word", "id=1", "Firefox", "aaa", "straße", "STRASSE"}[random.IntN(8)])
			}
			b.WriteRune(alphabet[random.IntN(len(alphabet))])
		}
		out = append(out, b.String())
	}
	if parsed, err := syntax.Parse(expression, syntax.Perl); err == nil {
		for range n {
			if text := example(random, parsed, 4); utf8.ValidString(text) {
				out = append(out, text)
			}
		}
	}
	return out
}

// example returns a string that the expression probably matches.
func example(random *rand.Rand, e *syntax.Regexp, most int) string {
	var b strings.Builder
	switch e.Op {
	case syntax.OpLiteral:
		return string(e.Rune)
	case syntax.OpCharClass:
		if len(e.Rune) > 0 {
			i := 2 * random.IntN(len(e.Rune)/2)
			b.WriteRune(e.Rune[i] + random.Int32N(e.Rune[i+1]-e.Rune[i]+1))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteRune('a' + random.Int32N(26))
	case syntax.OpCapture:
		return example(random, e.Sub[0], most)
	case syntax.OpConcat:
		for _, sub := range e.Sub {
			b.WriteString(example(random, sub, most))
		}
	case syntax.OpAlternate:
		return example(random, e.Sub[random.IntN(len(e.Sub))], most)
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		low, high := 0, most
		switch e.Op {
		case syntax.OpPlus:
			low = 1
		case syntax.OpQuest:
			high = 1
		case syntax.OpRepeat:
			low, high = e.Min, max(e.Max, e.Min+most)
		}
		for range low + random.IntN(high-low+1) {
			b.WriteString(example(random, e.Sub[0], most))
		}
	}
	return b.String()
}

const walk = `
import { matches } from './match.js'
var input = JSON.parse(os.readFile(os.env.TEST_DIR + '/input.json').toString())
var output = input.map(c => c.Texts.map(text => matches({ headers: [{ name: 'x', ...c.Match }] }, { headers: { x: text } }) ? 1 : 0).join(''))
`

// TestAutomata compares the scripts' automata with RE2 over many strings.
func TestAutomata(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	type group struct {
		Match matchDocument
		Texts []string
	}
	all := expressions
	for range 300 {
		all = append(all, randomExpression(random, 3))
	}
	var input []group
	var kept []string
	for _, expression := range all {
		if _, err := regexp.Compile(expression); err != nil {
			continue
		}
		kept = append(kept, expression)
		input = append(input, group{newCompiler().regexMatch(expression), texts(random, expression, 40)})
	}
	var output []string
	runScript(t, walk, input, &output)
	compared, matched := 0, 0
	for i, expression := range kept {
		if input[i].Match.Never {
			t.Errorf("%q has no automaton", expression)
			continue
		}
		for j, text := range input[i].Texts {
			// An empty expression means no match.
			want := mesh.StringMatch{Regex: expression, Present: true}.Matches(text) && (expression != "" || text == "")
			if got := output[i][j] == '1'; got != want {
				t.Errorf("%q matches %q: %v, RE2 says %v", expression, text, got, want)
			}
			compared++
			if want {
				matched++
			}
		}
	}
	t.Logf("%d expressions, %d strings, of which %d match", len(kept), compared, matched)
}

// randomExpression returns a text that resembles an expression.
func randomExpression(random *rand.Rand, depth int) string {
	if depth == 0 {
		return []string{"a", "b", "/", ".", `\d`, `\w`, "[a-c]", "[^a]", "x", `\b`, "^", "$", "é", `\s`, "[[:upper:]]"}[random.IntN(15)]
	}
	switch sub := func() string { return randomExpression(random, depth-1) }; random.IntN(7) {
	case 0:
		return sub() + sub()
	case 1:
		return sub() + sub() + sub()
	case 2:
		return "(" + sub() + "|" + sub() + ")"
	case 3:
		return "(" + sub() + ")*"
	case 4:
		return "(?:" + sub() + ")?"
	case 5:
		return "(?i:" + sub() + ")+"
	default:
		return "(?:" + sub() + "){1,3}"
	}
}

// TestAutomataAreBounded uses expressions for which other matchers take very long.
func TestAutomataAreBounded(t *testing.T) {
	for _, expression := range []string{".*a.{20}", "(.*a){8}.{16}", `[\pL\pN]{900}`, "(", "a)(b", `(?:(?:a{1,100}){1,10})`, strings.Repeat("(a|b|c|d)?", 200), strings.Repeat("(x?y?z?w?)", 1000), "(?:.*[a-f]x){200}", `\pL.*\p{Greek}.{14}`} {
		started := time.Now()
		a, _, err := newAutomaton(expression)
		if err == nil && len(a.Next) > maxEntries+a.Width {
			t.Errorf("%.60q has a table of %d entries", expression, len(a.Next))
		}
		if took := time.Since(started); took > 10*time.Second && !race.Enabled {
			t.Errorf("%.60q takes %s", expression, took)
		}
		if match := newCompiler().regexMatch(expression); (err != nil) != match.Never {
			t.Errorf("%.60q: %v and %+v", expression, err, match)
		}
		t.Logf("%.60q is too large: %v, after %s", expression, errors.Is(err, errTooLarge), time.Since(started))
	}
	type group struct {
		Match matchDocument
		Texts []string
	}
	text := strings.Repeat("a", 100_000)
	var output []string
	started := time.Now()
	runScript(t, walk, []group{{newCompiler().regexMatch("(a*)*b"), []string{text, text + "b"}}, {newCompiler().regexMatch("(a|aa)+$"), []string{text, text + "c"}}}, &output)
	if len(output) != 2 || output[0] != "01" || output[1] != "10" {
		t.Errorf("long strings give %v", output)
	}
	t.Logf("400,000 characters took %s", time.Since(started))
}
