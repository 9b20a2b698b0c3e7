package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	pageBegin = "<!-- begin of the results -->\n"
	pageEnd   = "<!-- end of the results -->\n"
)

// writePage replaces the tables of a page by those of the results in files of JSON.
func writePage(page string, files []string) error {
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
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), pageBegin)
	_, after, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q", page, strings.TrimSpace(pageBegin), strings.TrimSpace(pageEnd))
	}
	return os.WriteFile(page, []byte(before+pageBegin+tables(results)+pageEnd+after), 0o644)
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
				rounded(r.Median), rounded(r.Max), rounded(r.CPU), size(r.Bytes/int64(max(r.Rounds, 1))), r.Memory.Resident>>20, r.Memory.Anonymous>>20, r.Memory.Heap>>20)
		}
	}
	out.WriteString("\n")
	return out.String()
}

func rounded(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

func size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
