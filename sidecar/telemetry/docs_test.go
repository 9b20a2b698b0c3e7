package telemetry_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestPage compares the tables of docs/metrics.md with the package.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	var rows []string
	for _, m := range telemetry.Metrics() {
		labels := strings.ReplaceAll("`"+strings.Join(m.Labels, "`, `")+"`", "``", "")
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.Name, m.Type, m.Help, labels))
	}
	for _, r := range telemetry.Reasons() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", r.Name, r.Meaning))
	}
	at := 0
	for _, row := range rows {
		next := strings.Index(page[at:], row)
		if next < 0 {
			t.Fatalf("docs/metrics.md has no row %safter the rows before it", row)
		}
		at += next
	}
	for _, label := range telemetry.Labels() {
		if !strings.Contains(page, "`"+label+"`") {
			t.Errorf("docs/metrics.md does not mention the label %s", label)
		}
	}
	if n := strings.Count(page, "\n| `outrigger_"); n != len(telemetry.Metrics()) {
		t.Errorf("docs/metrics.md has %d rows of metrics, want %d", n, len(telemetry.Metrics()))
	}
}
