package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// follower keeps the mirrored folder, and the live files that the proxy is served, equal
// to the driver's repository. It feeds what happens to the rollout, which decides, and
// executes the rollout's actions. Everything but the channels belongs to the goroutine of
// run.
type follower struct {
	spec     *agentspec.Mirror
	folder   *folder
	poller   *poller
	live     *live
	store    *store
	proxy    *proxy
	children *children
	log      *slog.Logger
	metrics  *metrics
	// closeIdle closes connections to the repository that no request uses.
	closeIdle func()

	got     chan struct{} // closed once there is a version for the proxy
	gotOnce sync.Once
	renewed bell       // rings when the identity files have changed
	exits   chan event // the ends of the proxy's processes

	rollout rollout
	staged  string // the path of the candidate that passed the check
}

func newFollower(c *config, store *store, proxy *proxy, children *children, pace pace, log *slog.Logger, metrics *metrics) (*follower, error) {
	folder, why, err := openFolder(c.spec.Mirror.Dir)
	if err != nil {
		return nil, err
	}
	if why != nil {
		log.Warn("the files of an earlier start are not good any more; waiting for the repository's", "reason", why.Error())
	}
	repository, client := newRepository(c.spec.Mirror.URL, c.controller, store, pace.wait)
	live := newLive(c.spec.Mirror.Live)
	f := &follower{
		spec: c.spec.Mirror, folder: folder, poller: newPoller(client, pace, log, metrics), live: live, store: store,
		proxy: proxy, children: children, log: log, metrics: metrics, closeIdle: repository.transport.CloseIdleConnections,
		got: make(chan struct{}), renewed: newBell(), exits: make(chan event),
		rollout: rollout{live: live.prefix, checks: len(c.spec.Mirror.Check) > 0, pace: pace, backoff: pace.quarantine},
	}
	proxy.hasEnded = f.processEnded
	return f, nil
}

// isThere reports whether there are files for the proxy, or none are wanted. Any
// goroutine may call it.
func (f *follower) isThere() bool {
	return f == nil || isClosed(f.got)
}

// processEnded is called when a process of the proxy has ended. It returns once the
// rollout has dealt with that, or after a second. Any goroutine may call it.
func (f *follower) processEnded(process *child) {
	e := event{kind: ended, process: process, err: fmt.Errorf("the proxy has ended after it took them up: %s", process.how())}
	if process.killed() {
		e.kind = killed
	}
	limit := time.After(time.Second)
	// The second event is received once the first has been handled.
	for _, e := range []event{e, {kind: tick}} {
		select {
		case f.exits <- e:
		case <-limit:
			return
		}
	}
}

// run follows the repository until ctx ends. The identity files must be there. What can
// happen:
//   - the repository answers;
//   - the proxy acknowledges or rejects the live files it is served;
//   - the identity files are renewed;
//   - a process of the proxy ends;
//   - something is due.
func (f *follower) run(ctx context.Context) {
	if f.folder.name != "" {
		v := &version{name: mirror.Version(f.folder.set), set: f.folder.set}
		f.log.Info("the files of an earlier start are used until the repository has others", "version", v.name)
		f.handle(ctx, event{kind: started, version: v})
	}
	for {
		f.poller.pollIfDue(ctx, f.rollout)
		timer := time.NewTimer(f.untilDue())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case a := <-f.poller.answers:
			if v := f.poller.accept(a, f.rollout); v != nil {
				failures := f.poller.backoff.failures
				f.handle(ctx, event{kind: received, version: v})
				if f.poller.backoff.failures == failures {
					f.poller.succeeded()
					f.poller.makeRoom(a)
				}
			}
		case <-f.live.wake:
			acknowledged, rejection := f.live.take()
			if rejection != nil {
				f.handle(ctx, event{kind: rejected, err: errors.New(rejection.Error)})
			}
			if acknowledged {
				f.handle(ctx, event{kind: acked})
			}
		case <-f.renewed:
			if isClosed(f.got) {
				f.withMark(f.live.mark)
			}
			f.closeIdle()
			if !f.poller.next.IsZero() {
				f.poller.poll()
			}
		case e := <-f.exits:
			f.handle(ctx, e)
		case <-timer.C:
			f.handle(ctx, event{kind: tick})
		}
		timer.Stop()
	}
}

// untilDue returns how long nothing is due.
func (f *follower) untilDue() time.Duration {
	next := now().Add(time.Hour)
	for _, due := range append(f.rollout.due(), f.poller.due()) {
		if !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return max(next.Sub(now()), 0)
}

// handle passes an event to the rollout, executes the actions, and does the same with
// what came of them.
func (f *follower) handle(ctx context.Context, e event) {
	for events := []event{e}; len(events) > 0; events = events[1:] {
		e := events[0]
		e.at = now()
		var actions []action
		f.rollout, actions = step(f.rollout, e)
		for _, a := range actions {
			if result := f.execute(ctx, a); result.kind != "" {
				events = append(events, result)
			}
		}
	}
	if f.rollout.offer == nil {
		f.live.settle()
	}
}

// execute executes an action and returns its result as an event; one without a kind is
// none.
func (f *follower) execute(ctx context.Context, a action) event {
	v := a.version
	switch a.kind {
	case doCheck:
		return f.check(ctx, v)
	case doInstall:
		return f.install(v, a.reload)
	case doServe:
		f.serve(v)
	case doRestore:
		return f.restore(v)
	case doStore:
		if err := f.write(v); err != nil {
			f.poller.logFailure(failureFiles, fmt.Errorf("writing version %s: %w", v.name, err))
			return event{}
		}
		return event{kind: stored, version: v}
	case doPoll:
		f.poller.poll()
	case doRetry:
		f.poller.retry(v, a.err)
	case doRefuse:
		f.log.Error("the proxy's new files cannot be used; the last good version stays", "version", v.name, "error", a.err)
		f.metrics.versionsRefused.Add(1)
		f.poller.report(v, a.err)
	case doReport:
		f.log.Error("the proxy rejects files that were good", "version", v.name, "error", a.err)
		f.poller.report(v, a.err)
	}
	return event{}
}

// check writes a version beside the folder and has the driver's command check it.
func (f *follower) check(ctx context.Context, v *version) event {
	staged, err := f.folder.stage(v.set)
	if err != nil {
		return event{kind: unchecked, err: fmt.Errorf("writing version %s: %w", v.name, err)}
	}
	if len(f.spec.Check) > 0 {
		argv := make([]string, len(f.spec.Check))
		for i, arg := range f.spec.Check {
			argv[i] = atFolder(arg, staged)
		}
		err = f.children.run(ctx, argv, f.rollout.pace.check)
	}
	if err == nil {
		f.staged = staged
		return event{kind: passed}
	}
	f.folder.clean(f.folder.name)
	var notStarted *notStartedError
	switch {
	case ctx.Err() != nil:
		return event{}
	case errors.As(err, &notStarted):
		if f.folder.name == "" {
			// The command is the proxy's own as a rule, and it won't start either.
			f.proxy.reporter.ended(err.Error(), "", false)
		}
		return event{kind: unchecked, err: fmt.Errorf("checking version %s: %w", v.name, err)}
	}
	return event{kind: failed, err: err}
}

// install moves the staged version, if there is one, into the folder, and has the proxy
// reload if it must.
func (f *follower) install(v *version, reload bool) event {
	if staged := f.staged; staged != "" {
		f.staged = ""
		if err := f.folder.swap(staged, v.set); err != nil {
			return event{kind: unchecked, err: fmt.Errorf("writing version %s: %w", v.name, err)}
		}
	}
	f.log.Info("the proxy's files have changed", "version", v.name)
	f.metrics.versions.Add(1)
	if !reload {
		return event{kind: installed}
	}
	process, err := f.proxy.reload()
	if err != nil {
		return event{kind: notReloaded, err: err}
	}
	return event{kind: installed, process: process}
}

// restore brings a good version back.
func (f *follower) restore(v *version) event {
	if err := f.write(v); err != nil {
		f.log.Error("the last good version cannot be restored", "version", v.name, "error", err)
		return event{}
	}
	if _, err := f.proxy.reload(); err != nil {
		f.log.Error("the proxy did not reload the last good version; trying again", "error", err)
		f.proxy.reloadSoon()
	}
	f.serve(v)
	return event{kind: stored, version: v}
}

func (f *follower) write(v *version) error {
	staged, err := f.folder.stage(v.set)
	if err != nil {
		return err
	}
	return f.folder.swap(staged, v.set)
}

// serve serves the live files of a version. From the first one on the proxy may start.
func (f *follower) serve(v *version) {
	f.withMark(func(mark string) error { return f.live.serve(v.set, mark) })
	f.gotOnce.Do(func() { close(f.got) })
}

// withMark calls a function that serves the proxy with the mark of the identity files.
func (f *follower) withMark(serve func(mark string) error) {
	m, err := f.store.read()
	if err == nil {
		err = serve(m.mark())
	}
	if err != nil {
		f.log.Error("the proxy's live files cannot be served", "error", err)
	}
}
