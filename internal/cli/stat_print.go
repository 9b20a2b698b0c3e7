package cli

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

// printRows writes the table of rows.
func printRows(w io.Writer, rows []traffic.Row, q *traffic.Query, wide bool) error {
	t := terminal.NewTable(w, 3)
	withNamespace := q.Namespace == "" && q.Kind != traffic.KindNamespace
	header := "NAME\tPODS\tRPS\tSUCCESS\tP50\tP95\tP99\tCONN/S\tRECEIVED/S\tSENT/S\tMTLS\tDENIED/S"
	if withNamespace {
		header = "NAMESPACE\t" + header
	}
	if wide {
		header += "\tRETRIES/S\tCLASS\tCODES"
	}
	t.Header(header)
	for i := range rows {
		row := &rows[i]
		var cells []string
		if withNamespace {
			cells = append(cells, row.Namespace)
		}
		cells = append(cells, rowName(row, q), rowPods(row),
			rate(row.PerSecond.Requests), share(row.Success), latency(row.P50), latency(row.P95), latency(row.P99),
			rate(row.PerSecond.Connections), size(row.PerSecond.Received), size(row.PerSecond.Sent), share(row.MutualTLS), rate(sum(row.PerSecond.Denied)))
		if wide {
			cells = append(cells, rate(row.PerSecond.Retries), orDash(strings.Join(row.Classes, ",")), rates(row.PerSecond.Codes))
		}
		t.Row(cells...)
	}
	return t.Flush()
}

// rowName returns the name in a table, with the type if there are several.
func rowName(row *traffic.Row, q *traffic.Query) string {
	if q.Kind == traffic.KindAny {
		return row.Kind + "/" + row.Name
	}
	return row.Name
}

func rowPods(row *traffic.Row) string {
	if row.Kind == traffic.KindService {
		return "-"
	}
	return fmt.Sprintf("%d/%d", row.Read, row.Pods)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// rate formats a number per second, so that a small one does not look like none.
func rate(n float64) string {
	if n > 0 && n < 0.05 {
		return "<0.1"
	}
	return fmt.Sprintf("%.1f", n)
}

func sum(values map[string]float64) float64 {
	all := 0.0
	for _, key := range slices.Sorted(maps.Keys(values)) {
		all += values[key]
	}
	return all
}

// rates formats numbers per second by name, in the names' order.
func rates(values map[string]float64) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		list = append(list, key+"="+rate(values[key]))
	}
	return orDash(strings.Join(list, ","))
}

// share formats a share, rounded down so that 100% means all.
func share(value *float64) string {
	switch {
	case value == nil:
		return "-"
	case *value >= 1:
		return "100%"
	}
	return fmt.Sprintf("%.1f%%", math.Floor(*value*1000)/10)
}

// latency formats seconds.
func latency(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	switch ms := *seconds * 1000; {
	case ms < 10:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0fms", ms)
	}
	return fmt.Sprintf("%.2fs", *seconds)
}

// size formats bytes.
func size(bytes float64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if bytes < 1024 {
			if unit == "B" {
				return fmt.Sprintf("%.0f%s", bytes, unit)
			}
			return fmt.Sprintf("%.1f%s", bytes, unit)
		}
		bytes /= 1024
	}
	return fmt.Sprintf("%.1fGiB", bytes)
}
