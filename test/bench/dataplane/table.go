package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/test/bench/page"
	"github.com/outrigger-mesh/outrigger/test/bench/process"
)

// tables returns the results in Markdown.
func tables(r *Results) string {
	var out strings.Builder
	m := &r.Machine
	fmt.Fprintf(&out, "\nOn %s: %d cores of %s, Linux %s, worker threads in each proxy: %d. It took %s; load averages before: %s, after: %s. Versions:",
		m.Time.Format(time.DateOnly), m.Cores, cmp.Or(m.Processor, "an unknown processor"), m.Kernel, r.Threads, r.Took.Round(time.Second), m.LoadBefore, m.LoadAfter)
	separator := " "
	for _, class := range slices.Sorted(maps.Keys(m.Versions)) {
		fmt.Fprintf(&out, "%s%s %s", separator, class, m.Versions[class])
		separator = ", "
	}
	out.WriteString(".\n")
	r.barTable(&out)
	r.classTable(&out)
	for _, p := range protocols {
		r.pairTable(&out, p)
	}
	for _, class := range r.stepClasses() {
		r.stepTable(&out, class)
	}
	r.memoryTable(&out)
	out.WriteString("\n")
	return out.String()
}

func (l *Latency) path() string {
	if l.Client == "" {
		return noMesh
	}
	return l.Client + " to " + l.Server
}

// row writes a row of a table.
func row(out *strings.Builder, cells ...string) {
	out.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func head(out *strings.Builder, title string, cells ...string) {
	fmt.Fprintf(out, "\n### %s\n\n", title)
	row(out, cells...)
	out.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
}

// classTable has a row for each class, with the same class at both ends.
func (r *Results) classTable(out *strings.Builder) {
	if len(r.Programs) == 0 {
		return
	}
	l, services := r.typical()
	head(out, "By class", "", "program", "start to ready: median, longest", "policy to effect: allowed, refused", fmt.Sprintf("private memory, %d services: proxy, agent", services),
		"added by both sidecars: p50, p99 ("+l.title()+")", "CPU of the client's sidecar", "of the server's")
	for _, p := range r.Programs {
		cells := []string{p.Name, page.Size(p.Size), "", "", "", "", "", ""}
		for _, s := range r.Starts {
			if s.Class == p.Name {
				cells[2] = page.Duration(s.Median) + ", " + page.Duration(s.Max)
			}
		}
		for _, e := range r.Effects {
			if e.Class == p.Name {
				cells[3] = page.Duration(e.Allowed) + ", " + page.Duration(e.Refused)
			}
		}
		for _, f := range r.Memory {
			if f.Class == p.Name && f.Services == services && f.Mode == permissive {
				cells[4] = fmt.Sprintf("%.1f, %.1f MiB", mebibytes(f.Proxy.Anonymous), mebibytes(f.Agent.Anonymous))
			}
		}
		if pair := r.pair(p.Name+" to "+p.Name, l); pair != nil {
			cells[5] = pair.latency(r.pair(noMesh, l))
			copy(cells[6:], pair.cpu())
		}
		row(out, cells...)
	}
}

// Bars of the project: how much slower than its hand-written configuration a proxy is at the
// median, without access logs, and the private memory of a sidecar in a mesh of barServices.
const (
	slowerBar   = 0.1
	barServices = 100
	agentBar    = 4
)

// proxyBars are in MiB.
var proxyBars = map[string]float64{"envoy": 24, "haproxy": 6, "pipy": 10}

// barTable compares the results with the bars.
func (r *Results) barTable(out *strings.Builder) {
	classes := r.stepClasses()
	for _, f := range r.Memory {
		if !slices.Contains(classes, f.Class) {
			classes = append(classes, f.Class)
		}
	}
	var rows [][]string
	add := func(name string, cell func(class string) string) {
		cells := []string{name}
		for _, class := range classes {
			cells = append(cells, cell(class))
		}
		if strings.Join(cells[1:], "") != "" {
			rows = append(rows, cells)
		}
	}
	for _, connections := range []int{1, 16} {
		l := load{http1, connections, 0}
		add(fmt.Sprintf("without access logs, %s: p50, against the hand-written configuration, at most %+.0f%%", l.title(), 100*slowerBar), func(class string) string {
			ours, minimal := r.step(class, noLogs, l), r.step(class, handWritten, l)
			if ours == nil || minimal == nil || minimal.P50 <= 0 {
				return ""
			}
			slower := float64(ours.P50)/float64(minimal.P50) - 1
			return fmt.Sprintf("%+.0f%% (%s, %s): %s", 100*slower, page.Duration(ours.P50), page.Duration(minimal.P50), page.Verdict(slower <= slowerBar))
		})
	}
	for _, m := range []mode{permissive, byPolicy, onDemand} {
		add(fmt.Sprintf("private memory with %d services, %s: the proxy, and its agent at most %d MiB", barServices, m, agentBar), func(class string) string {
			for _, f := range r.Memory {
				if f.Class == class && f.Mode == m && f.Services == barServices {
					proxy, agent := mebibytes(f.Proxy.Anonymous), mebibytes(f.Agent.Anonymous)
					return fmt.Sprintf("%.1f MiB, at most %.0f: %s; agent %.1f MiB: %s", proxy, proxyBars[class], page.Verdict(proxy <= proxyBars[class]), agent, page.Verdict(agent <= agentBar))
				}
			}
			return ""
		})
	}
	if len(rows) == 0 {
		return
	}
	head(out, "Bars", append([]string{"what"}, classes...)...)
	for _, cells := range rows {
		row(out, cells...)
	}
}

// step returns the result of a class's step, or nil.
func (r *Results) step(class, name string, l load) *Latency {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Class == class && s.Name == name && s.load() == l {
			return &s.Latency
		}
	}
	return nil
}

// typical returns the load and the number of services for the table of classes: HTTP/1.1 at
// the fixed rate with the second smallest number of connections, and the smallest mesh.
func (r *Results) typical() (load, int) {
	var loads []load
	for i := range r.Pairs {
		if l := r.Pairs[i].load(); l.protocol == http1 && l.rate > 0 && !slices.Contains(loads, l) {
			loads = append(loads, l)
		}
	}
	slices.SortFunc(loads, func(a, b load) int { return cmp.Compare(a.connections, b.connections) })
	typical := load{protocol: http1, connections: 16, rate: 1000}
	if len(loads) > 0 {
		typical = loads[min(1, len(loads)-1)]
	}
	services := 0
	for _, f := range r.Memory {
		if services == 0 || f.Services < services {
			services = f.Services
		}
	}
	return typical, services
}

func (r *Results) pair(path string, l load) *Latency {
	for i := range r.Pairs {
		if r.Pairs[i].path() == path && r.Pairs[i].load() == l {
			return &r.Pairs[i]
		}
	}
	return nil
}

// pairTable has a row for each pair and a column for each load of a protocol.
func (r *Results) pairTable(out *strings.Builder, p protocol) {
	rows := slices.DeleteFunc(slices.Clone(r.Pairs), func(l Latency) bool { return l.Protocol != p })
	if len(rows) == 0 {
		return
	}
	var loads []load
	var paths []string
	for i := range rows {
		if l := rows[i].load(); !slices.Contains(loads, l) {
			loads = append(loads, l)
		}
		if path := rows[i].path(); !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	slices.SortFunc(loads, func(a, b load) int {
		return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(a.connections, b.connections))
	})
	cells := []string{"client to server"}
	for _, l := range loads {
		cells = append(cells, l.title())
	}
	busy := loads[min(1, len(loads)-1)]
	cells = append(cells, fmt.Sprintf("CPU of the client's sidecar (%s)", busy.title()), "of the server's")
	head(out, string(p)+", by pair", cells...)
	for _, path := range paths {
		cells := []string{path}
		for _, l := range loads {
			cells = append(cells, r.pair(path, l).latency(r.pair(noMesh, l)))
		}
		row(out, append(cells, r.pair(path, busy).cpu()...)...)
	}
}

func (l *Latency) load() load { return load{l.Protocol, l.Connections, l.Rate} }

func (l load) title() string {
	connections := fmt.Sprintf("%d connections", l.connections)
	if l.connections == 1 {
		connections = "1 connection"
	}
	if l.rate == 0 {
		return connections + ", at the limit"
	}
	return fmt.Sprintf("%s, %d/s", connections, l.rate)
}

// latency returns p50 and p99, as differences from those of the other path.
func (l *Latency) latency(from *Latency) string {
	if l == nil {
		return ""
	}
	if l.Failure != "" {
		return "failed"
	}
	text := page.Duration(l.P50) + ", " + page.Duration(l.P99)
	if from != nil && from != l {
		text = added(l.P50, from.P50) + ", " + added(l.P99, from.P99)
	}
	if l.Rate == 0 || l.PerSecond < 0.95*float64(l.Rate) {
		text += fmt.Sprintf(" (%.0f/s)", l.PerSecond)
	}
	return text
}

func added(d, from time.Duration) string {
	if d < from {
		return "-" + page.Duration(from-d)
	}
	return "+" + page.Duration(d-from)
}

// cpu returns the CPU time of the proxy and the agent at both ends, for each request.
func (l *Latency) cpu() []string {
	if l == nil || len(l.Sidecars) != 2 {
		return []string{"", ""}
	}
	var cells []string
	for _, u := range l.Sidecars {
		cells = append(cells, fmt.Sprintf("%s, agent %s", page.Duration(u.ProxyCPU), page.Duration(u.AgentCPU)))
	}
	return cells
}

func (r *Results) stepClasses() []string {
	var classes []string
	for i := range r.Steps {
		if !slices.Contains(classes, r.Steps[i].Class) {
			classes = append(classes, r.Steps[i].Class)
		}
	}
	return classes
}

// stepTable has a row for each step of a class.
func (r *Results) stepTable(out *strings.Builder, class string) {
	var names []string
	var loads []load
	found := make(map[string]map[load]*Latency)
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.Class != class {
			continue
		}
		if found[s.Name] == nil {
			found[s.Name] = make(map[load]*Latency)
			names = append(names, s.Name)
		}
		if !slices.Contains(loads, s.load()) {
			loads = append(loads, s.load())
		}
		found[s.Name][s.load()] = &s.Latency
	}
	cells := []string{class}
	for _, l := range loads {
		cells = append(cells, l.title())
	}
	busy := loads[min(1, len(loads)-1)]
	head(out, class+", with one part after the other switched off", append(cells, fmt.Sprintf("CPU of the client's sidecar (%s)", busy.title()), "of the server's", "memory of the server's sidecar")...)
	for _, name := range names {
		cells := []string{name}
		for _, l := range loads {
			cells = append(cells, found[name][l].latency(found[noMesh][l]))
		}
		cells = append(cells, found[name][busy].cpu()...)
		var memory string
		if l := found[name][loads[len(loads)-1]]; l != nil && len(l.Sidecars) == 2 {
			memory = fmt.Sprintf("%s, agent %s", memoryText(l.Sidecars[1].Proxy), memoryText(l.Sidecars[1].Agent))
		}
		row(out, append(cells, memory)...)
	}
}

func (r *Results) memoryTable(out *strings.Builder) {
	if len(r.Memory) == 0 {
		return
	}
	head(out, "Memory of an idle sidecar", "class", "mode", "services", "proxy: private, resident", "agent: private, resident")
	for _, f := range r.Memory {
		row(out, f.Class, string(f.Mode), fmt.Sprint(f.Services), memoryText(f.Proxy), memoryText(f.Agent))
	}
}

// memoryText returns private and resident memory in MiB.
func memoryText(m process.Memory) string {
	return fmt.Sprintf("%.1f, %.1f MiB", mebibytes(m.Anonymous), mebibytes(m.Resident))
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
