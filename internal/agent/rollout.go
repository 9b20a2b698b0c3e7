package agent

import (
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// phase names what a rollout is doing.
//
//	      received          installed          acked            5 s later
//	Idle ──────────▶ Checking ───────▶ Offered ─────▶ Probation ─────────▶ Idle
//	                     │ failed          │ rejected      │ ended
//	                     ▼                 ▼               ▼
//	                 RolledBack, or Quarantined if something else may be at fault
//
// The next version may be received in any phase but Checking. A version that changes
// nothing that the proxy acknowledges skips Offered, one without a reload Probation.
type phase string

const (
	idle        phase = "Idle"        // the good version is the latest, or there is none yet
	checking    phase = "Checking"    // the candidate is being written, checked and installed
	offered     phase = "Offered"     // the proxy has neither acknowledged nor rejected the offer
	probation   phase = "Probation"   // the good version is rolled back if the proxy ends
	rolledBack  phase = "RolledBack"  // the good version is in use, and not the latest
	quarantined phase = "Quarantined" // as RolledBack, until the refused version is tried again
)

// rollout is the state of bringing versions of the driver's files to the proxy. It is a
// value that only step changes, without a clock and without I/O.
type rollout struct {
	live   livePrefix
	checks bool // the driver has a command that checks versions
	pace   pace

	now time.Time // when the latest event happened
	// good is the last version that the proxy has acknowledged, candidate the one that is
	// being checked, and offer the one that the proxy was given since. Stored is the one in
	// the folder. Each is nil if there is none.
	good, candidate, offer, stored *version
	storedAt                       time.Time // when one was last written to the folder
	// deadline ends the time in which only the offer counts; zero if it has ended. If the
	// offer needed a reload, a rejection in this time may come from the program before: it
	// is the objection, and counts at the deadline.
	deadline  time.Time
	reloaded  bool
	objection error
	watch     *watch           // nil if no process is on probation
	refused   []refusedVersion // not wanted again, the latest last
	backoff   backoff          // of quarantines
	actions   []action         // what follows from the latest event
}

// version is a version of the repository's files.
type version struct {
	name string
	set  mirror.Set
}

// String returns the version's name, which is empty for nil.
func (v *version) String() string {
	if v == nil {
		return ""
	}
	return v.name
}

// files returns the version's files, none for nil.
func (v *version) files() mirror.Set {
	if v == nil {
		return mirror.Set{}
	}
	return v.set
}

// watch is a process on probation: if it ends before until, the version that it reloaded
// is refused, and the one before is good again.
type watch struct {
	version, before *version
	process         *child
	until           time.Time
}

// refusedVersion is not wanted until that time, or if it is zero until another version
// is good.
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
	process *child
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
	notReloaded eventKind = "not reloaded" // the candidate is installed, and reloading it failed
	acked       eventKind = "acked"        // the proxy uses the live files it is served
	rejected    eventKind = "rejected"     // the proxy cannot use the live files it is served
	ended       eventKind = "ended"        // the process ended
	killed      eventKind = "killed"       // the process was killed, and not by the agent
	stored      eventKind = "stored"       // the folder holds the version
	tick        eventKind = "tick"         // time has passed
)

// action is something for the follower to do. Some result in an event.
type action struct {
	kind    actionKind
	version *version
	reload  bool
	err     error
}

type actionKind string

const (
	doCheck   actionKind = "check"   // write the version and check it: passed, failed or unchecked
	doInstall actionKind = "install" // install it, with a reload or without: installed, notReloaded or unchecked
	doServe   actionKind = "serve"   // serve its live files to the proxy
	doRestore actionKind = "restore" // write it to the folder, reload and serve: stored
	doStore   actionKind = "store"   // write it to the folder for the next start: stored
	doPoll    actionKind = "poll"    // ask the repository for what comes after the good version
	doRetry   actionKind = "retry"   // ask it for the version again, after a pause
	doRefuse  actionKind = "refuse"  // report that the version is given up
	doReport  actionKind = "report"  // report an error of a version that stays in use
)

// step returns the state after an event, and what is to be done about it, in order.
func step(s rollout, e event) (rollout, []action) {
	s.now, s.actions = e.at, nil
	if s.watch != nil && !s.now.Before(s.watch.until) {
		s.watch = nil
	}
	switch phase := s.phase(); e.kind {
	case started:
		s.stored = e.version
		s.give(e.version)
	case received:
		s.candidate = e.version
		if code := s.changesCode(e.version); code || s.stored == nil || s.checks {
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
			// It is a process that started later, and there is nothing better for it.
			s.do(action{kind: doReport, version: s.good, err: e.err})
		}
	case ended, killed:
		if s.watch != nil && s.watch.process == e.process {
			s.rollBack(s.watch.version, e.err, e.kind == killed)
		}
	case stored:
		s.stored = e.version
	}
	s.elapse()
	return s, s.actions
}

// phase follows from the other fields, so that it cannot contradict them.
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

// due returns the times at which step wants a tick. Zero ones are none.
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

// others returns the versions, beside the good one, that the repository need not send.
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

// changesCode reports whether a version differs from the folder in more than live files.
func (s *rollout) changesCode(v *version) bool {
	_, code := s.live.differ(v, s.stored)
	return code
}

// install offers the installed candidate. If a process has reloaded it, that is on
// probation.
func (s *rollout) install(process *child) {
	v := s.candidate
	s.candidate, s.reloaded = nil, s.changesCode(v)
	if s.reloaded {
		before := s.good
		if s.watch != nil {
			// A version on probation is nothing to return to.
			before = s.watch.before
		}
		s.watch = nil
		if process != nil {
			s.watch = &watch{v, before, process, s.now.Add(s.pace.probation)}
		}
	}
	if s.reloaded || s.stored == nil || s.checks {
		s.stored, s.storedAt = v, s.now
	}
	s.deadline = s.now.Add(s.pace.take)
	s.give(v)
}

// give has a version served. The proxy acknowledges it if its live files are others than
// those of the good one.
func (s *rollout) give(v *version) {
	s.offer = v
	s.do(action{kind: doServe, version: v})
	if live, _ := s.live.differ(v, s.good); !live {
		s.accept()
	}
}

// accept makes the offer the good version.
func (s *rollout) accept() {
	s.good, s.offer, s.deadline, s.objection, s.refused = s.offer, nil, time.Time{}, nil, nil
	s.backoff.reset()
	s.do(action{kind: doPoll})
}

// rollBack refuses a version that the proxy was given, and with it the offer, which may
// build on it, and brings back the last good one.
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

// refuse gives up a version, for the time of a quarantine if it is to be tried again.
func (s *rollout) refuse(v *version, err error, retry bool) {
	s.do(action{kind: doRefuse, version: v, err: err})
	r := refusedVersion{name: v.name}
	if retry {
		r.until = s.now.Add(s.backoff.next())
	}
	s.refused = append(slices.Clip(s.refused[max(len(s.refused)-maxRefused+1, 0):]), r)
}

// unstored returns the version that the folder should hold and does not, and when to
// write it: versions of live files change often, and only the next start needs them there.
func (s *rollout) unstored() (*version, time.Time) {
	v := s.good
	if s.offer != nil {
		// A proxy that is silent does not reject.
		v = s.offer
	}
	if v == nil || s.candidate != nil || !s.deadline.IsZero() || s.stored.name == v.name {
		return nil, time.Time{}
	}
	return v, s.storedAt.Add(s.pace.keep)
}

// elapse does what is due by now.
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
