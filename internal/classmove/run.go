package classmove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Options are the settings of Run. All are required but Lacks and Traffic.
type Options struct {
	Move    Move
	Limits  Limits
	Cluster *Cluster
	// Deciding is injection's decision. It changes nothing.
	Deciding Deciding
	// Lacks are the Problems that there would be. With some, nothing is changed unless
	// AcceptLacks is set.
	Lacks       []mesh.Problem
	AcceptLacks bool
	// DryRun changes nothing.
	DryRun bool
	// Traffic returns what the proxies have counted during a window that begins with the call;
	// nil if the traffic is not to be watched.
	Traffic func(context.Context) (*traffic.Report, error)
	// Proxies returns the proxies that are connected to controllers.
	Proxies func(context.Context) ([]registry.Proxy, error)
	// Interval is the time between two looks at the workloads, and Settle how long proxies may
	// take to connect at the end.
	Interval, Settle time.Duration
	// Progress gets a sentence for each thing that happens.
	Progress func(text string)
}

// blind is how long a move goes on while the traffic can't be measured or the cluster read.
const blind = 2 * time.Minute

// run is a running move.
type run struct {
	Options
	plan    *Plan
	before  *Reading
	machine *Machine
	judge   *Judge
	result  *Result
	// said is the last state of a workload that was told.
	said map[Key]string
	// good is when the last measurement began that was good enough, and answered when there was
	// one at all.
	good, answered time.Time
	// read is when the cluster was read last.
	read time.Time
	// back is why everything goes back, or "".
	back string
}

// Run moves pods from one class to another, and returns what it has done. The error is one of the
// cluster or of ctx; what was done until then is in the Result, which is nil if nothing was, and the same move
// continues it.
func Run(ctx context.Context, options Options) (*Result, error) {
	r := &run{Options: options, said: make(map[Key]string), result: &Result{Move: options.Move, Lacks: options.Lacks}}
	defer r.result.sort()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	switch {
	case len(r.Lacks) > 0 && !r.AcceptLacks:
		r.result.Outcome, r.result.Reason = Refused, fmt.Sprintf("the class %s lacks what policies ask for", r.Move.To)
		return r.result, nil
	case r.DryRun:
		r.result.Outcome = Planned
		return r.result, nil
	}
	err := r.execute(ctx)
	r.report()
	if err == nil {
		err = r.conclude(ctx)
	}
	if err != nil {
		r.result.Outcome, r.result.Reason = Interrupted, err.Error()
	}
	return r.result, err
}

// prepare reads the cluster and decides what is to be changed.
func (r *run) prepare(ctx context.Context) error {
	var err error
	if r.before, err = r.Cluster.Read(ctx, r.Move); err != nil {
		return err
	}
	if r.plan, err = PlanOf(r.Move, r.before, r.Deciding); err != nil {
		return err
	}
	if disablesTLS(r.before.MeshConfig, r.Move.To) && !disablesTLS(r.before.MeshConfig, r.Move.From) && !r.plan.IsEmpty() {
		r.Lacks = append(slices.Clone(r.Lacks), mesh.Problem{
			Object: mesh.ObjectRef{Kind: "MeshConfig", Namespace: r.Cluster.MeshConfig.Namespace, Name: r.Cluster.MeshConfig.Name},
			Reason: "MTLSDisabled", Field: "spec.sidecar.sidecarDrivers", Message: fmt.Sprintf("mesh TLS is off for class %s: the pods would speak plaintext", r.Move.To),
		})
		r.result.Lacks = r.Lacks
	}
	r.result.Changes, r.result.Left = r.plan.Changes, r.plan.Left
	for namespace, reason := range r.plan.Kept {
		r.result.Namespaces = append(r.result.Namespaces, Left{"namespace " + namespace, reason})
	}
	r.machine = NewMachine(r.Limits, r.Traffic != nil, slices.Collect(maps.Keys(r.plan.Workloads)))
	r.judge = NewJudge(r.Limits, nil)
	r.report()
	return nil
}

// report writes the states of the workloads into the result.
func (r *run) report() {
	r.result.Workloads = nil
	for _, w := range r.before.Workloads {
		if image, ok := r.plan.Workloads[w.Key]; ok {
			state, reason := r.machine.State(w.Key)
			r.result.Workloads = append(r.result.Workloads, WorkloadResult{w.Key, len(w.Pods), image, state, reason})
		}
	}
	r.result.Measured = r.judge.Measured()
}

// execute changes the cluster until nothing is left to be done.
func (r *run) execute(ctx context.Context) error {
	if r.plan.IsEmpty() {
		return nil
	}
	if r.Traffic != nil {
		r.Progress("measuring the traffic before the move")
		report, err := r.Traffic(ctx)
		if err != nil {
			return fmt.Errorf("measuring the traffic before anything is changed: %w", err)
		}
		r.judge = NewJudge(r.Limits, Measures(report, r.namespaces()))
	}
	if err := r.change(ctx); err != nil {
		return errors.Join(err, r.goBackAll(ctx, err.Error()))
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	measurements := r.measure(ctx)
	r.answered, r.read = time.Now(), time.Now()
	var done time.Time
	for {
		if err := r.step(ctx, &done); err != nil {
			return err
		}
		if !done.IsZero() && (r.Traffic == nil || r.back != "" || r.good.After(done)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m := <-measurements:
			if err := r.take(ctx, m); err != nil {
				return err
			}
		case <-time.After(r.Interval):
		}
	}
}

func (r *run) namespaces() []string {
	var names []string
	for i := range r.before.Namespaces {
		names = append(names, r.before.Namespaces[i].Name)
	}
	return names
}

// change changes the MeshConfig and the namespaces. Those that keep their class come first.
func (r *run) change(ctx context.Context) error {
	for _, c := range r.plan.Changes {
		r.Progress("changing " + c.String())
	}
	for _, kept := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(r.plan.Namespaces)) {
			if _, keeps := r.plan.Kept[name]; keeps != kept {
				continue
			}
			if err := r.Cluster.setClass(ctx, name, classIn(r.plan.Namespaces[name].Annotations)); err != nil {
				return err
			}
		}
		if kept && r.plan.MeshConfig != nil {
			if err := r.Cluster.setDefault(ctx, r.plan.MeshConfig); err != nil {
				return err
			}
		}
	}
	return nil
}

// step looks at the workloads and does what the machine decides. It sets done when nothing is left.
func (r *run) step(ctx context.Context, done *time.Time) error {
	now := time.Now()
	reading, err := r.Cluster.Read(ctx, r.Move)
	switch {
	case err != nil && (ctx.Err() != nil || now.Sub(r.read) > blind):
		return err
	case err != nil:
		r.Progress(fmt.Sprintf("trying again: %v", err))
		return nil
	}
	r.read = now
	var all []Observed
	templates := make(map[Key]*Workload)
	for _, w := range reading.Workloads {
		if _, ok := r.plan.Workloads[w.Key]; ok {
			all = append(all, observe(w, r.Move))
			templates[w.Key] = w
		}
	}
	step := r.machine.Next(now, all, r.good)
	r.tell()
	for namespace, reason := range step.Return {
		if err := r.goBack(ctx, namespace, reason); err != nil {
			return err
		}
	}
	for _, key := range step.Restart {
		// Other workloads go on.
		if err := r.Cluster.restart(ctx, key, r.templateClass(templates[key]), now); err != nil {
			r.Progress(err.Error())
			r.machine.Refused(key, err)
		}
	}
	switch {
	case !step.Done || len(step.Return) > 0:
		*done = time.Time{}
	case done.IsZero():
		*done = now
	}
	return nil
}

// templateClass returns the class that the template of a workload is to name, or "" if it names
// none that is to be changed.
func (r *run) templateClass(w *Workload) string {
	from, to := r.Move.From, r.Move.To
	if state, _ := r.machine.State(w.Key); state == Returning {
		from, to = to, from
		i := slices.IndexFunc(r.before.Workloads, func(b *Workload) bool { return b.Key == w.Key })
		if i < 0 || classIn(r.before.Workloads[i].Template.Annotations) != to {
			return ""
		}
	}
	if classIn(w.Template.Annotations) != from {
		return ""
	}
	return to
}

// goBack changes a namespace back, and has it keep the former class if the mesh's is another one
// by now.
func (r *run) goBack(ctx context.Context, namespace, reason string) error {
	r.Progress(fmt.Sprintf("namespace %s goes back to class %s: %s", namespace, r.Move.From, reason))
	i := slices.IndexFunc(r.before.Namespaces, func(ns corev1.Namespace) bool { return ns.Name == namespace })
	class := classIn(r.before.Namespaces[i].Annotations)
	if r.back == "" {
		class = cmp.Or(class, r.Move.From)
		r.result.Namespaces = append(r.result.Namespaces, Left{"namespace " + namespace, reason})
	}
	return r.Cluster.setClass(ctx, namespace, class)
}

// goBackAll changes everything back.
func (r *run) goBackAll(ctx context.Context, reason string) error {
	r.back = reason
	r.Progress("going back: " + reason)
	if r.plan.MeshConfig != nil {
		if err := r.Cluster.setDefault(ctx, r.before.MeshConfig); err != nil {
			return err
		}
	}
	r.machine.ReturnAll(reason)
	for i := range r.before.Namespaces {
		ns := &r.before.Namespaces[i]
		_, is := r.machine.IsBack(ns.Name)
		if _, changed := r.plan.Namespaces[ns.Name]; !is && !changed {
			continue
		}
		if err := r.Cluster.setClass(ctx, ns.Name, classIn(ns.Annotations)); err != nil {
			return err
		}
	}
	return nil
}

// tell reports workloads whose state has changed.
func (r *run) tell() {
	counts := make(map[State]int)
	for key := range r.plan.Workloads {
		state, _ := r.machine.State(key)
		counts[state]++
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.plan.Workloads), Key.compare) {
		state, reason := r.machine.State(key)
		text := string(state)
		if state == Waiting && reason != "" || state == Stuck {
			text += ": " + reason
		}
		if r.said[key] == text || state == Waiting && reason == "" {
			continue
		}
		r.said[key] = text
		r.Progress(fmt.Sprintf("%s: %s (%d of %d moved)", key, text, counts[Moved], len(r.plan.Workloads)))
	}
}

// measurement is one of the traffic.
type measurement struct {
	begun    time.Time
	measures []Measure
	err      error
}

// measure measures the traffic until ctx ends, one window after the other.
func (r *run) measure(ctx context.Context) <-chan measurement {
	if r.Traffic == nil {
		return nil
	}
	measurements := make(chan measurement)
	go func() {
		for ctx.Err() == nil {
			m := measurement{begun: time.Now()}
			var report *traffic.Report
			if report, m.err = r.Traffic(ctx); m.err == nil {
				m.measures = Measures(report, r.namespaces())
			}
			select {
			case <-ctx.Done():
			case measurements <- m:
			}
			if m.err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(r.Interval):
				}
			}
		}
	}()
	return measurements
}

// take judges a measurement.
func (r *run) take(ctx context.Context, m measurement) error {
	switch {
	case r.back != "":
		return nil
	case m.err != nil && time.Since(r.answered) > blind:
		return r.goBackAll(ctx, fmt.Sprintf("the traffic could not be measured for %s: %v", blind, m.err))
	case m.err != nil:
		r.Progress(fmt.Sprintf("the traffic could not be measured: %v", m.err))
		return nil
	}
	r.answered = time.Now()
	if reason := r.judge.Add(m.measures); reason != "" {
		return r.goBackAll(ctx, reason)
	}
	if !r.judge.IsDoubtful() {
		r.good = m.begun
	}
	return nil
}

// conclude asks the pods, and sets the outcome.
func (r *run) conclude(ctx context.Context) error {
	until := time.Now().Add(r.Settle)
	for {
		reading, err := r.Cluster.Read(ctx, r.Move)
		if err != nil {
			return err
		}
		proxies, err := r.Proxies(ctx)
		r.result.Proof = prove(r.Move, podsOf(reading), proxies, r.plan.OldImages)
		if err != nil {
			r.result.Proof.Unproven = append(r.result.Proof.Unproven, Left{"controllers", err.Error()})
		}
		if r.back != "" || r.isProven() || time.Now().After(until) {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(r.Interval):
		}
	}
	r.result.Outcome, r.result.Reason = Complete, ""
	switch proof := r.result.Proof; {
	case r.back != "":
		r.result.Outcome, r.result.Reason = WentBack, r.back
	case !proof.IsComplete() || len(r.result.Left)+len(r.result.Namespaces) > 0:
		r.result.Outcome = Partly
		r.result.Reason = fmt.Sprintf("%d pods have a proxy of class %s, and %d do not say which one they have", len(proof.Old), r.Move.From, len(proof.Unproven))
	case r.isStuck():
		r.result.Outcome, r.result.Reason = Partly, "not all workloads were moved"
	}
	return nil
}

// isProven reports whether waiting would not improve the proof: what is old was left on purpose.
func (r *run) isProven() bool {
	return len(r.result.Proof.Unproven) == 0 && (len(r.result.Proof.Old) == 0 || len(r.result.Left)+len(r.result.Namespaces) > 0 || r.isStuck())
}

func (r *run) isStuck() bool {
	return slices.ContainsFunc(r.result.Workloads, func(w WorkloadResult) bool { return w.State == Stuck })
}

// podsOf returns all pods of a reading.
func podsOf(reading *Reading) []*corev1.Pod {
	pods := slices.Clone(reading.Others)
	for _, w := range reading.Workloads {
		pods = append(pods, w.Pods...)
	}
	return pods
}
