package classmove

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

const (
	// fewest is how many requests of a measurement say something.
	fewest = 20
	// leastSlower is, in seconds, by how much the p95 must have risen in any case: short times
	// vary.
	leastSlower = 0.1
	// strikes is how many measurements in a row must be worse, unless one is much worse.
	strikes = 2
	// muchFailed is a share of failed requests above that of before that needs no second
	// measurement.
	muchFailed = 0.2
)

// At is a namespace whose requests are measured, and where.
type At struct {
	Namespace string `json:"namespace"`
	// By is who has measured them: the callers' proxies, or those of the namespace's own pods.
	By string `json:"by"`
}

// The values of By.
const (
	ByCallers = "callers"
	ByServers = "servers"
)

// Measure is what requests to a namespace were like.
type Measure struct {
	At
	Requests float64 `json:"requests"`
	Failed   float64 `json:"failed"`
	// P95 is in seconds, nil without answers.
	P95 *float64 `json:"p95Seconds,omitempty"`
}

func (m *Measure) share() float64 {
	if m.Requests == 0 {
		return 0
	}
	return m.Failed / m.Requests
}

// Measures returns the measures of namespaces, sorted.
func Measures(report *traffic.Report, namespaces []string) []Measure {
	type sum struct {
		requests, failed float64
		durations        traffic.Histogram
	}
	sums := make(map[At]*sum)
	for i := range report.Pods {
		pod := &report.Pods[i]
		for j := range pod.Flows {
			f := &pod.Flows[j]
			at := At{f.Destination.Namespace, ByCallers}
			if f.Reporter == telemetry.ReporterDestination {
				at = At{pod.Namespace, ByServers}
			}
			if pod.Seconds <= 0 || !slices.Contains(namespaces, at.Namespace) {
				continue
			}
			s := sums[at]
			if s == nil {
				s = &sum{}
				sums[at] = s
			}
			s.requests += f.Requests
			s.failed += f.Failed
			s.durations.Add(f.Durations, 1)
		}
	}
	var measures []Measure
	for at, s := range sums {
		if s.requests > 0 {
			measures = append(measures, Measure{at, s.requests, s.failed, s.durations.Quantile(0.95)})
		}
	}
	slices.SortFunc(measures, func(a, b Measure) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.By, b.By))
	})
	return measures
}

// Judge compares measurements during a move with one before it.
type Judge struct {
	limits Limits
	before map[At]Measure
	// last are those of the last measurement, and worse counts the ones in a row that were
	// worse than before.
	last  map[At]Measure
	worse map[At]int
}

// NewJudge returns a Judge with the measures before the move.
func NewJudge(limits Limits, before []Measure) *Judge {
	j := &Judge{limits: limits, before: make(map[At]Measure), last: make(map[At]Measure), worse: make(map[At]int)}
	for _, m := range before {
		j.before[m.At] = m
	}
	return j
}

// Add takes the next measurement. It returns why the move must go back, or "".
func (j *Judge) Add(measures []Measure) string {
	seen := make(map[At]bool)
	for _, m := range measures {
		seen[m.At] = true
		j.last[m.At] = m
		before, known := j.before[m.At]
		if !known || before.Requests < fewest || m.Requests < fewest {
			j.worse[m.At] = 0
			continue
		}
		reason := j.compare(before, m)
		if reason == "" {
			j.worse[m.At] = 0
			continue
		}
		if j.worse[m.At]++; j.worse[m.At] >= strikes || m.share()-before.share() > max(muchFailed, j.limits.Failed) {
			return reason
		}
	}
	for at := range j.worse {
		if !seen[at] {
			j.worse[at] = 0
		}
	}
	return ""
}

// IsDoubtful reports whether the last measurement was worse than before somewhere, though not for
// long enough.
func (j *Judge) IsDoubtful() bool {
	for _, n := range j.worse {
		if n > 0 {
			return true
		}
	}
	return false
}

// compare says why a measure is worse than before, or "".
func (j *Judge) compare(before, now Measure) string {
	what := fmt.Sprintf("requests to namespace %s, as the proxies of its %s count them", now.Namespace, now.By)
	if now.share() > before.share()+j.limits.Failed {
		return fmt.Sprintf("%s: %.1f%% of %.0f failed, %.1f%% before", what, 100*now.share(), now.Requests, 100*before.share())
	}
	if before.P95 != nil && now.P95 != nil && *now.P95 > *before.P95*j.limits.Slower && *now.P95 > *before.P95+leastSlower {
		return fmt.Sprintf("%s: the p95 is %.0f ms, %.0f ms before", what, 1000**now.P95, 1000**before.P95)
	}
	return ""
}

// Measured is what was measured of a namespace before the move and last.
type Measured struct {
	Before *Measure `json:"before,omitempty"`
	Last   *Measure `json:"last,omitempty"`
}

// Measured returns what was measured.
func (j *Judge) Measured() []Measured {
	all := maps.Clone(j.before)
	maps.Copy(all, j.last)
	var measured []Measured
	for _, at := range slices.SortedFunc(maps.Keys(all), func(a, b At) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.By, b.By))
	}) {
		var m Measured
		if before, ok := j.before[at]; ok {
			m.Before = &before
		}
		if last, ok := j.last[at]; ok {
			m.Last = &last
		}
		measured = append(measured, m)
	}
	return measured
}
