package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// follower keeps the mirrored folder, and what the proxy is served beside, equal to the
// driver's repository. A version goes to the proxy once it has passed the check; it is
// said to be in use once the proxy has it; and when it turns out to be bad the one
// before comes back. Everything belongs to the goroutine of run, but for what says so.
type follower struct {
	spec     *agentspec.Mirror
	folder   *folder
	client   *mirror.Client
	live     *live
	store    *store
	proxy    *proxy
	children *children
	pace     pace
	log      *slog.Logger
	metrics  *metrics
	// hasten has the identity files replaced soon. Idle closes connections on which no
	// request is.
	hasten, idle func()

	// got is closed once there is a version in the folder. Any goroutine may wait for it.
	got chan struct{}
	// renewed holds a value when the identity files have changed, and crashes takes
	// processes of the proxy that have ended.
	renewed chan struct{}
	crashes chan crash

	// good is in use, and taking is what the proxy was given and has not taken up yet;
	// until takeBy nothing is asked for.
	good, taking *version
	takeBy       time.Time
	// refused are versions that are not wanted again, and reports what the repository has
	// not been told of.
	refused []string
	reports []mirror.Status
	// pardon is when the refused version convict is tried again, since it may not be its
	// fault; mercy was the pause until then.
	pardon  time.Time
	convict string
	mercy   time.Duration
	trial   *trial
	// kept is when the folder was last written.
	kept time.Time
	ask  asking
}

// version is a version of the repository's.
type version struct {
	name string
	set  mirror.Set
	// code says that not only live files have changed with it, and doubt is why the proxy
	// has refused it, if it did so while that was taken up: it may have been the program
	// before.
	code  bool
	doubt *mirror.Status
}

// trial is a version that the proxy has just been told of.
type trial struct {
	version, before *version
	child           *child
	until           time.Time
}

// crash is the end of a process.
type crash struct {
	child *child
	done  chan<- struct{}
}

func newFollower(c *config, store *store, proxy *proxy, children *children, pace pace, log *slog.Logger, metrics *metrics) (*follower, error) {
	folder, why, err := openFolder(c.spec.Mirror.Dir)
	if err != nil {
		return nil, err
	}
	if why != nil {
		log.Warn("the files of an earlier start are not good any more; the repository's are waited for", "reason", why.Error())
	}
	repository, client := newRepository(c.spec.Mirror.URL, c.controller, store, pace.wait)
	f := &follower{
		spec: c.spec.Mirror, folder: folder, client: client, live: newLive(c.spec.Mirror.Live), store: store,
		proxy: proxy, children: children, pace: pace, log: log, metrics: metrics, idle: repository.transport.CloseIdleConnections,
		got: make(chan struct{}), renewed: make(chan struct{}, 1), crashes: make(chan crash),
		ask: asking{answers: make(chan answered, 1), told: make(map[string]bool)},
	}
	proxy.hasEnded = f.crashed
	return f, nil
}

// isThere reports whether there are files for the proxy, or none are wanted. Any
// goroutine may call it.
func (f *follower) isThere() bool {
	if f == nil {
		return true
	}
	select {
	case <-f.got:
		return true
	default:
		return false
	}
}

// renew says that the identity files have changed. Any goroutine may call it.
func (f *follower) renew() {
	select {
	case f.renewed <- struct{}{}:
	default:
	}
}

// crashed tells that a process of the proxy has ended, and waits a moment for what comes
// of that. Any goroutine may call it.
func (f *follower) crashed(child *child) {
	done := make(chan struct{})
	limit := time.After(time.Second)
	select {
	case f.crashes <- crash{child, done}:
	case <-limit:
		return
	}
	select {
	case <-done:
	case <-limit:
	}
}

// run follows the repository until ctx ends. The identity files are there.
func (f *follower) run(ctx context.Context) {
	f.begin()
	for {
		f.askIfDue(ctx)
		wait := time.NewTimer(f.nextDue())
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case a := <-f.ask.answers:
			f.answered(ctx, a)
		case <-f.live.wake:
			f.listen()
		case <-f.renewed:
			f.mark()
			f.idle()
			f.askAgain()
		case c := <-f.crashes:
			f.judge(c.child)
			close(c.done)
		case <-wait.C:
		}
		wait.Stop()
		f.decide()
		f.keep()
	}
}

// begin takes over the version that an agent before this one has left in the folder, so
// that the proxy of a container that was restarted has not to wait for the controller.
func (f *follower) begin() {
	if f.folder.name == "" {
		return
	}
	v := &version{name: mirror.Version(f.folder.set), set: f.folder.set}
	f.log.Info("the files of an earlier start are used until the repository has others", "version", v.name)
	f.offer(v, now())
	close(f.got)
}

// mark tells the proxy that the identity files have changed.
func (f *follower) mark() {
	if f.folder.name == "" {
		return
	}
	m, err := f.store.read()
	if err == nil {
		err = f.live.mark(m.mark())
	}
	if err != nil {
		f.log.Error("the proxy could not be told of new identity files", "error", err)
	}
}

// place puts a version in the place of the one before: into the folder, if there is more
// to it than live files, and before the proxy. An error says that it is not the
// version's fault that it could not.
func (f *follower) place(ctx context.Context, v *version) error {
	first := f.folder.name == ""
	_, v.code = f.live.differ(v.set, f.folder.set)
	if first || v.code || len(f.spec.Check) > 0 {
		staged, err := f.folder.stage(v.set)
		if err != nil {
			return fmt.Errorf("writing version %s: %w", v.name, err)
		}
		if err := f.check(ctx, staged); err != nil {
			f.folder.clean(f.folder.name)
			var notStarted *notStartedError
			switch {
			case ctx.Err() != nil:
			case errors.As(err, &notStarted):
				if first {
					// The command is the proxy's own as a rule, and it won't start either.
					f.proxy.reporter.ended(err.Error(), "", false)
				}
				return fmt.Errorf("checking version %s: %w", v.name, err)
			default:
				f.refuse(v, err)
			}
			return nil
		}
		if err := f.swap(staged, v.set); err != nil {
			return fmt.Errorf("writing version %s: %w", v.name, err)
		}
	}
	f.log.Info("the proxy's files have changed", "version", v.name)
	f.metrics.versions.Add(1)
	f.taking = v
	if v.code && !first {
		if err := f.tell(v); err != nil {
			f.refuse(v, err)
			f.pardonLater(v)
			return nil
		}
	}
	f.offer(v, now().Add(f.pace.take))
	if first {
		close(f.got)
	}
	return nil
}

// check has the driver's command look at a staged version.
func (f *follower) check(ctx context.Context, staged string) error {
	if len(f.spec.Check) == 0 {
		return nil
	}
	argv := make([]string, len(f.spec.Check))
	for i, arg := range f.spec.Check {
		argv[i] = atFolder(arg, staged)
	}
	return f.children.run(ctx, argv, f.pace.check)
}

func (f *follower) swap(staged string, set mirror.Set) error {
	f.kept = now()
	return f.folder.swap(staged, set)
}

// tell has the proxy take up what is new in the folder, on trial.
func (f *follower) tell(v *version) error {
	before := f.good
	if f.trial != nil && now().Before(f.trial.until) {
		// One that has not proved itself is nothing to come back to.
		before = f.trial.before
	}
	child, err := f.proxy.tell()
	f.trial = nil
	if child != nil {
		f.trial = &trial{v, before, child, now().Add(f.pace.trial)}
	}
	return err
}

// offer serves the live files of a version, and waits for what the proxy makes of them,
// if they are others than those that it has.
func (f *follower) offer(v *version, takeBy time.Time) {
	changed := true
	if f.good != nil {
		changed, _ = f.live.differ(v.set, f.good.set)
	} else {
		changed, _ = f.live.differ(v.set, mirror.Set{})
	}
	f.taking, f.takeBy = v, takeBy
	f.serve(v)
	if !changed {
		f.accept()
	}
}

func (f *follower) serve(v *version) {
	m, err := f.store.read()
	if err == nil {
		err = f.live.serve(v.set, m.mark())
	}
	if err != nil {
		f.log.Error("the proxy could not be given its files", "error", err)
	}
}

// accept notes that the version that was given to the proxy is in use.
func (f *follower) accept() {
	f.good, f.taking = f.taking, nil
	f.good.doubt = nil
	f.refused, f.convict, f.mercy = nil, "", 0
	f.live.settle()
	f.askAgain()
}

func (f *follower) write(v *version) error {
	staged, err := f.folder.stage(v.set)
	if err != nil {
		return err
	}
	return f.swap(staged, v.set)
}

// toKeep returns what is to be in the folder and is not, and when that is due; nil if
// there is nothing. It is about live files: they change often, and only a restart needs
// them there.
func (f *follower) toKeep() (*version, time.Time) {
	v := f.good
	if f.taking != nil {
		if now().Before(f.takeBy) || f.taking.doubt != nil {
			return nil, time.Time{}
		}
		// A proxy that says nothing is none that refuses.
		v = f.taking
	}
	if v == nil || f.folder.name == "" || v.name == mirror.Version(f.folder.set) {
		return nil, time.Time{}
	}
	return v, f.kept.Add(f.pace.keep)
}

func (f *follower) keep() {
	v, due := f.toKeep()
	if v == nil || now().Before(due) {
		return
	}
	if err := f.write(v); err != nil {
		f.kept = now()
		f.tellOnce(failureFiles, fmt.Errorf("writing version %s: %w", v.name, err))
	}
}

// nextDue returns how long nothing is due, if nothing happens.
func (f *follower) nextDue() time.Duration {
	next := now().Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if f.ask.cancel == nil {
		sooner(f.ask.next)
	}
	if f.taking != nil && now().Before(f.takeBy) {
		next = now().Add(time.Hour)
		sooner(f.takeBy)
	}
	if v, due := f.toKeep(); v != nil {
		sooner(due)
	}
	if f.convict != "" {
		sooner(f.pardon)
	}
	return max(next.Sub(now()), 0)
}

// others returns the versions that are known beside the one in use.
func (f *follower) others() []string {
	others := slices.Clone(f.refused)
	if f.taking != nil {
		others = append(others, f.taking.name)
	}
	return others
}
