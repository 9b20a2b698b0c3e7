package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/test/bench/page"
)

// writePage replaces the results of a page by those of the runs in files of JSON, and draws
// the plots into the folder images beside the page.
func writePage(page string, files []string) error {
	var runs []Run
	var results []Result
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var run Run
		if err := json.Unmarshal(text, &run); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		runs, results = append(runs, run), append(results, run.Results...)
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
	figures := figuresOf(results)
	if err := draw(figures, filepath.Join(filepath.Dir(page), "images")); err != nil {
		return err
	}
	var out strings.Builder
	for _, run := range runs {
		run.describe(&out)
	}
	writeBars(&out, results)
	writeTables(&out, results, figures)
	return os.WriteFile(page, []byte(before+pageBegin+out.String()+pageEnd+after), 0o644)
}

// describe says when and where the run was made.
func (r *Run) describe(out *strings.Builder) {
	fmt.Fprintf(out, "\nMeasured on %s, on %d cores of %s with %d GiB, where the load average of the minute before was %s, with\n\n    go run ./test/bench/scale %s\n",
		r.Began.Format("2 January 2006, 15:04 UTC"), r.Machine.Cores, r.Machine.Processor, (r.Machine.Memory+1<<29)>>30, r.Machine.Load, strings.Join(portable(r.Arguments), " "))
}

// portable returns the arguments without those that are paths of the machine.
func portable(arguments []string) []string {
	paths := []string{"json", "controller", "istiod", "istio-crds"}
	var out []string
	for i := 0; i < len(arguments); i++ {
		name, value, inOne := strings.Cut(strings.TrimLeft(arguments[i], "-"), "=")
		isFlag := strings.HasPrefix(arguments[i], "-")
		switch {
		case isFlag && slices.Contains(paths, name):
			if !inOne && i+1 < len(arguments) {
				i++
				value = arguments[i]
			}
			out = append(out, "-"+name, filepath.Base(value))
		default:
			out = append(out, arguments[i])
		}
	}
	return out
}

// titles of the modes.
var titles = map[string]string{"policy": "By policy", "permissive": "Permissive"}

// writeTables writes the plots and a table for each mode, with a row for each scenario, control
// plane and size.
func writeTables(out *strings.Builder, results []Result, figures []figure) {
	for _, mode := range []string{"policy", "permissive"} {
		rows := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Mode != mode })
		if len(rows) == 0 {
			continue
		}
		slices.SortStableFunc(rows, func(a, b Result) int {
			return slices.Index(scenarioNames(), a.Scenario) - slices.Index(scenarioNames(), b.Scenario)
		})
		fmt.Fprintf(out, "\n### %s\n\n", titles[mode])
		for _, c := range figures {
			if c.mode == mode {
				fmt.Fprintf(out, "![%s](images/%s)\n\n", c.text, c.File)
			}
		}
		out.WriteString("| what | control plane | clients | services | proxies | median | longest | until all | CPU | bytes to all proxies | sent again | resident | anonymous | a proxy |\n" +
			"|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		for _, r := range rows {
			fmt.Fprintf(out, "| %s | %s | %s | %d | %d |", r.Scenario, r.ControlPlane, r.Protocol, r.Services, r.Proxies)
			if r.Failed != "" {
				fmt.Fprintf(out, " did not end: %s | | | | | | | | |\n", strings.ReplaceAll(firstLine(r.Failed), "|", "/"))
				continue
			}
			resent, held := "", ""
			if r.Scenario == scenarioReconnect || r.Scenario == scenarioRestart {
				resent = fmt.Sprint(r.Resent)
			}
			if r.Scenario == scenarioMemory || r.Scenario == scenarioStall {
				held = kibibytes(r.Held)
			}
			fmt.Fprintf(out, " %s | %s | %s | %s | %s | %s | %d MiB | %d MiB | %s |\n", rounded(r.Median), rounded(r.Max), rounded(r.All), rounded(r.CPU),
				size(r.Bytes/int64(max(r.Rounds, 1))), resent, r.Memory.Resident>>20, r.Memory.Anonymous>>20, held)
		}
	}
	out.WriteString("\n")
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func kibibytes(n int64) string { return fmt.Sprintf("%d KiB", n>>10) }

func rounded(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
}

func size(n int64) string {
	switch {
	case n == 0:
		return ""
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
