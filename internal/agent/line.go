package agent

import (
	"strings"
	"unicode"
)

// maxLine is how much is told of what a proxy says.
const maxLine = 1 << 10

// inOneLine returns a text of the proxy's as one line of what can be printed, and no more
// of it than maxLine bytes: it ends in logs and in front of people.
func inOneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + "..."
	}
	return text
}
