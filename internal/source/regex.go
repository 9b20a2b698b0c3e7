package source

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// maxRegex bounds an expression in bytes, and maxRegexProgram the steps of the
	// program that RE2 makes of it. A proxy may be told to take programs of that size.
	maxRegex        = 4096
	maxRegexProgram = 10000
)

// wholeMatch reads an expression that the whole of a string must match. Where it is
// no more than a string, so is the match.
func wholeMatch(expression string) (mesh.StringMatch, error) {
	if expression != "" && len(expression) <= maxRegex && regexp.QuoteMeta(expression) == expression {
		return mesh.StringMatch{Exact: expression}, nil
	}
	if err := checkRegex(expression); err != nil {
		return mesh.StringMatch{}, err
	}
	return mesh.StringMatch{Regex: expression}, nil
}

// checkRegex returns an error for what is not an RE2 expression that every proxy
// takes and means the same by. Go's expressions are RE2's but for what is refused
// here. An empty one is refused too: some proxies have no word for it.
func checkRegex(expression string) error {
	switch {
	case expression == "":
		return errors.New("an empty expression matches the empty string only; write .* for anything")
	case len(expression) > maxRegex:
		return fmt.Errorf("the expression is longer than %d bytes; split it", maxRegex)
	case strings.ContainsFunc(expression, func(c rune) bool { return c > unicode.MaxASCII || c < ' ' }):
		// Proxies match bytes, and Go matches runes.
		return errors.New("an expression is ASCII without control characters; write other bytes percent-encoded in a path, or as . each")
	}
	// By itself, since "a)(b" is an expression between the parentheses that make it
	// match the whole.
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return fmt.Errorf("%w; the syntax is RE2's", err)
	}
	if err := checkEscapes(expression); err != nil {
		return err
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return err
	}
	steps := 0
	for i := range program.Inst {
		steps++
		for j := 0; j < len(program.Inst[i].Rune); j += 2 {
			if program.Inst[i].Rune[j] <= unicode.MaxLatin1 {
				steps++
			}
		}
	}
	if steps > maxRegexProgram {
		return fmt.Errorf("the expression takes %d steps, more than %d; repeat less in it", steps, maxRegexProgram)
	}
	return nil
}

// checkEscapes refuses runes that are no byte, and names of classes that RE2 does not
// know.
func checkEscapes(expression string) error {
	for i := 0; i+1 < len(expression); i++ {
		if expression[i] != '\\' {
			continue
		}
		i++
		name, _, braced := strings.Cut(expression[i+1:], "}")
		if !braced || !strings.HasPrefix(name, "{") {
			continue
		}
		name = name[1:]
		switch expression[i] {
		case 'x':
			if value, err := strconv.ParseUint(name, 16, 32); err != nil || value > unicode.MaxLatin1 {
				return fmt.Errorf(`\x{%s} is more than one byte; use \x{ff} at most`, name)
			}
		case 'p', 'P':
			name = strings.TrimPrefix(name, "^")
			_, script := unicode.Scripts[name]
			_, category := unicode.Categories[name]
			if !script && name != "Any" && (!category || len(name) > 2 || name == "LC" || name == "Cn") {
				return fmt.Errorf(`\p{%s} is not a class of RE2; use a category such as \p{Lu} or a script such as \p{Greek}`, name)
			}
		}
	}
	return nil
}
