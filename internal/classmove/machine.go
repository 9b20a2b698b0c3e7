package classmove

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Observed is what is known of a workload at one moment.
type Observed struct {
	Key
	// From and To count its pods of the two classes, without those that are being deleted.
	From, To int
	// Rolling, Progress, Takes and Budgets are those of Workload.
	Rolling  bool
	Progress string
	Takes    int
	Budgets  []Budget
}

// observe returns what is known of a workload.
func observe(w *Workload, move Move) Observed {
	o := Observed{Key: w.Key, Rolling: w.Rolling, Progress: w.Progress, Takes: w.Takes, Budgets: w.Budgets}
	o.From, _ = w.count(move.From)
	o.To, _ = w.count(move.To)
	return o
}

// State is where a workload is in the move.
type State string

const (
	// Waiting: it has not been changed yet.
	Waiting State = "waiting"
	// Rolling: its controller replaces its pods.
	Rolling State = "rolling"
	// Moved: no pod has the former class.
	Moved State = "moved"
	// Returning: its namespace goes back, and its pods are replaced again.
	Returning State = "returning"
	// Returned: it has gone back, or was not changed before its namespace went back.
	Returned State = "returned"
	// Stuck: it neither moves nor goes back.
	Stuck State = "stuck"
)

// Step is what is to be done next.
type Step struct {
	// Return are the namespaces that go back from now on, with the reasons. They must be
	// changed before the next call.
	Return map[string]string
	// Restart are the workloads whose pods are to be replaced.
	Restart []Key
	// Done reports whether nothing is left to be done.
	Done bool
}

// maxRestarts is how often a workload is restarted because its new pods have the former class: the
// injectors may not have seen the change yet.
const maxRestarts = 3

// Machine decides which workloads are replaced next. It is used by one goroutine.
type Machine struct {
	limits Limits
	// workloads are those of the plan.
	workloads map[Key]*progress
	// returning are the namespaces that go back, with the reason.
	returning map[string]string
	// first is when the first workload was moved, or zero.
	first time.Time
	// mustCheck reports whether the traffic must have been measured before a second workload
	// starts.
	mustCheck bool
}

// progress is how far a workload is.
type progress struct {
	state State
	// restarts counts those in the present direction, and touched reports whether there was one
	// in any.
	restarts int
	touched  bool
	// text is the last Progress with the number of pods, and since when it is the same.
	text   string
	since  time.Time
	reason string
	// refused reports whether the last restart was.
	refused bool
}

// isActive reports whether something is left to be done.
func (p *progress) isActive() bool {
	return p.state == Waiting || p.state == Rolling || p.state == Returning
}

// NewMachine returns a Machine for workloads. If the traffic is watched, only one workload starts
// before Next is told of a measurement.
func NewMachine(limits Limits, watched bool, keys []Key) *Machine {
	m := &Machine{limits: limits, mustCheck: watched, workloads: make(map[Key]*progress), returning: make(map[string]string)}
	for _, key := range keys {
		m.workloads[key] = &progress{state: Waiting}
	}
	return m
}

// State returns where a workload is, with the reason if there is one.
func (m *Machine) State(key Key) (State, string) {
	if p := m.workloads[key]; p != nil {
		return p.state, p.reason
	}
	return Waiting, ""
}

// Refused notes that the API server has refused to restart a workload.
func (m *Machine) Refused(key Key, err error) {
	if p := m.workloads[key]; p != nil {
		p.reason, p.refused = err.Error(), true
	}
}

// IsBack reports whether a namespace goes back or has gone back, and why.
func (m *Machine) IsBack(namespace string) (reason string, is bool) {
	reason, is = m.returning[namespace]
	return reason, is
}

// ReturnAll has all namespaces go back, and returns the ones that did not before.
func (m *Machine) ReturnAll(reason string) map[string]string {
	begun := make(map[string]string)
	for key := range m.workloads {
		if _, is := m.returning[key.Namespace]; !is {
			begun[key.Namespace] = reason
		}
	}
	for namespace := range begun {
		m.goBack(namespace, reason)
	}
	return begun
}

// goBack turns the workloads of a namespace around.
func (m *Machine) goBack(namespace, reason string) {
	m.returning[namespace] = reason
	for key, p := range m.workloads {
		switch {
		case key.Namespace != namespace || p.state == Stuck:
		case p.touched:
			p.state, p.restarts, p.text = Returning, 0, ""
		case p.isActive():
			p.state = Returned
		}
	}
}

// Next decides what to do, now that the workloads are as observed and that the last measurement
// that was good enough began at a time, which may be zero.
func (m *Machine) Next(now time.Time, all []Observed, measured time.Time) Step {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Observed) int { return a.compare(b.Key) })
	m.advance(now, all)
	if step := m.stuck(now); len(step.Return) > 0 {
		return step
	}
	step := Step{Restart: m.start(now, all, measured), Done: true}
	for _, p := range m.workloads {
		step.Done = step.Done && !p.isActive()
	}
	return step
}

// advance notes what has happened to the workloads.
func (m *Machine) advance(now time.Time, all []Observed) {
	seen := make(map[Key]bool, len(all))
	for i := range all {
		o := &all[i]
		p := m.workloads[o.Key]
		if p == nil {
			continue
		}
		seen[o.Key] = true
		if !p.isActive() {
			continue
		}
		old := o.From
		if p.state == Returning {
			old = o.To
		}
		if text := fmt.Sprintf("%s; %d and %d", o.Progress, o.From, o.To); text != p.text {
			p.text, p.since = text, now
		}
		if o.Rolling || old > 0 {
			if !p.refused && (p.state != Waiting || o.Rolling) {
				p.reason = fmt.Sprintf("%s, %d have the class that they leave", o.Progress, old)
			}
			continue
		}
		switch {
		case p.state == Returning && p.restarts > 0:
			p.state, p.reason = Returned, ""
		case p.state == Waiting && !p.touched && o.To == 0:
			// It has no pods, but its template is to be changed.
		case p.state == Waiting || p.state == Rolling:
			p.state, p.reason = Moved, ""
			if m.first.IsZero() {
				m.first = now
			}
		}
	}
	for key, p := range m.workloads {
		if !seen[key] && p.isActive() {
			p.state, p.reason = Moved, "it was deleted"
		}
	}
}

// stuck has the namespaces go back in which a workload was restarted and has made no progress for
// too long. One that could not be restarted, or does not go back either, stays as it is.
func (m *Machine) stuck(now time.Time) Step {
	step := Step{Return: make(map[string]string)}
	for key, p := range m.workloads {
		if !p.isActive() || p.since.IsZero() || now.Sub(p.since) <= m.limits.Patience {
			continue
		}
		if p.state == Rolling {
			step.Return[key.Namespace] = fmt.Sprintf("%s has made no progress for %s: %s", key, m.limits.Patience, p.reason)
		} else {
			p.state = Stuck
		}
	}
	for namespace, reason := range step.Return {
		m.goBack(namespace, reason)
	}
	return step
}

// start returns the workloads that are to be restarted now.
func (m *Machine) start(now time.Time, all []Observed, measured time.Time) []Key {
	busy, reserved := make(map[string]int), make(map[string]int)
	inFlight := 0
	var waiting []*Observed
	for i := range all {
		o := &all[i]
		p := m.workloads[o.Key]
		if p == nil {
			continue
		}
		switch {
		case p.state == Returning && p.restarts == 0:
			waiting = append(waiting, o)
			if !o.Rolling {
				continue
			}
		case p.state == Returning && o.To > 0 && !o.Rolling, p.state == Rolling && o.From > 0 && !o.Rolling, p.state == Waiting && !o.Rolling:
			waiting = append(waiting, o)
			continue
		case p.state == Waiting:
			// Somebody else has begun its rollout, which may never end.
			continue
		case !p.isActive():
			continue
		}
		inFlight++
		busy[o.Namespace]++
		for _, b := range o.Budgets {
			reserved[o.Namespace+"/"+b.Name] += o.Takes
		}
	}
	pace := m.pace(measured)
	var restart []Key
	for len(waiting) > 0 {
		if inFlight < pace {
			slices.SortStableFunc(waiting, func(a, b *Observed) int { return m.order(a, b, busy) })
		}
		o := waiting[0]
		waiting = waiting[1:]
		p := m.workloads[o.Key]
		turnsAround := p.state == Returning && p.restarts == 0 && o.Rolling
		if inFlight >= pace && !turnsAround {
			// Nothing is wrong with a workload that only waits for its turn.
			p.since = now
			continue
		}
		if blocked, own := m.blocked(o, p, reserved); blocked != "" {
			p.reason = blocked
			if !own {
				p.since = now
			}
			continue
		}
		if p.restarts == maxRestarts {
			if !p.refused {
				p.reason = fmt.Sprintf("after %d restarts its new pods still have the class that they leave", maxRestarts)
			}
			continue
		}
		if !turnsAround {
			inFlight++
			busy[o.Namespace]++
			for _, b := range o.Budgets {
				reserved[o.Namespace+"/"+b.Name] += o.Takes
			}
		}
		if p.state == Waiting {
			p.state = Rolling
		}
		p.restarts++
		p.refused = false
		p.touched, p.since = true, now
		restart = append(restart, o.Key)
	}
	return restart
}

// pace returns how many workloads may be replaced at a time: one until the first one was moved and,
// if that is to be done, the traffic was measured afterwards. Going back needs no such care.
func (m *Machine) pace(measured time.Time) int {
	forward := slices.ContainsFunc(m.namespaces(), func(namespace string) bool { _, is := m.returning[namespace]; return !is })
	switch {
	case !forward:
		return max(1, m.limits.Pace)
	case m.first.IsZero():
		return 1
	case m.mustCheck && measured.Before(m.first):
		return 0
	}
	return max(1, m.limits.Pace)
}

func (m *Machine) namespaces() []string {
	var names []string
	for key := range m.workloads {
		names = append(names, key.Namespace)
	}
	return names
}

// order sorts those first that go back, then those of namespaces in which little happens. The
// first one of all is the smallest.
func (m *Machine) order(a, b *Observed, busy map[string]int) int {
	back := func(o *Observed) int {
		if m.workloads[o.Key].state == Returning {
			return 0
		}
		return 1
	}
	size := func(o *Observed) int {
		if !m.first.IsZero() || o.From == 0 {
			return 1 << 30
		}
		return o.From
	}
	return cmp.Or(cmp.Compare(back(a), back(b)), cmp.Compare(busy[a.Namespace], busy[b.Namespace]), cmp.Compare(size(a), size(b)), a.compare(b.Key))
}

// blocked returns the budget that does not allow a rollout now, or "". Own reports whether the
// reason is not another workload of this move.
func (m *Machine) blocked(o *Observed, p *progress, reserved map[string]int) (reason string, own bool) {
	if o.Takes == 0 || p.state == Returning && o.Rolling {
		// The pods that are replaced then are those that do not get ready.
		return "", true
	}
	for _, b := range o.Budgets {
		if taken := reserved[o.Namespace+"/"+b.Name]; o.Takes+taken > b.Allowed {
			return fmt.Sprintf("its rollout may make %d pods unavailable, and the PodDisruptionBudget %s allows %d now; with maxUnavailable 0 and maxSurge 1 it would make none unavailable", o.Takes, b.Name, b.Allowed), taken == 0
		}
	}
	return "", true
}
