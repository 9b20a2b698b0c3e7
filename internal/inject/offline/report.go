package offline

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// words are the text report's names for the outcomes, in the order of its summary.
var words = []struct {
	outcome Outcome
	word    string
}{
	{Injected, "injected"}, {Uninjected, "uninjected"}, {Skipped, "skipped"},
	{Unchanged, "unchanged"}, {Denied, "denied"}, {Failed, "failed"},
}

// String returns the row as lines of the text report, without a final newline.
func (r *Row) String() string {
	var b strings.Builder
	if r.Kind == "" {
		b.WriteString(terminal.Line(r.File))
	} else {
		b.WriteString(terminal.Line(r.Kind))
		for _, part := range []string{r.Namespace, r.Name} {
			if part != "" {
				b.WriteString("/" + terminal.Line(part))
			}
		}
	}
	for _, w := range words {
		if w.outcome == r.Outcome {
			b.WriteString(": " + w.word)
		}
	}
	switch r.Outcome {
	case Injected:
		if len(r.Added) > 0 {
			b.WriteString(" (" + terminal.Line(strings.Join(r.Added, ", ")) + ")")
		}
	case Uninjected:
	default:
		b.WriteString(": " + string(r.Reason))
		if r.Message != "" {
			b.WriteString(": " + terminal.Line(r.Message))
		}
	}
	if r.Kind != "" && (r.Outcome == Denied || r.Outcome == Failed) {
		b.WriteString(" (" + terminal.Line(r.File) + ")")
	}
	for _, w := range r.Warnings {
		b.WriteString("\n  warning: " + string(w.Code) + ": " + terminal.Line(w.Message))
	}
	return b.String()
}

// WriteText writes the report for people: one line per object, and a summary.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range r.Rows {
		b.WriteString(r.Rows[i].String() + "\n")
	}
	plural := "s"
	if len(r.Rows) == 1 {
		plural = ""
	}
	_, _ = terminal.Fprintf(&b, "%d object%s", len(r.Rows), plural)
	separator := ": "
	for _, word := range words {
		if n := r.Count(word.outcome); n > 0 {
			_, _ = terminal.Fprintf(&b, "%s%d %s", separator, n, word.word)
			separator = ", "
		}
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the report for programs: an object with the rows as "objects" and
// the count of each outcome as "summary".
func (r *Result) WriteJSON(w io.Writer) error {
	report := struct {
		Objects []Row           `json:"objects"`
		Summary map[Outcome]int `json:"summary"`
	}{Objects: r.Rows, Summary: make(map[Outcome]int)}
	if report.Objects == nil {
		report.Objects = []Row{}
	}
	for i := range r.Rows {
		report.Summary[r.Rows[i].Outcome]++
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
