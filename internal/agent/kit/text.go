package kit

import (
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
)

// MaxLine is how many bytes of a program's output are in logs and reports.
const MaxLine = 1 << 10

// OneLine makes a program's text fit for logs and reports: printable, on one line, and
// at most MaxLine bytes (plus an ellipsis) long.
func OneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(text) > MaxLine {
		text = strings.ToValidUTF8(text[:MaxLine], "") + "..."
	}
	return text
}

// CodeName returns the name of a gRPC code in metrics, in snake case.
func CodeName(code codes.Code) string {
	var b strings.Builder
	for i, r := range code.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
