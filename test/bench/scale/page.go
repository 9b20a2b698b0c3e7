package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/test/bench/page"
)

// writePage replaces the tables of a page by those of the results in files of JSON.
func writePage(to string, files []string) error {
	var results []Result
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var some []Result
		if err := json.Unmarshal(text, &some); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		results = append(results, some...)
	}
	return page.Write(to, tables(results))
}

// tables returns a table for each mode, with a row for each scenario and size.
func tables(results []Result) string {
	var out strings.Builder
	for _, mode := range []string{"policy", "permissive"} {
		rows := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Mode != mode })
		if len(rows) == 0 {
			continue
		}
		slices.SortStableFunc(rows, func(a, b Result) int {
			return slices.Index(scenarioNames(), a.Scenario) - slices.Index(scenarioNames(), b.Scenario)
		})
		fmt.Fprintf(&out, "\n### %s\n\n", map[string]string{"policy": "By policy", "permissive": "Permissive"}[mode])
		out.WriteString("| what | by | protocol | services and proxies | median | longest | CPU | bytes to all proxies | resident | anonymous | heap |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
		for _, r := range rows {
			fmt.Fprintf(&out, "| %s | %s | %s | %d | %s | %s | %s | %s | %d MiB | %d MiB | %d MiB |\n", r.Scenario, r.ControlPlane, r.Protocol, r.Services,
				page.Duration(r.Median), page.Duration(r.Max), page.Duration(r.CPU), page.Size(r.Bytes/int64(max(r.Rounds, 1))), r.Memory.Resident>>20, r.Memory.Anonymous>>20, r.Memory.Heap>>20)
		}
	}
	out.WriteString("\n")
	return out.String()
}
