package explain

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes the explanation as text: the verdict, then the steps. Steps that end a
// path are marked with a star.
func (e *Explanation) WriteText(w io.Writer) error {
	var b strings.Builder
	if e.Request != "" {
		fmt.Fprintf(&b, "%s, ", e.Request)
	}
	fmt.Fprintf(&b, "%s to %s: %s\n", e.From, e.To, e.Verdict)
	for _, step := range e.Steps {
		mark := " "
		if step.Verdict != "" {
			mark = "*"
		}
		reason := ""
		if step.Reason != "" {
			reason = " (reason: " + step.Reason + ")"
		}
		fmt.Fprintf(&b, "  %s %-12s %s\n", mark, step.Topic, step.Text+reason)
		for _, detail := range step.Details {
			fmt.Fprintf(&b, "  %s %-12s - %s\n", " ", "", detail)
		}
	}
	for _, problem := range e.Problems {
		fmt.Fprintf(&b, "  ! %s\n", problem)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
