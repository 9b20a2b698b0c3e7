package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/test/bench/page"
)

// bar is a bound on a number of Outrigger's.
type bar struct {
	text, limit string
	// find returns the measured value and whether it is within the limit, or false as the last
	// value if it was not measured with these clients.
	find func(results []Result) (value string, met, measured bool)
}

// barServices is how many services and proxies the bars are about.
const barServices = 1000

// bars are those of issue 16 that this program measures.
var bars = []bar{
	{"permissive, one endpoint changes: until the last proxy has acknowledged it", "150 ms", within(modePermissive, scenarioEndpoint, medianOf, 150*time.Millisecond)},
	{"the same: CPU", "100 ms", within(modePermissive, scenarioEndpoint, cpuOf, 100*time.Millisecond)},
	{"by policy, one endpoint changes: until the last proxy has acknowledged it", "50 ms", within(modePolicy, scenarioEndpoint, medianOf, 50*time.Millisecond)},
	{"the same: CPU", "10 ms", within(modePolicy, scenarioEndpoint, cpuOf, 10*time.Millisecond)},
	{"the same: CPU with the most services, against that with the fewest", "1.5 times", flat},
	{"memory of a connected proxy, by policy", "48 KiB", atMost(modePolicy, scenarioMemory, func(r *Result) int64 { return r.Held }, 48<<10)},
	{"memory of a connected proxy, permissive", "48 KiB", atMost(modePermissive, scenarioMemory, func(r *Result) int64 { return r.Held }, 48<<10)},
	{"by policy: anonymous memory when all proxies have connected", "300 MiB", atMost(modePolicy, scenarioConnect, anonymousOf, 300<<20)},
	{"permissive: anonymous memory when all proxies have connected", "300 MiB", atMost(modePermissive, scenarioConnect, anonymousOf, 300<<20)},
	{"permissive: the same after all changes", "300 MiB", atMost(modePermissive, scenarioRoll, anonymousOf, 300<<20)},
	{"an idle controller: anonymous memory", "40 MiB", idleMemory},
	{"restart, by policy: from the start until all proxies are served", "10 s", within(modePolicy, scenarioRestart, allOf, 10*time.Second)},
	{"restart, permissive: from the start until all proxies are served", "10 s", within(modePermissive, scenarioRestart, allOf, 10*time.Second)},
	{"restart, by policy: resources sent again", "0", nothing(modePolicy, scenarioRestart)},
	{"restart, permissive: resources sent again", "0", nothing(modePermissive, scenarioRestart)},
	{"all proxies connect without any configuration, permissive: the longest wait of one", "10 s", within(modePermissive, scenarioConnect, maxOf, 10*time.Second)},
	{"all proxies come back at once, by policy: the longest wait of one", "10 s", within(modePolicy, scenarioReconnect, maxOf, 10*time.Second)},
	{"all proxies come back at once, permissive: the longest wait of one", "10 s", within(modePermissive, scenarioReconnect, maxOf, 10*time.Second)},
	{"10,000 pods start within a minute: the longest wait for a certificate", "10 s", within(modePolicy, scenarioCertificates, maxOf, 10*time.Second)},
	{"the same: attempts that failed", "0", failedAttempts(scenarioCertificates)},
	{"10,000 pods start at once: the longest wait for a certificate", "2 min", within(modePolicy, scenarioAtOnce, maxOf, 2*time.Minute)},
	{"a proxy that does not read, permissive: memory", "256 KiB", atMost(modePermissive, scenarioStall, func(r *Result) int64 { return r.Held }, 256<<10)},
	{"the same: until the others have a change, against that when all read", "1.5 times", undisturbed},
}

func medianOf(r *Result) time.Duration { return r.Median }
func maxOf(r *Result) time.Duration    { return r.Max }
func allOf(r *Result) time.Duration    { return r.All }
func cpuOf(r *Result) time.Duration    { return r.CPU }
func anonymousOf(r *Result) int64      { return r.Memory.Anonymous }

// resultOf returns the result of a scenario with barServices services and proxies.
func resultOf(results []Result, mode, scenario string) *Result {
	i := slices.IndexFunc(results, func(r Result) bool {
		return r.Mode == mode && r.Scenario == scenario && r.Services == barServices && r.Proxies == barServices && r.Failed == ""
	})
	if i < 0 {
		return nil
	}
	return &results[i]
}

func within(mode, scenario string, of func(*Result) time.Duration, limit time.Duration) func([]Result) (string, bool, bool) {
	return func(results []Result) (string, bool, bool) {
		r := resultOf(results, mode, scenario)
		if r == nil {
			return "", false, false
		}
		return page.Duration(of(r)), of(r) <= limit, true
	}
}

func atMost(mode, scenario string, of func(*Result) int64, limit int64) func([]Result) (string, bool, bool) {
	return func(results []Result) (string, bool, bool) {
		r := resultOf(results, mode, scenario)
		if r == nil {
			return "", false, false
		}
		text := kibibytes(of(r))
		if limit >= 1<<20 {
			text = mebibytes(of(r))
		}
		return text, of(r) <= limit, true
	}
}

func nothing(mode, scenario string) func([]Result) (string, bool, bool) {
	return func(results []Result) (string, bool, bool) {
		r := resultOf(results, mode, scenario)
		if r == nil {
			return "", false, false
		}
		return fmt.Sprint(r.Resent), r.Resent == 0, true
	}
}

func failedAttempts(scenario string) func([]Result) (string, bool, bool) {
	return func(results []Result) (string, bool, bool) {
		r := resultOf(results, modePolicy, scenario)
		if r == nil {
			return "", false, false
		}
		n := r.Certificates.failedAttempts()
		return fmt.Sprint(n), n == 0, true
	}
}

// flat compares the CPU time of a changed endpoint by policy, which 20 proxies see whatever the
// size of the mesh.
func flat(results []Result) (string, bool, bool) {
	some := slices.DeleteFunc(slices.Clone(results), func(r Result) bool {
		return r.Mode != modePolicy || r.Scenario != scenarioEndpoint || r.Failed != ""
	})
	if len(some) == 0 {
		return "", false, false
	}
	bySize := func(a, b Result) int { return a.Services - b.Services }
	few, most := slices.MinFunc(some, bySize), slices.MaxFunc(some, bySize)
	if few.Services == most.Services {
		return "", false, false
	}
	ratio := most.CPU.Seconds() / few.CPU.Seconds()
	return fmt.Sprintf("%.1f times (%s with %d, %s with %d)", ratio, page.Duration(few.CPU), few.Services, page.Duration(most.CPU), most.Services), ratio <= 1.5, true
}

// undisturbed compares stall, in which some proxies do not read, with scale.
func undisturbed(results []Result) (string, bool, bool) {
	stall, scale := resultOf(results, modePermissive, scenarioStall), resultOf(results, modePermissive, scenarioScale)
	if stall == nil || scale == nil {
		return "", false, false
	}
	ratio := stall.Median.Seconds() / scale.Median.Seconds()
	return fmt.Sprintf("%.1f times (%s, %s)", ratio, page.Duration(stall.Median), page.Duration(scale.Median)), ratio <= 1.5, true
}

func idleMemory(results []Result) (string, bool, bool) {
	i := slices.IndexFunc(results, func(r Result) bool { return r.Scenario == scenarioIdle })
	if i < 0 {
		return "", false, false
	}
	m := results[i].Memory
	return fmt.Sprintf("%s (resident %s)", mebibytes(m.Anonymous), mebibytes(m.Resident)), m.Anonymous <= 40<<20, true
}

// writeBars writes the bars beside the numbers with each kind of clients.
func writeBars(out *strings.Builder, results []Result) {
	results = slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.ControlPlane != outrigger })
	var protocols []string
	for _, r := range results {
		if r.Services == barServices && !slices.Contains(protocols, r.Protocol) {
			protocols = append(protocols, r.Protocol)
		}
	}
	if len(protocols) == 0 {
		return
	}
	fmt.Fprintf(out, "\n### Bars\n\nWith %d services and as many proxies, where the row names no other number.\n\n| what | at most |", barServices)
	for _, protocol := range protocols {
		fmt.Fprintf(out, " %s |", protocol)
	}
	out.WriteString("\n|---|---|" + strings.Repeat("---|", len(protocols)) + "\n")
	for _, b := range bars {
		fmt.Fprintf(out, "| %s | %s |", b.text, b.limit)
		for _, protocol := range protocols {
			value, met, measured := b.find(slices.DeleteFunc(slices.Clone(results), func(r Result) bool {
				return r.Protocol != protocol && r.Scenario != scenarioIdle
			}))
			if measured {
				fmt.Fprintf(out, " %s: %s |", value, page.Verdict(met))
			} else {
				out.WriteString(" not measured |")
			}
		}
		out.WriteString("\n")
	}
}
