package rollout

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
)

// testVersion returns the version with a name such as a1: a letter for the code, which needs
// a reload, and a number for the live files. The letter _ means no code; without a number
// there are no live files.
func testVersion(t testing.TB, name string) *version {
	if name == "" {
		return nil
	}
	var files []string
	if name[:1] != "_" {
		files = append(files, "code", name[:1])
	}
	if name[1:] != "" {
		files = append(files, "live/n", name[1:])
	}
	return &version{name: name, set: setOf(t, files...)}
}

// parseRollout parses a state in the format of describe.
func parseRollout(t testing.TB, text string, process *process.Child) rollout {
	s := rollout{live: "live/", timings: kit.DefaultTimings, backoff: kit.DefaultTimings.Quarantine, now: rolloutTime, storedAt: rolloutTime}
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		var after time.Duration
		value, delay, ok := strings.Cut(value, "@")
		if ok {
			var err error
			if after, err = time.ParseDuration(delay); err != nil {
				t.Fatal(err)
			}
		}
		switch name {
		case "good":
			s.good = testVersion(t, value)
		case "candidate":
			s.candidate = testVersion(t, value)
		case "offer":
			s.offer = testVersion(t, value)
			if ok {
				s.deadline = rolloutTime.Add(after)
			}
		case "stored":
			s.stored = testVersion(t, value)
		case "reloaded":
			s.reloaded = true
		case "objection":
			s.objection = errors.New("no")
		case "watch":
			of, before, _ := strings.Cut(value, "/")
			s.watch = &watch{testVersion(t, of), testVersion(t, before), process, rolloutTime.Add(after)}
		case "refused":
			r := refusedVersion{name: value}
			if ok {
				r.until = rolloutTime.Add(after)
			}
			s.refused = append(s.refused, r)
		default:
			t.Fatalf("unknown field %q", field)
		}
	}
	// Versions are compared by pointer.
	if s.watch != nil && s.good != nil && s.watch.version.name == s.good.name {
		s.watch.version = s.good
	}
	if s.watch != nil && s.offer != nil && s.watch.version.name == s.offer.name {
		s.watch.version = s.offer
	}
	return s
}

// rolloutTime is the time of the event before the one under test.
var rolloutTime = time.Unix(1_000_000, 0)

// describe writes a state: versions by name, times relative to rolloutTime.
func describe(s rollout) string {
	fields := []string{string(s.phase())}
	field := func(name string, v *version, at time.Time) {
		text := name + "=" + v.String()
		if !at.IsZero() {
			text += "@" + at.Sub(rolloutTime).String()
		}
		fields = append(fields, text)
	}
	storedAt := s.storedAt
	if storedAt.Equal(rolloutTime) {
		storedAt = time.Time{}
	}
	for _, f := range []struct {
		name string
		v    *version
		at   time.Time
	}{{"good", s.good, time.Time{}}, {"candidate", s.candidate, time.Time{}}, {"offer", s.offer, s.deadline}, {"stored", s.stored, storedAt}} {
		if f.v != nil {
			field(f.name, f.v, f.at)
		}
	}
	if s.offer == nil && !s.deadline.IsZero() {
		fields = append(fields, "deadline without an offer")
	}
	if s.offer != nil && s.reloaded {
		fields = append(fields, "reloaded")
	}
	if s.objection != nil {
		fields = append(fields, "objection")
	}
	if w := s.watch; w != nil {
		field("watch", &version{name: w.version.String() + "/" + w.before.String()}, w.until)
	}
	for _, r := range s.refused {
		field("refused", &version{name: r.name}, r.until)
	}
	return strings.Join(fields, " ")
}

// describeActions writes actions such as "refuse a2: no; poll".
func describeActions(actions []action) string {
	var texts []string
	for _, a := range actions {
		text := strings.TrimSpace(string(a.kind) + " " + a.version.String())
		if a.reload {
			text += " with reload"
		}
		if a.err != nil {
			text += ": " + a.err.Error()
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// transitions are all transitions: any other event in a phase changes nothing, as
// TestOtherEvents checks.
var transitions = []struct {
	name string
	// from is a state; event happens a second later unless it gives a time.
	from, event string
	to, actions string
}{
	{"an earlier agent left live files", "", "started a1",
		"Offered offer=a1 stored=a1", "serve a1"},
	{"an earlier agent left no live files", "", "started a",
		"Idle good=a stored=a", "serve a; poll"},

	{"the first version", "", "received a1",
		"Checking candidate=a1", "check a1"},
	{"new code", "good=a1 stored=a1", "received b1",
		"Checking good=a1 candidate=b1 stored=a1", "check b1"},
	{"live files", "good=a1 stored=a1", "received a2",
		"Checking good=a1 candidate=a2 stored=a1", "install a2"},
	{"a version while the proxy is silent", "good=a1 offer=a2 stored=a2", "received a3",
		"Checking good=a1 candidate=a3 offer=a2 stored=a2", "install a3"},
	{"a version before live files are stored", "good=a2 stored=a1", "received b1",
		"Checking good=a2 candidate=b1 stored=a1", "check b1"},
	{"the first version has no code", "", "received _1",
		"Checking candidate=_1", "check _1"},
	{"a version during probation", "good=b1 stored=b1 watch=b1/a1@5s", "received b2",
		"Checking good=b1 candidate=b2 stored=b1 watch=b1/a1@5s", "install b2"},
	{"a version after a rollback", "good=a1 stored=a1 refused=a2", "received a3",
		"Checking good=a1 candidate=a3 stored=a1 refused=a2", "install a3"},
	{"a version during a quarantine", "good=a1 stored=a1 refused=b1@5s", "received a3",
		"Checking good=a1 candidate=a3 stored=a1 refused=b1@5s", "install a3"},

	{"the first version passes", "candidate=a1", "passed",
		"Checking candidate=a1", "install a1"},
	{"new code passes", "good=a1 candidate=b1 stored=a1", "passed",
		"Checking good=a1 candidate=b1 stored=a1", "install b1 with reload"},

	{"the first version fails", "candidate=a1", "failed: no",
		"RolledBack refused=a1", "refuse a1: no; poll"},
	{"a later version fails", "good=a1 candidate=b1 stored=a1", "failed: no",
		"RolledBack good=a1 stored=a1 refused=b1", "refuse b1: no; poll"},
	{"a version fails while the proxy is silent", "good=a1 candidate=b1 offer=a2 stored=a2", "failed: no",
		"Offered good=a1 offer=a2 stored=a2 refused=b1", "refuse b1: no; poll"},
	{"a version fails during probation", "good=b1 candidate=c1 stored=b1 watch=b1/a1@5s", "failed: no",
		"Probation good=b1 stored=b1 watch=b1/a1@5s refused=c1", "refuse c1: no; poll"},
	{"a version fails during a quarantine", "good=a1 candidate=c1 stored=a1 refused=b1@5s", "failed: no",
		"Quarantined good=a1 stored=a1 refused=b1@5s refused=c1", "refuse c1: no; poll"},
	{"a fifth version fails", "good=a1 candidate=f1 stored=a1 refused=b1 refused=c1 refused=d1 refused=e1", "failed: no",
		"RolledBack good=a1 stored=a1 refused=c1 refused=d1 refused=e1 refused=f1", "refuse f1: no; poll"},

	{"the folder is full", "good=a1 candidate=b1 stored=a1", "unchecked: full",
		"Idle good=a1 stored=a1", "retry b1: full"},

	{"the first version is installed", "candidate=a1", "installed",
		"Offered offer=a1@3s stored=a1@1s reloaded", "serve a1"},
	{"the first version without code is installed", "candidate=_1", "installed",
		"Offered offer=_1@3s stored=_1@1s", "serve _1"},
	{"live files are installed", "good=a1 candidate=a2 stored=a1", "installed",
		"Offered good=a1 offer=a2@3s stored=a1", "serve a2"},
	{"live files are installed during probation", "good=b1 candidate=b2 stored=b1 watch=b1/a1@5s", "installed",
		"Offered good=b1 offer=b2@3s stored=b1 watch=b1/a1@5s", "serve b2"},
	{"new code and live files are reloaded", "good=a1 candidate=b2 stored=a1", "installed by the process",
		"Offered good=a1 offer=b2@3s stored=b2@1s reloaded watch=b2/a1@6s", "serve b2"},
	{"new code is reloaded", "good=a1 candidate=b1 stored=a1 refused=c1", "installed by the process",
		"Probation good=b1 stored=b1@1s watch=b1/a1@6s", "serve b1; poll"},
	{"new code is reloaded by a process that was not ready", "good=a1 candidate=b1 stored=a1", "installed",
		"Probation good=b1 stored=b1@1s watch=b1/a1@6s", "serve b1; poll"},
	{"new code is reloaded during probation", "good=b1 candidate=c1 stored=b1 watch=b1/a1@5s", "installed by the process",
		"Probation good=c1 stored=c1@1s watch=c1/a1@6s", "serve c1; poll"},
	{"new code is reloaded during probation by a process that was not ready", "good=b1 candidate=c1 stored=b1 watch=b1/a1@5s", "installed",
		"Probation good=c1 stored=c1@1s watch=c1/a1@6s", "serve c1; poll"},
	{"new code is reloaded after probation", "good=b1 candidate=c1 stored=b1 watch=b1/a1@1s", "installed by the process",
		"Probation good=c1 stored=c1@1s watch=c1/b1@6s", "serve c1; poll"},

	{"the reload fails", "good=a1 candidate=b1 stored=a1", "not reloaded: no",
		"Quarantined good=a1 stored=b1@1s refused=b1@6s", "refuse b1: no; restore a1; poll"},
	{"the reload fails while the proxy is silent", "candidate=b1 offer=a1 stored=a1", "not reloaded: no",
		"Quarantined stored=b1 refused=b1@6s", "refuse b1: no; poll"},
	{"the reload fails during probation", "good=b1 candidate=c1 stored=b1 watch=b1/a1@5s", "not reloaded: no",
		"Quarantined good=b1 stored=c1@1s refused=c1@6s", "refuse c1: no; restore b1; poll"},

	{"the proxy acknowledges", "good=a1 offer=a2@2s stored=a2 refused=a3", "acked",
		"Idle good=a2 stored=a2", "poll"},
	{"the proxy acknowledges late", "good=a1 offer=a2 stored=a2", "acked",
		"Idle good=a2 stored=a2", "poll"},
	{"the proxy acknowledges new code", "good=a1 offer=b2@2s stored=b2 reloaded watch=b2/a1@5s", "acked",
		"Probation good=b2 stored=b2 watch=b2/a1@5s", "poll"},
	{"the program before objected", "good=a1 offer=b2@2s stored=b2 reloaded objection", "acked",
		"Idle good=b2 stored=b2", "poll"},

	{"the proxy rejects live files", "good=a1 offer=a2@2s stored=a1", "rejected: no",
		"RolledBack good=a1 stored=a1 refused=a2", "refuse a2: no; serve a1; poll"},
	{"the proxy rejects the first version", "offer=a1 stored=a1", "rejected: no",
		"RolledBack stored=a1 refused=a1", "refuse a1: no; poll"},
	{"the proxy rejects live files during probation", "good=b1 offer=b2@2s stored=b1 watch=b1/a1@5s", "rejected: no",
		"Probation good=b1 stored=b1 watch=b1/a1@5s refused=b2", "refuse b2: no; serve b1; poll"},
	{"the program before may reject new code", "good=a1 offer=b2@2s stored=b2 reloaded", "rejected: no",
		"Offered good=a1 offer=b2@2s stored=b2 reloaded objection", ""},
	{"the proxy rejects new code late", "good=a1 offer=b2 stored=b2 reloaded", "rejected: no",
		"RolledBack good=a1 stored=b2@1s refused=b2", "refuse b2: no; restore a1; poll"},
	{"the proxy rejects what it runs on probation", "good=b1 stored=b1 watch=b1/a1@5s", "rejected: no",
		"RolledBack good=a1 stored=b1@1s refused=b1", "refuse b1: no; restore a1; poll"},
	{"the proxy rejects the first code on probation", "good=b1 stored=b1 watch=b1/@5s", "rejected: no",
		"Probation good=b1 stored=b1 watch=b1/@5s", "report b1: no"},
	{"the proxy rejects what came after the code on probation", "good=b2 stored=b2 watch=b1/a1@5s", "rejected: no",
		"Probation good=b2 stored=b2 watch=b1/a1@5s", "report b2: no"},
	{"another process rejects the good version", "good=a1 stored=a1", "rejected: no",
		"Idle good=a1 stored=a1", "report a1: no"},
	{"another process rejects the good version after a rollback", "good=a1 stored=a1 refused=a2", "rejected: no",
		"RolledBack good=a1 stored=a1 refused=a2", "report a1: no"},
	{"another process rejects the good version during a quarantine", "good=a1 stored=a1 refused=b1@5s", "rejected: no",
		"Quarantined good=a1 stored=a1 refused=b1@5s", "report a1: no"},

	{"the process on probation ends", "good=b1 stored=b1 watch=b1/a1@5s", "the process ended: exit code 9",
		"RolledBack good=a1 stored=b1@1s refused=b1", "refuse b1: exit code 9; restore a1; poll"},
	{"the process on probation is killed", "good=b1 stored=b1 watch=b1/a1@5s", "the process killed: KILL",
		"Quarantined good=a1 stored=b1@1s refused=b1@6s", "refuse b1: KILL; restore a1; poll"},
	{"the process ends before it acknowledges", "good=a1 offer=b2@2s stored=b2 reloaded watch=b2/a1@5s", "the process ended: exit code 9",
		"RolledBack good=a1 stored=b2@1s refused=b2", "refuse b2: exit code 9; restore a1; poll"},
	{"the process is killed before it acknowledges", "good=a1 offer=b2@2s stored=b2 reloaded watch=b2/a1@5s", "the process killed: KILL",
		"Quarantined good=a1 stored=b2@1s refused=b2@6s", "refuse b2: KILL; restore a1; poll"},
	{"the process ends at what came after its code", "good=b1 offer=b2@2s stored=b1 watch=b1/a1@5s", "the process ended: exit code 9",
		"RolledBack good=a1 stored=b1@1s refused=b1", "refuse b1: exit code 9; restore a1; poll"},
	{"the process ends and no version was good", "good=b1 stored=b1 watch=b1/@5s", "the process ended: exit code 9",
		"RolledBack stored=b1 refused=b1", "refuse b1: exit code 9; poll"},
	{"another process ends", "good=b1 stored=b1 watch=b1/a1@5s", "ended: exit code 9",
		"Probation good=b1 stored=b1 watch=b1/a1@5s", ""},
	{"the process ends after its probation", "good=b1 stored=b1 watch=b1/a1@1s", "the process ended: exit code 9",
		"Idle good=b1 stored=b1", ""},

	{"the good version is restored", "good=a1 stored=b1 refused=b1", "stored a1",
		"RolledBack good=a1 stored=a1 refused=b1", ""},
	{"the good version is restored for a quarantine", "good=a1 stored=b1 refused=b1@5s", "stored a1",
		"Quarantined good=a1 stored=a1 refused=b1@5s", ""},
	{"live files are stored", "good=a2 stored=a1", "stored a2",
		"Idle good=a2 stored=a2", ""},
	{"live files are stored while the proxy is silent", "good=a1 offer=a2 stored=a1", "stored a2",
		"Offered good=a1 offer=a2 stored=a2", ""},
	{"live files are stored during probation", "good=b2 stored=b1 watch=b1/a1@5s", "stored b2",
		"Probation good=b2 stored=b2 watch=b1/a1@5s", ""},

	{"the proxy is silent", "good=a1 offer=a2@1s stored=a2", "tick",
		"Offered good=a1 offer=a2 stored=a2", "poll"},
	{"the proxy does not change its mind", "good=a1 offer=b2@1s stored=b2 reloaded objection", "tick",
		"RolledBack good=a1 stored=b2@1s refused=b2", "refuse b2: no; restore a1; poll"},
	{"probation ends", "good=b1 stored=b1 watch=b1/a1@1s", "tick",
		"Idle good=b1 stored=b1", ""},
	{"a quarantine ends", "good=a1 stored=a1 refused=b1@1s", "tick",
		"Idle good=a1 stored=a1", "poll"},
	{"one of two quarantines ends", "good=a1 stored=a1 refused=b1@1s refused=c1@5s", "tick",
		"Quarantined good=a1 stored=a1 refused=c1@5s", "poll"},
	{"a quarantine ends beside a refused version", "good=a1 stored=a1 refused=b1@1s refused=c1", "tick",
		"RolledBack good=a1 stored=a1 refused=c1", "poll"},
	{"a quarantine ends during probation", "good=c1 stored=c1 watch=c1/a1@5s refused=b1@1s", "tick",
		"Probation good=c1 stored=c1 watch=c1/a1@5s", "poll"},
	{"a quarantine ends before the proxy acknowledges", "good=a1 offer=a2@5s stored=a1 refused=b1@1s", "tick",
		"Offered good=a1 offer=a2@5s stored=a1", ""},
	{"it is time to store live files", "good=a2 stored=a1", "tick",
		"Idle good=a2 stored=a1@1s", "store a2"},
	{"it is time to store live files that the proxy does not reject", "good=a1 offer=a2 stored=a1", "tick",
		"Offered good=a1 offer=a2 stored=a1@1s", "store a2"},
}

// parseEvent parses an event such as "installed by the process" or "failed: no", which
// happens a second after rolloutTime.
func parseEvent(t testing.TB, text string, process *process.Child) event {
	e := event{at: rolloutTime.Add(time.Second)}
	text, reason, ok := strings.Cut(text, ": ")
	if ok {
		e.err = errors.New(reason)
	}
	for _, of := range []string{"the process ", " by the process"} {
		if strings.Contains(text, of) {
			text, e.process = strings.Replace(text, of, "", 1), process
		}
	}
	for _, kind := range eventKinds {
		if rest, ok := strings.CutPrefix(text, string(kind)); ok {
			e.kind, e.version = kind, testVersion(t, strings.TrimSpace(rest))
			return e
		}
	}
	t.Fatalf("unknown event %q", text)
	return e
}

var eventKinds = []eventKind{started, received, passed, failed, unchecked, installed, notReloaded, acked, rejected, ended, killed, stored, tick}

func TestTransitions(t *testing.T) {
	process := new(process.Child)
	for _, tt := range transitions {
		t.Run(tt.name, func(t *testing.T) {
			to, actions := step(parseRollout(t, tt.from, process), parseEvent(t, tt.event, process))
			got := []string{describe(to), describeActions(actions)}
			if diff := cmp.Diff([]string{tt.to, tt.actions}, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", tt.from, tt.event, diff)
			}
		})
	}
}

// TestOtherEvents tests, for each phase, the events without a row in transitions.
func TestOtherEvents(t *testing.T) {
	running := new(process.Child)
	states := make(map[phase]string)
	known := make(map[string]bool)
	for _, tt := range transitions {
		s := parseRollout(t, tt.from, running)
		p := s.phase()
		known[fmt.Sprint(p, parseEvent(t, tt.event, running).kind)] = true
		if states[p] == "" && s.good != nil && s.stored.name == s.good.name {
			states[p] = tt.from
		}
	}
	// The follower executes actions before it handles the next event, so results of actions
	// are the only events in Checking and do not occur in any other phase.
	delete(states, checking)
	for p, from := range states {
		for _, kind := range []eventKind{acked, rejected, ended, killed, tick} {
			if known[fmt.Sprint(p, kind)] {
				continue
			}
			s := parseRollout(t, from, running)
			to, actions := step(s, event{kind: kind, at: rolloutTime, process: new(process.Child), err: errors.New("no")})
			if want, got := describe(s), describe(to); want != got || len(actions) > 0 {
				t.Errorf("%s in %s: %s becomes %s, %s", kind, p, want, got, describeActions(actions))
			}
		}
	}
}

// TestQuarantinesGrow refuses a version repeatedly, then accepts another.
func TestQuarantinesGrow(t *testing.T) {
	process := new(process.Child)
	s := parseRollout(t, "good=a1 stored=a1", process)
	var actions []action
	at := rolloutTime
	do := func(e string) {
		next := parseEvent(t, e, process)
		next.at = at
		s, actions = step(s, next)
	}
	for _, want := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
		for _, e := range []string{"received b1", "passed", "not reloaded: no", "stored a1"} {
			do(e)
		}
		at = at.Add(want*time.Second - 1)
		if do("tick"); s.phase() != quarantined || len(actions) > 0 {
			t.Fatalf("after %v: %s", want*time.Second, describe(s))
		}
		at = at.Add(1)
		if do("tick"); s.phase() != idle || describeActions(actions) != "poll" {
			t.Fatalf("after %v: %s, %s", want*time.Second, describe(s), describeActions(actions))
		}
	}
	for _, e := range []string{"received c1", "passed", "installed", "received b1", "passed", "not reloaded: no"} {
		do(e)
	}
	if until := s.refused[0].until.Sub(at); until != 5*time.Second {
		t.Errorf("after a good version the quarantine is %v", until)
	}
}

// TestOthers checks that neither refused versions nor the offer are sent again.
func TestOthers(t *testing.T) {
	s := parseRollout(t, "good=a1 offer=a2 stored=a1 refused=b1 refused=c1@5s", nil)
	if diff := cmp.Diff([]string{"b1", "c1", "a2"}, s.others()); diff != "" {
		t.Errorf("others (-want +got):\n%s", diff)
	}
}

// TestDue checks, for each state of the table, that the follower sleeps until the next
// deadline.
func TestDue(t *testing.T) {
	process := new(process.Child)
	for _, tt := range transitions {
		s := parseRollout(t, tt.from, process)
		var due time.Time
		for _, d := range s.due() {
			if !d.IsZero() && (due.IsZero() || d.Before(due)) {
				due = d
			}
		}
		before := describe(s)
		if !due.IsZero() {
			early, actions := step(s, event{kind: tick, at: due.Add(-1)})
			if got := describe(early); got != before || len(actions) > 0 {
				t.Errorf("%s: before it is due it becomes %s, %s", before, got, describeActions(actions))
			}
			if on, actions := step(s, event{kind: tick, at: due}); describe(on) == before && len(actions) == 0 {
				t.Errorf("%s: nothing is due at %v", before, due.Sub(rolloutTime))
			}
		} else if late, actions := step(s, event{kind: tick, at: rolloutTime.Add(time.Hour)}); describe(late) != before || len(actions) > 0 {
			t.Errorf("%s: something is due that nobody wakes for: %s", before, describeActions(actions))
		}
	}
}
