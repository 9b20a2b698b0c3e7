package telemetry_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestPage compares the tables of docs/observe.md with the package.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	var metrics, reasons []string
	for _, m := range telemetry.Metrics() {
		labels := strings.ReplaceAll("`"+strings.Join(m.Labels, "`, `")+"`", "``", "")
		metrics = append(metrics, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.Name, m.Type, m.Help, labels))
	}
	for _, r := range telemetry.Reasons() {
		reasons = append(reasons, fmt.Sprintf("| `%s` | %s |\n", r.Name, r.Meaning))
	}
	for _, table := range [][]string{metrics, reasons} {
		if !strings.Contains(page, strings.Join(table, "")) {
			t.Errorf("docs/observe.md has no table with these rows:\n%s", strings.Join(table, ""))
		}
	}
	for _, label := range telemetry.Labels() {
		if !strings.Contains(page, "`"+label+"`") {
			t.Errorf("docs/observe.md does not mention the label %s", label)
		}
	}
	if n := strings.Count(page, "\n| `outrigger_"); n != len(telemetry.Metrics()) {
		t.Errorf("docs/observe.md has %d rows of metrics, want %d", n, len(telemetry.Metrics()))
	}
}
