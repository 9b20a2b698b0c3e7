package rollout

import (
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
)

// phase names what a rollout is doing.
//
//	      received          installed          acked            5 s later
//	Idle ──────────▶ Checking ───────▶ Offered ─────▶ Probation ─────────▶ Idle
//	                     │ failed          │ rejected      │ ended
//	                     ▼                 ▼               ▼
//	                 RolledBack, or Quarantined if something else may be at fault
//
// The next version may be received in any phase but Checking. A version without changed
// live files, which the proxy would acknowledge, skips Offered; one without a reload skips
// Probation.
type phase string

const (
	idle        phase = "Idle"        // the good version is the latest, or there is none yet
	checking    phase = "Checking"    // the candidate is being written, checked and installed
	offered     phase = "Offered"     // the proxy has neither acknowledged nor rejected the offer
	probation   phase = "Probation"   // the good version is rolled back if the proxy exits
	rolledBack  phase = "RolledBack"  // the good version is in use but not the latest
	quarantined phase = "Quarantined" // as RolledBack, until the refused version is tried again
)

// rollout is the state of delivering versions of the driver's files to the proxy. Only step
// changes it, without a clock and without I/O.
type rollout struct {
	live    livePrefix
	timings kit.Timings

	now time.Time // the time of the latest event
	// good is the last version that the proxy acknowledged, candidate the one being checked,
	// offer the one given to the proxy but not acknowledged yet, and stored the one in the
	// folder. Each is nil if there is none.
	good, candidate, offer, stored *version
	storedAt                       time.Time // when a version was last written to the folder
	// deadline is until when no version but the offer is requested; zero once it has passed.
	// If the offer needed a reload, a rejection before the deadline may come from the process
	// before the reload: it is kept as the objection and takes effect at the deadline.
	deadline  time.Time
	reloaded  bool
	objection error
	watch     *watch           // nil if no version is on probation
	refused   []refusedVersion // must not be sent again; the latest last
	backoff   kit.Backoff      // of quarantines
	actions   []action         // the actions of the latest event
}

// watch is a probation: if the process exits before until, or any rejects the version, it is
// refused and the one before becomes the good version again.
type watch struct {
	version, before *version
	// process is nil if none was ready when the version was installed.
	process *process.Child
	until   time.Time
}

// refusedVersion is a version that must not be sent again before until, or if that is zero
// before another version is good.
type refusedVersion struct {
	name  string
	until time.Time
}

// maxRefused is how many refused versions are remembered.
const maxRefused = 4

// event is something that happened.
type event struct {
	kind    eventKind
	at      time.Time
	version *version
	process *process.Child
	err     error
}

type eventKind string

const (
	started     eventKind = "started"      // the folder holds the version of an earlier agent
	received    eventKind = "received"     // the repository sent the version
	passed      eventKind = "passed"       // the candidate is written and passed the check
	failed      eventKind = "failed"       // the candidate failed the check
	unchecked   eventKind = "unchecked"    // the candidate could not be written, checked or installed
	installed   eventKind = "installed"    // the candidate is installed; a process known to be ready reloaded it
	notReloaded eventKind = "not reloaded" // the candidate is installed, but the reload failed
	acked       eventKind = "acked"        // the proxy uses the live files it is served
	rejected    eventKind = "rejected"     // the proxy cannot use the live files it is served
	ended       eventKind = "ended"        // the process exited
	killed      eventKind = "killed"       // the process was killed, but not by the agent
	stored      eventKind = "stored"       // the folder holds the version
	tick        eventKind = "tick"         // time has passed
)

// action is a task for the follower. Some result in an event.
type action struct {
	kind    actionKind
	version *version
	reload  bool
	err     error
}

type actionKind string

const (
	doCheck   actionKind = "check"   // write the version and check it: passed, failed or unchecked
	doInstall actionKind = "install" // install it, with or without a reload: installed, notReloaded or unchecked
	doServe   actionKind = "serve"   // serve its live files to the proxy
	doRestore actionKind = "restore" // write it to the folder, reload and serve: stored
	doStore   actionKind = "store"   // write it to the folder for the next start: stored
	doPoll    actionKind = "poll"    // ask the repository for the version after the good one
	doRetry   actionKind = "retry"   // ask it for the version again, after a pause
	doRefuse  actionKind = "refuse"  // report that the version is refused
	doReport  actionKind = "report"  // report an error of a version that stays in use
)

// step returns the state after an event and the actions to take, in order.
func step(s rollout, e event) (rollout, []action) {
	s.now, s.actions = e.at, nil
	if s.watch != nil && !s.now.Before(s.watch.until) {
		s.watch = nil
	}
	switch phase := s.phase(); e.kind {
	case started:
		s.stored = e.version
		s.offerVersion(e.version)
	case received:
		s.candidate = e.version
		if s.stored == nil || s.changesCode(e.version) {
			s.do(action{kind: doCheck, version: e.version})
		} else {
			s.do(action{kind: doInstall, version: e.version})
		}
	case passed:
		s.do(action{kind: doInstall, version: s.candidate, reload: s.stored != nil && s.changesCode(s.candidate)})
	case failed:
		s.refuse(s.candidate, e.err, false)
		s.candidate = nil
		s.do(action{kind: doPoll})
	case unchecked:
		s.do(action{kind: doRetry, version: s.candidate, err: e.err})
		s.candidate = nil
	case installed:
		s.install(e.process)
	case notReloaded:
		v := s.candidate
		s.candidate, s.watch, s.stored = nil, nil, v
		s.rollBack(v, e.err, true)
	case acked:
		if phase == offered {
			s.accept()
		}
	case rejected:
		switch {
		case phase == offered && s.reloaded && s.now.Before(s.deadline):
			s.objection = e.err
		case phase == offered:
			s.rollBack(s.offer, e.err, false)
		case phase == probation && s.watch.version == s.good && s.watch.before != nil:
			s.rollBack(s.good, e.err, false)
		case s.good != nil:
			// The rejection comes from a process started later; there is no version to return to.
			s.do(action{kind: doReport, version: s.good, err: e.err})
		}
	case ended, killed:
		if s.watch != nil && s.watch.process != nil && s.watch.process == e.process {
			s.rollBack(s.watch.version, e.err, e.kind == killed)
		}
	case stored:
		s.stored = e.version
	}
	s.elapse()
	return s, s.actions
}

// phase derives the phase from the other fields, so that it cannot contradict them.
func (s *rollout) phase() phase {
	switch {
	case s.candidate != nil:
		return checking
	case s.offer != nil:
		return offered
	case s.watch != nil:
		return probation
	case slices.ContainsFunc(s.refused, func(r refusedVersion) bool { return !r.until.IsZero() }):
		return quarantined
	case len(s.refused) > 0:
		return rolledBack
	}
	return idle
}

// due returns the times at which step needs a tick. Zero times are to be ignored.
func (s *rollout) due() []time.Time {
	_, store := s.unstored()
	due := []time.Time{s.deadline, store}
	if s.watch != nil {
		due = append(due, s.watch.until)
	}
	for _, r := range s.refused {
		due = append(due, r.until)
	}
	return due
}

// others returns the names of the versions, besides the good one, that the repository must
// not send.
func (s *rollout) others() []string {
	var others []string
	for _, r := range s.refused {
		others = append(others, r.name)
	}
	if s.offer != nil {
		others = append(others, s.offer.name)
	}
	return others
}

func (s *rollout) do(a action) { s.actions = append(s.actions, a) }

// changesCode reports whether a version differs from the folder in files that are not live.
func (s *rollout) changesCode(v *version) bool {
	_, code := s.live.differ(v, s.stored)
	return code
}

// install offers the installed candidate, and puts it on probation with the process that has
// reloaded it. One that was not known to be ready may end for other reasons, but may reject it.
func (s *rollout) install(process *process.Child) {
	v := s.candidate
	s.candidate, s.reloaded = nil, s.changesCode(v)
	if s.reloaded {
		before := s.good
		if s.watch != nil {
			// A version on probation is not proven; return to the one before it.
			before = s.watch.before
		}
		s.watch = nil
		if process != nil || before != nil {
			s.watch = &watch{v, before, process, s.now.Add(s.timings.Probation)}
		}
	}
	if s.reloaded || s.stored == nil {
		s.stored, s.storedAt = v, s.now
	}
	s.deadline = s.now.Add(s.timings.Ack)
	s.offerVersion(v)
}

// offerVersion serves a version. If its live files are those of the good one, the proxy has
// nothing to acknowledge and the version is accepted at once.
func (s *rollout) offerVersion(v *version) {
	s.offer = v
	s.do(action{kind: doServe, version: v})
	if live, _ := s.live.differ(v, s.good); !live {
		s.accept()
	}
}

// accept makes the offer the good version.
func (s *rollout) accept() {
	s.good, s.offer, s.deadline, s.objection, s.refused = s.offer, nil, time.Time{}, nil, nil
	s.backoff.Reset()
	s.do(action{kind: doPoll})
}

// rollBack refuses a version that the proxy was given, withdraws the offer, which may build
// on it, and returns to the last good version.
func (s *rollout) rollBack(v *version, err error, retry bool) {
	s.refuse(v, err, retry)
	s.offer, s.deadline, s.objection = nil, time.Time{}, nil
	if s.watch != nil && s.watch.version == v {
		s.good, s.watch = s.watch.before, nil
	}
	switch {
	case s.good == nil:
	case s.changesCode(s.good):
		s.storedAt = s.now
		s.do(action{kind: doRestore, version: s.good})
	default:
		s.do(action{kind: doServe, version: s.good})
	}
	s.do(action{kind: doPoll})
}

// refuse refuses a version: with retry for a quarantine, otherwise until another version is
// good.
func (s *rollout) refuse(v *version, err error, retry bool) {
	s.do(action{kind: doRefuse, version: v, err: err})
	r := refusedVersion{name: v.name}
	if retry {
		r.until = s.now.Add(s.backoff.Next())
	}
	s.refused = append(slices.Clip(s.refused[max(len(s.refused)-maxRefused+1, 0):]), r)
}

// unstored returns the version that should be written to the folder, if it differs from the
// stored one, and when to write it. Writes of live files are delayed, because they change
// often and only the next start needs them in the folder.
func (s *rollout) unstored() (*version, time.Time) {
	v := s.good
	if s.offer != nil {
		// A proxy that did not answer before the deadline has not rejected the offer.
		v = s.offer
	}
	if v == nil || s.candidate != nil || !s.deadline.IsZero() || s.stored.name == v.name {
		return nil, time.Time{}
	}
	return v, s.storedAt.Add(s.timings.Store)
}

// elapse handles deadlines that have passed.
func (s *rollout) elapse() {
	over := func(t time.Time) bool { return !t.IsZero() && !s.now.Before(t) }
	left := slices.DeleteFunc(slices.Clone(s.refused), func(r refusedVersion) bool { return over(r.until) })
	if len(left) < len(s.refused) {
		s.refused = left
		if s.deadline.IsZero() {
			s.do(action{kind: doPoll})
		}
	}
	if over(s.deadline) {
		s.deadline = time.Time{}
		if s.objection != nil {
			s.rollBack(s.offer, s.objection, false)
		} else {
			s.do(action{kind: doPoll})
		}
	}
	if v, due := s.unstored(); over(due) {
		s.storedAt = s.now
		s.do(action{kind: doStore, version: v})
	}
}
