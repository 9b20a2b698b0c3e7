package source

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// maxRegex limits an expression in bytes, and maxRegexProgram the steps of its
	// compiled RE2 program. Proxies can be configured to accept programs of that size.
	maxRegex        = 4096
	maxRegexProgram = 10000
	// maxRegexObject limits the steps of all expressions of one object: each proxy that it
	// concerns compiles all of them.
	maxRegexObject = 200_000
)

// parseMatch parses an expression that must match a whole string. Expressions without
// special characters become exact matches.
func (n *notes) parseMatch(expression string) (mesh.StringMatch, error) {
	if expression != "" && len(expression) <= maxRegex && !hasControl(expression) && regexp.QuoteMeta(expression) == expression {
		return mesh.StringMatch{Exact: expression}, nil
	}
	if err := n.checkRegex(expression); err != nil {
		return mesh.StringMatch{}, err
	}
	return mesh.StringMatch{Regex: expression}, nil
}

// checkRegex is checkRegex, and bounds the sum over the object's expressions.
func (n *notes) checkRegex(expression string) error {
	steps, err := checkRegex(expression)
	if err != nil {
		return err
	}
	if n.steps += steps; n.steps > maxRegexObject {
		return fmt.Errorf("with it, the object's expressions take more than %d steps; use fewer or shorter ones, or another object for some", maxRegexObject)
	}
	return nil
}

// hasControl reports whether a value has characters that neither a header nor a path can have.
func hasControl(value string) bool {
	return strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}

// checkRegex returns an error unless every proxy accepts the expression with the same
// meaning. Go's syntax is RE2's except for what is rejected here. The empty expression is
// rejected too, since some proxies can't express it. checkRegex also returns the steps of the
// expression's program.
func checkRegex(expression string) (int, error) {
	switch {
	case expression == "":
		return 0, errors.New("an empty expression matches the empty string only; write .* for anything")
	case len(expression) > maxRegex:
		return 0, fmt.Errorf("the expression is longer than %d bytes; split it", maxRegex)
	case strings.ContainsFunc(expression, func(c rune) bool { return c > unicode.MaxASCII || c < ' ' }):
		// Proxies match bytes, and Go matches runes.
		return 0, errors.New("only ASCII without control characters is supported; write other bytes percent-encoded in a path, or use . for each")
	}
	steps, err := mesh.RegexSteps(expression)
	if err != nil {
		return 0, fmt.Errorf("%w; use RE2 syntax", err)
	}
	if err := checkEscapes(expression); err != nil {
		return 0, err
	}
	if steps > maxRegexProgram {
		return 0, fmt.Errorf("the expression takes %d steps, more than %d; use fewer repetitions", steps, maxRegexProgram)
	}
	return steps, nil
}

// checkEscapes rejects code points above one byte, and class names unknown to RE2.
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
