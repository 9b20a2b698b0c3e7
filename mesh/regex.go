package mesh

import (
	"regexp/syntax"
	"unicode"
)

// RegexSteps returns the number of steps of the program that RE2 makes of a regular expression
// for text of bytes, up to a factor of three. It returns an error if the expression is invalid.
func RegexSteps(expression string) (int, error) {
	// Parsing checks the expression alone: "a)(b" is valid only inside parentheses.
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return 0, err
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return 0, err
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
	return steps, nil
}
