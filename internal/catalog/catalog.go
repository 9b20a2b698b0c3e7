package catalog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// DefaultHoldOff and DefaultMaxHoldOff are the defaults of Options.
	DefaultHoldOff    = 50 * time.Millisecond
	DefaultMaxHoldOff = 500 * time.Millisecond

	// firstShare is the part of the HoldOff that a change waits after a quiet time. One change
	// is delivered almost at once, and only more of them are collected.
	firstShare = 5
)

// Options configure a Catalog.
type Options struct {
	// HoldOff is how long facts must be quiet before they are joined, so that a rollout is
	// not joined pod by pod; 0 means DefaultHoldOff. It is a fifth of that if nothing
	// was joined within MaxHoldOff. MaxHoldOff is the longest a change waits; 0 means
	// DefaultMaxHoldOff.
	HoldOff, MaxHoldOff time.Duration
	// Find looks up the workload of a proxy that is not in the mesh yet, for AwaitView.
	// Nil means that there are no others. It is called from many goroutines.
	Find Find
	// Patience is how long AwaitView waits before it calls Find; 0 means three seconds.
	// Recheck is the interval at which a workload found this way is looked up again, until
	// it has been applied; 0 means a minute.
	Patience, Recheck time.Duration
	// Features returns the features that the proxies of a class have. Requiring any other
	// is a Problem. Nil means that all proxies have all features.
	Features FeaturesOf
	// Proxyless reports whether the pods of a class run no proxy. Nil means that all do.
	Proxyless func(class string) bool
	// Trusts delays the first Snapshot until Trust is called.
	Trusts bool
	// Fetches says that keys of tokens are fetched, so that it is a Problem if there are none yet.
	Fetches bool
	// Log gets a line about each Snapshot, at debug level; nil means slog.Default().
	Log *slog.Logger
}

// Catalog keeps the Snapshot of a mesh up to date with its facts. All methods are safe
// for concurrent use.
type Catalog struct {
	options Options
	// proxies and objects notify subscribers of changes.
	proxies broker[string]
	objects broker[mesh.ObjectRef]
	// followers are the proxies that are told of changes of their Outbound.
	followers followers
	// awaited are the proxies that AwaitView waits for.
	awaited waiters

	mu sync.Mutex
	// pending has the last fact of each object that is not in the Snapshot yet, and
	// reports the Problems from Report.
	pending map[mesh.ObjectRef]fact.Fact
	reports map[mesh.ObjectRef][]mesh.Problem
	synced  bool
	// roots is the argument of the last call of Trust.
	roots string
	// joining is closed once the pending facts are in the Snapshot.
	joining chan struct{}
	// provisional has the objects whose facts come from Options.Find and were not applied
	// yet, with the timers that look them up again.
	provisional map[mesh.ObjectRef]*time.Timer
	wake        bell.Bell // rings when there is something to join
	// questions are answered by Run, between two Snapshots.
	questions chan question

	snapshot atomic.Pointer[fact.Snapshot]
	ready    chan struct{}

	// joinedMu is held while joined changes.
	joinedMu sync.RWMutex
	joined   *join
}

// New returns a Catalog. It does nothing until Run.
func New(options Options) *Catalog {
	if options.HoldOff == 0 {
		options.HoldOff = DefaultHoldOff
	}
	if options.MaxHoldOff == 0 {
		options.MaxHoldOff = DefaultMaxHoldOff
	}
	if options.Patience == 0 {
		options.Patience = defaultPatience
	}
	if options.Recheck == 0 {
		options.Recheck = defaultRecheck
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	c := &Catalog{
		options:     options,
		pending:     map[mesh.ObjectRef]fact.Fact{},
		reports:     map[mesh.ObjectRef][]mesh.Problem{},
		joining:     make(chan struct{}),
		provisional: map[mesh.ObjectRef]*time.Timer{},
		wake:        bell.New(),
		questions:   make(chan question),
		ready:       make(chan struct{}),
		joined:      newJoin(options),
	}
	c.snapshot.Store(&fact.Snapshot{Settings: defaultSettings})
	return c
}

// Apply adds or replaces facts. It does not wait for the Snapshot.
func (c *Catalog) Apply(facts ...fact.Fact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range facts {
		c.pending[f.Object] = f
		if timer := c.provisional[f.Object]; timer != nil {
			timer.Stop()
			delete(c.provisional, f.Object)
		}
	}
	c.wake.Ring()
}

// Report replaces the Problems that others found in an object, in addition to its own;
// none removes them. They are ignored while the object does not exist. Report does not
// wait for the Snapshot.
func (c *Catalog) Report(object mesh.ObjectRef, problems []mesh.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[object] = problems
	c.wake.Ring()
}

// Trust replaces the trusted root certificates, as PEM. It does not wait for the
// Snapshot.
func (c *Catalog) Trust(roots []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roots = string(roots)
	c.wake.Ring()
}

// Synced reports that all initial facts have been applied. No Snapshot is made before.
func (c *Catalog) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = true
	c.wake.Ring()
}

// Ready returns a channel that is closed when the first Snapshot exists.
func (c *Catalog) Ready() <-chan struct{} { return c.ready }

// Snapshot returns the latest Snapshot, which is empty before Ready. It is never nil.
func (c *Catalog) Snapshot() *fact.Snapshot { return c.snapshot.Load() }

// View returns the View of the proxy, or false if the proxy is unknown. From then on,
// Subscribe tells its changes.
func (c *Catalog) View(proxyUID string) (*mesh.View, bool) {
	for {
		viewer, ok := c.Snapshot().Views.Viewers.Get(proxyUID)
		if !ok {
			return nil, false
		}
		c.followers.follow(proxyUID, viewer.Outbound())
		// What has changed before was not told.
		views := c.Snapshot().Views
		switch now, ok := views.Viewers.Get(proxyUID); {
		case !ok:
			c.followers.leave(proxyUID)
			return nil, false
		case now.Outbound() == viewer.Outbound():
			return views.Get(proxyUID)
		}
	}
}

// Problems returns the Problems of an object, sorted by field and reason. The caller must
// not change them.
func (c *Catalog) Problems(object mesh.ObjectRef) []mesh.Problem { return c.Found(object).List }

// Found returns what is to be said of an object in its status. The caller must not change it.
func (c *Catalog) Found(object mesh.ObjectRef) *fact.Problems {
	if problems, ok := c.Snapshot().Problems.Get(object.String()); ok {
		return problems
	}
	return &fact.Problems{Object: object}
}

// Facts returns the facts of the kinds, sorted by kind, namespace and name. The caller
// must not change them.
func (c *Catalog) Facts(kinds ...string) []fact.Fact {
	c.joinedMu.RLock()
	defer c.joinedMu.RUnlock()
	return c.joined.factsOf(kinds)
}

// SubscribeObjects returns a channel that yields all existing objects, and then every
// object that is created, changed or deleted, or whose Problems change, until stop is
// closed. Changes of one object are coalesced until it is received.
func (c *Catalog) SubscribeObjects(stop <-chan struct{}) <-chan mesh.ObjectRef {
	// Subscribe first: an object joined in between is sent twice, but none is missed.
	changed, s := c.objects.subscribe(stop)
	c.joinedMu.RLock()
	defer c.joinedMu.RUnlock()
	for _, facts := range c.joined.facts {
		s.add(lastOf(facts).Object)
	}
	return changed
}

// Subscribe returns a channel of the UIDs of proxies whose View is new, changed or gone,
// until stop is closed. Changes of one proxy are coalesced until it is received. A change of an
// Outbound is told only of proxies for which View or AwaitView has been called.
func (c *Catalog) Subscribe(stop <-chan struct{}) <-chan string {
	changed, _ := c.proxies.subscribe(stop)
	return changed
}

// Run joins facts as they arrive, until ctx ends. It must be called once.
//
// It waits for: new facts, Synced, Report or Trust; a question of Find; the end of the hold-off; the deadline
// of the oldest change; the end of ctx.
func (c *Catalog) Run(ctx context.Context) {
	var quiet, late <-chan time.Time
	var joined time.Time
	var wait time.Duration
	for {
		select {
		case <-ctx.Done():
			c.stopRechecks()
			return
		case <-c.wake:
			if late == nil {
				late = time.After(c.options.MaxHoldOff)
				wait = c.options.HoldOff
				if time.Since(joined) >= c.options.MaxHoldOff {
					wait /= firstShare
				}
			}
			quiet = time.After(wait)
			continue
		case q := <-c.questions:
			used, found := c.joined.find(q.account, q.at)
			q.answer <- answer{used, found}
			continue
		case <-quiet:
		case <-late:
		}
		quiet, late = nil, nil
		c.publish()
		joined = time.Now()
	}
}

// publish joins the pending facts, stores the Snapshot and notifies subscribers.
func (c *Catalog) publish() {
	c.mu.Lock()
	if !c.synced || c.options.Trusts && c.roots == "" {
		c.mu.Unlock()
		return
	}
	facts, reports, roots, joining := c.pending, c.reports, c.roots, c.joining
	c.pending, c.reports, c.joining = map[mesh.ObjectRef]fact.Fact{}, map[mesh.ObjectRef][]mesh.Problem{}, make(chan struct{})
	c.mu.Unlock()

	begin, ran := time.Now(), c.joined.graph.Runs()
	c.joinedMu.Lock()
	c.joined.trust(roots)
	for _, f := range facts {
		c.joined.set(f)
	}
	for object, problems := range reports {
		c.joined.report(object, problems)
	}
	c.joinedMu.Unlock()
	former, next := c.Snapshot(), c.joined.snapshot()
	c.snapshot.Store(next)
	c.broadcast(facts, former.Problems, next.Problems)
	changed := 0
	for uid := range c.followers.changed(former.Views, next.Views) {
		c.proxies.send(uid)
		c.awaited.wake(uid)
		changed++
	}
	close(joining)
	select {
	case <-c.ready:
	default:
		close(c.ready)
	}
	c.options.Log.Debug("joined the mesh", "facts", len(facts), "runs", c.joined.graph.Runs()-ran, "changed_views", changed, "duration", time.Since(begin))
}

// broadcast notifies subscribers of the changed objects and of those whose Problems
// changed.
func (c *Catalog) broadcast(facts map[mesh.ObjectRef]fact.Fact, former, next mesh.Table[*fact.Problems]) {
	for object := range facts {
		c.objects.send(object)
	}
	for change := range next.Diff(former) {
		problems := change.Value
		if change.Delete {
			problems, _ = former.Get(change.Name)
		}
		c.objects.send(problems.Object)
	}
}

// Build returns the Snapshot of the facts for proxies with all features. The last fact of
// each object counts.
func Build(facts []fact.Fact) *fact.Snapshot { return BuildFor(facts, Options{}) }

// BuildFor is Build with Problems for what proxies lack, according to Features and Proxyless
// of the options.
func BuildFor(facts []fact.Fact, options Options) *fact.Snapshot {
	joined := newJoin(options)
	for _, f := range facts {
		joined.set(f)
	}
	return joined.snapshot()
}

// snapshot updates everything and returns the result.
func (j *join) snapshot() *fact.Snapshot {
	j.graph.Update()
	settings := j.settings.Current(single)
	if settings == nil {
		settings = defaultSettings
	}
	return &fact.Snapshot{
		Settings:   settings,
		Views:      fact.Views{Viewers: j.viewers.Current(), Outbounds: j.outboundsTable.Current()},
		Namespaces: j.namespacesTable.Current(),
		Services:   j.servicesTable.Current(),
		Workloads:  j.workloadsTable.Current(),
		Problems:   j.problems.Current(),
	}
}
