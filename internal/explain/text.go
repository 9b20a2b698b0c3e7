package explain

import (
	"io"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// WriteText writes the explanation as text: the verdict, then the steps. Steps that end a
// path are marked with a star.
func (e *Explanation) WriteText(w io.Writer) error {
	var b strings.Builder
	if e.Request != "" {
		terminal.Fprintf(&b, "%s, ", e.Request)
	}
	terminal.Fprintf(&b, "%s to %s: %s\n", e.From, e.To, e.Verdict)
	for _, step := range e.Steps {
		mark := " "
		if step.Verdict != "" {
			mark = "*"
		}
		reason := ""
		if step.Reason != "" {
			reason = " (reason: " + step.Reason + ")"
		}
		terminal.Fprintf(&b, "  %s %-12s %s\n", mark, step.Topic, step.Text+reason)
		for _, detail := range step.Details {
			terminal.Fprintf(&b, "  %s %-12s - %s\n", " ", "", detail)
		}
	}
	for _, problem := range e.Problems {
		terminal.Fprintf(&b, "  ! %s\n", problem)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
