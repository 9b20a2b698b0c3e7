package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/identity"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// Follower keeps the mirrored folder and the live files served to the proxy in sync with
// the driver's repository. It passes events to the rollout, which decides, and executes the
// rollout's actions. Everything but the channels belongs to run's goroutine.
type Follower struct {
	spec     *agentspec.Mirror
	folder   *folder
	poller   *poller
	live     *live
	identity *identity.Source
	proxy    *process.Proxy
	log      *slog.Logger
	metrics  *kit.Metrics
	// closeIdle closes idle connections to the repository.
	closeIdle func()

	ready     chan struct{} // closed once there is a version for the proxy
	readyOnce sync.Once
	renewed   bell.Bell  // rings when the identity files have changed
	exits     chan event // exits of the proxy's processes

	rollout rollout
	staged  string // the path of the candidate that passed the check
}

// New returns the follower of a Mirror, whose repository has a certificate with the
// controller's name. Without a Mirror it is nil, whose methods do what is right for a proxy that
// has no such files.
func New(spec *agentspec.Mirror, controller string, identity *identity.Source, proxy *process.Proxy, timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) (*Follower, error) {
	if spec == nil {
		return nil, nil
	}
	folder, why, err := openFolder(spec.Dir)
	if err != nil {
		return nil, err
	}
	if why != nil {
		log.Warn("the files of an earlier start are invalid; waiting for the repository", "reason", why.Error())
	}
	repository, client := newRepository(spec.URL, controller, identity, timings.Wait)
	client.Proxy = proxy.Version
	live := newLive(spec.Live)
	return &Follower{
		spec: spec, folder: folder, poller: newPoller(client, identity.RenewEarly, timings, log, metrics), live: live, identity: identity,
		proxy: proxy, log: log, metrics: metrics, closeIdle: repository.transport.CloseIdleConnections,
		ready: make(chan struct{}), renewed: bell.New(), exits: make(chan event),
		rollout: rollout{live: live.prefix, timings: timings, backoff: timings.Quarantine},
	}, nil
}

// IsReady reports whether there are files for the proxy. Any goroutine may call it.
func (f *Follower) IsReady() bool { return kit.IsClosed(f.Ready()) }

// Ready returns a channel that is closed once there are files for the proxy.
func (f *Follower) Ready() <-chan struct{} {
	if f == nil {
		return closed
	}
	return f.ready
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// FollowIdentity notes that the identity files have changed. It reports whether the proxy follows
// them among its live files, and needs no reload. Any goroutine may call it.
func (f *Follower) FollowIdentity() bool {
	if f == nil {
		return false
	}
	f.renewed.Ring()
	return f.live.prefix != ""
}

// Handler serves the live files to the proxy. It is nil without files.
func (f *Follower) Handler() http.Handler {
	if f == nil {
		return nil
	}
	return f.live
}

// ProcessEnded is called when a process of the proxy has exited. It returns once the
// rollout has handled the exit, or after a second. Any goroutine may call it.
func (f *Follower) ProcessEnded(process *process.Child) {
	if f == nil {
		return
	}
	e := event{kind: ended, process: process, err: fmt.Errorf("the proxy exited after loading them: %s", process.How())}
	if process.Killed() {
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

// Run follows the repository until ctx ends. The identity files must exist. It handles:
//   - answers of the repository;
//   - the proxy's acknowledgement or rejection of live files;
//   - renewals of the identity files;
//   - exits of the proxy's processes;
//   - deadlines.
func (f *Follower) Run(ctx context.Context) {
	if f == nil {
		return
	}
	if f.folder.name != "" {
		v := &version{name: mirror.Version(f.folder.set), set: f.folder.set}
		f.log.Info("using the files of an earlier start until the repository has a newer version", "version", v.name)
		f.handle(ctx, event{kind: started, version: v})
	}
	for {
		f.poller.pollIfDue(ctx, f.rollout)
		select {
		case <-ctx.Done():
			return
		case a := <-f.poller.answers:
			if v := f.poller.accept(a, f.rollout); v != nil {
				failures := f.poller.backoff.Failures
				f.handle(ctx, event{kind: received, version: v})
				if f.poller.backoff.Failures == failures {
					f.poller.succeeded()
					f.poller.raiseMemoryLimit(a)
				}
			}
		case <-f.live.wake:
			acknowledged, rejection := f.live.takeVerdict()
			if rejection != nil {
				f.handle(ctx, event{kind: rejected, err: errors.New(rejection.Error)})
			}
			if acknowledged {
				f.handle(ctx, event{kind: acked})
			}
		case <-f.renewed:
			if kit.IsClosed(f.ready) {
				f.withIdentityDigest(f.live.setIdentity)
			}
			f.closeIdle()
			if !f.poller.next.IsZero() {
				f.poller.poll()
			}
		case e := <-f.exits:
			f.handle(ctx, e)
		case <-time.After(f.untilDue()):
			f.handle(ctx, event{kind: tick})
		}
	}
}

// untilDue returns the time until the next deadline, at most an hour.
func (f *Follower) untilDue() time.Duration {
	next := kit.Now().Add(time.Hour)
	for _, due := range append(f.rollout.due(), f.poller.due()) {
		if !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return max(next.Sub(kit.Now()), 0)
}

// handle passes an event to the rollout, executes its actions, and handles the events that
// result from them in the same way.
func (f *Follower) handle(ctx context.Context, e event) {
	for events := []event{e}; len(events) > 0; events = events[1:] {
		e := events[0]
		e.at = kit.Now()
		var actions []action
		f.rollout, actions = step(f.rollout, e)
		for _, a := range actions {
			if result := f.execute(ctx, a); result.kind != "" {
				events = append(events, result)
			}
		}
	}
	if f.rollout.offer == nil {
		f.live.stopAwaiting()
	}
}

// execute executes an action and returns the resulting event, without a kind if there is
// none.
func (f *Follower) execute(ctx context.Context, a action) event {
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
		f.log.Error("the proxy cannot use its new files; keeping the last good version", "version", v.name, "error", a.err)
		f.metrics.VersionsRefused.Add(1)
		f.poller.report(v, a.err)
	case doReport:
		f.log.Error("the proxy rejects files that it accepted before", "version", v.name, "error", a.err)
		f.poller.report(v, a.err)
	}
	return event{}
}

// check writes a version beside the folder and runs the driver's check command on it.
func (f *Follower) check(ctx context.Context, v *version) event {
	staged, err := f.folder.stage(v.set)
	if err != nil {
		return event{kind: unchecked, err: fmt.Errorf("writing version %s: %w", v.name, err)}
	}
	if len(f.spec.Check) > 0 {
		argv := make([]string, len(f.spec.Check))
		for i, arg := range f.spec.Check {
			argv[i] = AtFolder(arg, staged)
		}
		err = f.proxy.Execute(ctx, argv, f.rollout.timings.Check)
	}
	if err == nil {
		f.staged = staged
		return event{kind: passed}
	}
	f.folder.clean(f.folder.name)
	var notStarted *process.NotStartedError
	switch {
	case ctx.Err() != nil:
		return event{}
	case errors.As(err, &notStarted):
		if f.folder.name == "" {
			// The command is usually the proxy's program, so the proxy will not start either.
			f.proxy.CannotStart(err)
		}
		return event{kind: unchecked, err: fmt.Errorf("checking version %s: %w", v.name, err)}
	}
	return event{kind: failed, err: err}
}

// install moves the staged version, if any, into the folder and reloads the proxy if
// reload is set.
func (f *Follower) install(v *version, reload bool) event {
	if staged := f.staged; staged != "" {
		f.staged = ""
		if err := f.folder.swap(staged, v.set); err != nil {
			return event{kind: unchecked, err: fmt.Errorf("writing version %s: %w", v.name, err)}
		}
	}
	f.log.Info("the proxy's files have changed", "version", v.name)
	f.metrics.Versions.Add(1)
	if !reload {
		return event{kind: installed}
	}
	process, err := f.proxy.Reload()
	if err != nil {
		return event{kind: notReloaded, err: err}
	}
	return event{kind: installed, process: process}
}

// restore returns to a good version.
func (f *Follower) restore(v *version) event {
	if err := f.write(v); err != nil {
		f.log.Error("the last good version cannot be restored", "version", v.name, "error", err)
		return event{}
	}
	if _, err := f.proxy.Reload(); err != nil {
		f.log.Error("the proxy did not reload the last good version; trying again", "error", err)
		f.proxy.RequestReload()
	}
	f.serve(v)
	return event{kind: stored, version: v}
}

func (f *Follower) write(v *version) error {
	staged, err := f.folder.stage(v.set)
	if err != nil {
		return err
	}
	return f.folder.swap(staged, v.set)
}

// serve serves the live files of a version. The first call lets the proxy start.
func (f *Follower) serve(v *version) {
	f.withIdentityDigest(func(identity string) error { return f.live.serve(v.set, identity) })
	f.readyOnce.Do(func() { close(f.ready) })
}

// withIdentityDigest calls serve with the digest of the identity files.
func (f *Follower) withIdentityDigest(serve func(identity string) error) {
	digest, err := f.identity.Digest()
	if err == nil {
		err = serve(digest)
	}
	if err != nil {
		f.log.Error("the proxy's live files cannot be served", "error", err)
	}
}
