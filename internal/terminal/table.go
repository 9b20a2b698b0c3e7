package terminal

import (
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes rows whose columns are aligned. Its zero value is not usable.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table that is written to w by Flush, with gap spaces between the columns.
func NewTable(w io.Writer, gap int) *Table {
	return &Table{tabwriter.NewWriter(w, 0, 8, gap, ' ', 0)}
}

// Row adds a row. Each cell is a value, and stays on one line.
func (t *Table) Row(cells ...string) {
	for i := range cells {
		cells[i] = Line(cells[i])
	}
	// What a tabwriter cannot write is the error of Flush.
	_, _ = io.WriteString(t.w, strings.Join(cells, "\t")+"\n")
}

// Header adds a row whose cells are separated by tabs.
func (t *Table) Header(text string) { t.Row(strings.Split(text, "\t")...) }

// Flush writes the rows.
func (t *Table) Flush() error { return t.w.Flush() }
