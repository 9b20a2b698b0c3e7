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
)

// wholeMatch parses an expression that must match a whole string. Expressions without
// special characters become exact matches.
func wholeMatch(expression string) (mesh.StringMatch, error) {
	if expression != "" && len(expression) <= maxRegex && regexp.QuoteMeta(expression) == expression {
		return mesh.StringMatch{Exact: expression}, nil
	}
	if err := checkRegex(expression); err != nil {
		return mesh.StringMatch{}, err
	}
	return mesh.StringMatch{Regex: expression}, nil
}

// checkRegex returns an error unless every proxy accepts the expression with the same
// meaning. Go's syntax is RE2's except for what is rejected here. The empty expression is
// rejected too, since some proxies can't express it.
func checkRegex(expression string) error {
	switch {
	case expression == "":
		return errors.New("an empty expression matches the empty string only; write .* for anything")
	case len(expression) > maxRegex:
		return fmt.Errorf("the expression is longer than %d bytes; split it", maxRegex)
	case strings.ContainsFunc(expression, func(c rune) bool { return c > unicode.MaxASCII || c < ' ' }):
		// Proxies match bytes, and Go matches runes.
		return errors.New("only ASCII without control characters is supported; write other bytes percent-encoded in a path, or use . for each")
	}
	steps, err := mesh.RegexSteps(expression)
	if err != nil {
		return fmt.Errorf("%w; use RE2 syntax", err)
	}
	if err := checkEscapes(expression); err != nil {
		return err
	}
	if steps > maxRegexProgram {
		return fmt.Errorf("the expression takes %d steps, more than %d; use fewer repetitions", steps, maxRegexProgram)
	}
	return nil
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
