package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// listen hears what the proxy says about the files that it is served.
func (f *follower) listen() {
	s := f.live.take()
	if s.rejected != nil {
		reason := errors.New(s.rejected.Error)
		switch {
		case f.taking == nil && f.good != nil && f.onTrial(f.good):
			f.refuse(f.good, reason)
			return
		case f.taking == nil && f.good != nil:
			// A process that was started later, as a rule: there is nothing better for it.
			f.log.Error("the proxy refuses files that were good", "version", f.good.name, "error", reason)
			f.report(f.good, reason)
		case f.taking != nil && f.taking.code && now().Before(f.takeBy):
			f.taking.doubt = s.rejected
		case f.taking != nil:
			f.refuse(f.taking, reason)
			return
		}
	}
	if s.acked && f.taking != nil {
		f.accept()
	}
}

// onTrial reports whether the proxy has just been told of the version, and there is one
// to come back to.
func (f *follower) onTrial(v *version) bool {
	t := f.trial
	return t != nil && t.version == v && t.before != nil && now().Before(t.until)
}

// pardonLater has a refused version tried again after a while: there may be other reasons
// for which the proxy could not be told of it, or has ended.
func (f *follower) pardonLater(v *version) {
	f.mercy = min(max(2*f.mercy, f.pace.mercyFirst), f.pace.mercyMost)
	f.convict, f.pardon = v.name, now().Add(f.mercy)
}

// decide ends a doubt that has lasted for long enough, and a punishment.
func (f *follower) decide() {
	if f.convict != "" && !now().Before(f.pardon) {
		f.refused = slices.DeleteFunc(f.refused, func(name string) bool { return name == f.convict })
		f.convict = ""
		f.askAgain()
	}
	if v := f.taking; v != nil && v.doubt != nil && !now().Before(f.takeBy) {
		f.refuse(v, errors.New(v.doubt.Error))
	}
}

// judge takes back a version at which the proxy has ended.
func (f *follower) judge(child *child) {
	t := f.trial
	if t == nil || t.child != child || now().After(t.until) {
		return
	}
	// What came after it was made of it.
	f.taking = nil
	f.refuse(t.version, fmt.Errorf("the proxy has ended after it took them up: %s", child.how()))
	if child.killed() {
		f.pardonLater(t.version)
	}
}

// refuse gives up a version: the repository is told, and the proxy gets back the one
// before, if there is one.
func (f *follower) refuse(v *version, reason error) {
	f.log.Error("the proxy's new files cannot be used; those before stay", "version", v.name, "error", reason)
	f.metrics.versionsRefused.Add(1)
	f.report(v, reason)
	f.refused = append(f.refused[max(len(f.refused)-maxRefused+1, 0):], v.name)
	if f.taking == v {
		f.taking = nil
	}
	if t := f.trial; t != nil && t.version == v {
		f.good, f.trial = t.before, nil
	}
	f.restore()
	f.askAgain()
}

// maxRefused is how many versions are remembered that are not wanted.
const maxRefused = 4

func (f *follower) report(v *version, reason error) {
	f.reports = append(f.reports[max(len(f.reports)-maxRefused+1, 0):], mirror.Status{Version: v.name, Error: reason.Error()})
}

// restore brings the version in use back into the folder and before the proxy.
func (f *follower) restore() {
	if f.good == nil {
		return
	}
	if _, code := f.live.differ(f.good.set, f.folder.set); code {
		if err := f.write(f.good); err != nil {
			f.log.Error("the files before cannot be brought back", "version", f.good.name, "error", err)
			return
		}
		if _, err := f.proxy.tell(); err != nil {
			f.log.Error("the proxy could not be told of the files before; it is tried again", "error", err)
			f.proxy.reload()
		}
	}
	f.serve(f.good)
	f.live.settle()
}
