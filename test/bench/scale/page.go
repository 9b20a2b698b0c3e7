package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/test/bench/page"
)

// writePage replaces the results of a page by those of the runs in files of JSON, and draws
// the plots into the folder images beside the page. What several runs have measured is that of
// the first.
func writePage(to string, files []string) error {
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
		runs, results = append(runs, run), append(results, newIn(run.Results, results)...)
	}
	figures := figuresOf(results)
	if err := draw(figures, filepath.Join(filepath.Dir(to), "images")); err != nil {
		return err
	}
	var out strings.Builder
	for _, run := range runs {
		run.describe(&out)
	}
	writeBars(&out, results)
	writeTables(&out, results, figures)
	return page.Write(to, out.String())
}

// newIn returns the results of a run that no earlier run has.
func newIn(run, earlier []Result) []Result {
	return slices.DeleteFunc(slices.Clone(run), func(r Result) bool {
		return slices.ContainsFunc(earlier, func(e Result) bool {
			return e.by() == r.by() && e.Mode == r.Mode && e.Scenario == r.Scenario && e.Services == r.Services && e.Proxies == r.Proxies
		})
	})
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
var titles = map[string]string{modePolicy: "By policy", modePermissive: "Permissive", modeOnDemand: "On demand"}

// table has a row for each scenario and size, and a column for each control plane and kind of
// clients.
type table struct {
	heading   string
	scenarios []string
	cell      func(r *Result) string
}

var pageTables = []table{
	{"Changes: the median of the times until the last proxy has acknowledged it, the longest of them, CPU, bytes to all proxies", append(slices.Clone(changes), scenarioStall), func(r *Result) string {
		return join(page.Duration(r.Median), page.Duration(r.Max), page.Duration(r.CPU), page.Size(r.Bytes/int64(max(r.Rounds, 1))))
	}},
	{"Connections: the median of the proxies' waits, the longest of them, from the start until all are served, CPU, bytes to all proxies, resources sent again", []string{scenarioConnect, scenarioReconnect, scenarioRestart}, func(r *Result) string {
		return join(page.Duration(r.Median), page.Duration(r.Max), page.Duration(r.All), page.Duration(r.CPU), page.Size(r.Bytes), fmt.Sprint(r.Resent))
	}},
	{"Certificates for all pods: the median of the pods' waits, the longest of them, CPU of the controller and of the API server for each certificate, attempts that failed and were repeated", []string{scenarioCertificates, scenarioAtOnce}, func(r *Result) string {
		c := r.Certificates
		return join(page.Duration(r.Median), page.Duration(r.Max), page.Duration(r.CPU/time.Duration(c.Pods)), page.Duration(c.APIServer/time.Duration(c.Pods)), fmt.Sprint(c.failedAttempts()))
	}},
	{"Memory of the process: anonymous, resident; for `memory` and `stall` also that of one proxy", []string{scenarioIdle, scenarioConnect, scenarioMemory, scenarioRoll, scenarioStall, scenarioAtOnce}, func(r *Result) string {
		cells := []string{mebibytes(r.Memory.Anonymous), mebibytes(r.Memory.Resident)}
		if r.Scenario == scenarioMemory || r.Scenario == scenarioStall {
			cells = append(cells, kibibytes(r.Held))
		}
		return join(cells...)
	}},
}

func join(cells ...string) string { return strings.Join(cells, ", ") }

// writeTables writes the figures and the tables of each mode.
func writeTables(out *strings.Builder, results []Result, figures []figure) {
	for _, mode := range modes {
		some := slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Mode != mode })
		if len(some) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n### %s\n\n", titles[mode])
		for _, f := range figures {
			if f.mode == mode {
				fmt.Fprintf(out, "![%s](images/%s)\n\n", f.text, f.File)
			}
		}
		for _, t := range pageTables {
			t.write(out, some)
		}
	}
}

func (t *table) write(out *strings.Builder, results []Result) {
	columns := clientsIn(results)
	type row struct {
		scenario          string
		services, proxies int
	}
	var rows []row
	for _, scenario := range t.scenarios {
		from := len(rows)
		for _, r := range results {
			next := row{scenario, r.Services, r.Proxies}
			if r.Scenario == scenario && !slices.Contains(rows, next) {
				rows = append(rows, next)
			}
		}
		slices.SortFunc(rows[from:], func(a, b row) int { return a.services - b.services })
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(out, "%s:\n\n| what | services | proxies |", t.heading)
	for _, column := range columns {
		fmt.Fprintf(out, " %s |", column)
	}
	out.WriteString("\n|---|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(out, "| %s | %d | %d |", row.scenario, row.services, row.proxies)
		for _, column := range columns {
			i := slices.IndexFunc(results, func(r Result) bool {
				plane, _, _ := strings.Cut(column, ",")
				isOf := r.by() == column || r.Scenario == scenarioIdle && r.ControlPlane == plane
				return isOf && r.Scenario == row.scenario && r.Services == row.services && r.Proxies == row.proxies
			})
			switch {
			case i < 0:
				out.WriteString(" |")
			case results[i].Failed != "":
				fmt.Fprintf(out, " did not end: %s |", strings.ReplaceAll(firstLine(results[i].Failed), "|", "/"))
			default:
				fmt.Fprintf(out, " %s |", t.cell(&results[i]))
			}
		}
		out.WriteString("\n")
	}
	out.WriteString("\n")
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// kibibytes returns a number of bytes. A difference of two measurements may be less than zero.
func kibibytes(n int64) string {
	if n < 1<<10 {
		return "under 1 KiB"
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
