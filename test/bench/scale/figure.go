package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// figure is a plot of a mode, in the form that the program in test/bench/plot reads.
type figure struct {
	mode, text string
	File, X, Y string
	Panels     []panel
}

type panel struct {
	Title  string
	Series []series
}

type series struct {
	Name   string
	Points [][2]float64
}

// quantity is what a figure shows.
type quantity struct {
	name, text, unit string
	of               func(r *Result) float64
	// byPlane says that a line is a control plane with clients of a protocol after they have
	// connected, in place of a scenario.
	byPlane bool
}

var quantities = []quantity{
	{name: "time", text: "Time until the last proxy has acknowledged a change", unit: "milliseconds", of: func(r *Result) float64 { return r.Median.Seconds() * 1000 }},
	{name: "cpu", text: "CPU time of a change", unit: "milliseconds of CPU", of: func(r *Result) float64 { return r.CPU.Seconds() * 1000 }},
	{name: "memory", text: "Anonymous memory when all proxies have connected", unit: "MiB", of: func(r *Result) float64 { return float64(r.Memory.Anonymous) / (1 << 20) }, byPlane: true},
}

// changes are the scenarios in which a change reaches proxies.
var changes = []string{scenarioEndpoint, scenarioScale, scenarioRoute, scenarioSplit, scenarioAccess, scenarioRoll}

// figuresOf returns the figures of the results, those of each mode by quantity. A mode with one size
// has none.
func figuresOf(results []Result) []figure {
	var figures []figure
	for _, mode := range modes {
		if sizesOf(results, mode) < 2 {
			continue
		}
		for _, q := range quantities {
			f := figure{mode: mode, text: q.text + " (" + strings.ToLower(titles[mode]) + ")", File: "scale-" + mode + "-" + q.name + ".svg", X: "services and proxies", Y: q.unit}
			all := panel{Title: titles[mode]}
			for _, by := range clientsIn(results) {
				p := panel{Title: by}
				for _, scenario := range append([]string{scenarioConnect}, changes...) {
					if (scenario == scenarioConnect) != q.byPlane {
						continue
					}
					s := seriesOf(results, mode, by, scenario, q.of)
					if len(s.Points) > 0 && q.byPlane {
						s.Name = by
						all.Series = append(all.Series, s)
					} else if len(s.Points) > 0 {
						p.Series = append(p.Series, s)
					}
				}
				if len(p.Series) > 0 {
					f.Panels = append(f.Panels, p)
				}
			}
			if len(all.Series) > 0 {
				f.Panels = append(f.Panels, all)
			}
			if len(f.Panels) > 0 {
				figures = append(figures, f)
			}
		}
	}
	return figures
}

// sizesOf returns how many numbers of services the mode was measured with.
func sizesOf(results []Result, mode string) int {
	sizes := make(map[int]bool)
	for _, r := range results {
		if r.Mode == mode && r.Services > 0 {
			sizes[r.Services] = true
		}
	}
	return len(sizes)
}

// by names the control plane and the clients of a result.
func (r *Result) by() string { return r.ControlPlane + ", " + r.Protocol }

// clientsIn returns the control planes and clients of the results.
func clientsIn(results []Result) []string {
	var out []string
	for _, r := range results {
		if r.Scenario != scenarioIdle && !slices.Contains(out, r.by()) {
			out = append(out, r.by())
		}
	}
	return out
}

func seriesOf(results []Result, mode, by, scenario string, of func(*Result) float64) series {
	s := series{Name: scenario}
	for _, r := range results {
		// A logarithmic axis has no zero.
		if y := of(&r); r.Mode == mode && r.by() == by && r.Scenario == scenario && r.Failed == "" && y > 0 {
			s.Points = append(s.Points, [2]float64{float64(r.Services), y})
		}
	}
	slices.SortFunc(s.Points, func(a, b [2]float64) int { return int(a[0] - b[0]) })
	return s
}

// draw writes the figures as SVG into the folder.
func draw(figures []figure, folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	input, err := json.Marshal(figures)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "run", ".", folder)
	cmd.Dir = filepath.Join(apiserver.Root(), "test", "bench", "plot")
	cmd.Stdin = bytes.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("drawing the plots: %w\n%s", err, out)
	}
	return nil
}
