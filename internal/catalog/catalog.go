package catalog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// DefaultHoldOff and DefaultMaxHoldOff are those of Options.
	DefaultHoldOff    = 50 * time.Millisecond
	DefaultMaxHoldOff = 500 * time.Millisecond
)

// Options say how a Catalog works.
type Options struct {
	// HoldOff is how long it must be quiet before what has changed is joined, so that
	// a rollout is not joined pod by pod; 0 means DefaultHoldOff. MaxHoldOff is how long
	// a change waits at most; 0 means DefaultMaxHoldOff.
	HoldOff, MaxHoldOff time.Duration
	// Find asks for the workload of a proxy that is not in the mesh yet, for AwaitView;
	// nil means that there are no others. It is called from many goroutines.
	Find Find
	// Patience is how long AwaitView waits before it asks; 0 means three seconds.
	// Recheck is the time after which what was found so is asked for again, unless it
	// has been applied since; 0 means a minute.
	Patience, Recheck time.Duration
	// Features says what the proxies of a class can do: what is asked for beyond that is
	// a Problem. Nil means that all can do everything.
	Features FeaturesOf
	// Trusts says that Trust will be called: no Snapshot is made before.
	Trusts bool
	// Log gets a line about each Snapshot, at debug level; nil means slog.Default().
	Log *slog.Logger
}

// Catalog keeps the Snapshot of a mesh up to date with its facts. All methods may be
// called from many goroutines.
type Catalog struct {
	options Options
	// proxies and objects broadcast what changed.
	proxies broker[string]
	objects broker[mesh.ObjectRef]
	// awaited are the proxies that somebody waits for.
	awaited waiters

	mu sync.Mutex
	// pending are the facts that are not in the Snapshot yet, the last of each object,
	// and reports what others have to say of objects.
	pending map[mesh.ObjectRef]mesh.Fact
	reports map[mesh.ObjectRef][]mesh.Problem
	synced  bool
	// roots are those of the last call of Trust, and empty before it.
	roots string
	// joining is closed once what is pending is in the Snapshot.
	joining chan struct{}
	// borrowed are the objects whose facts nobody has applied, and when each is asked
	// for again.
	borrowed map[mesh.ObjectRef]*time.Timer
	// wake has room for one token: there is something to look at.
	wake chan struct{}

	snapshot atomic.Pointer[mesh.Snapshot]
	ready    chan struct{}

	// joinedMu is held while joined is changed.
	joinedMu sync.RWMutex
	joined   *join
}

// New returns a Catalog that does nothing before Run.
func New(options Options) *Catalog {
	if options.HoldOff == 0 {
		options.HoldOff = DefaultHoldOff
	}
	if options.MaxHoldOff == 0 {
		options.MaxHoldOff = DefaultMaxHoldOff
	}
	if options.Patience == 0 {
		options.Patience = awaitPatience
	}
	if options.Recheck == 0 {
		options.Recheck = recheck
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	c := &Catalog{
		options:  options,
		pending:  map[mesh.ObjectRef]mesh.Fact{},
		reports:  map[mesh.ObjectRef][]mesh.Problem{},
		joining:  make(chan struct{}),
		borrowed: map[mesh.ObjectRef]*time.Timer{},
		wake:     make(chan struct{}, 1),
		ready:    make(chan struct{}),
		joined:   newJoin(options.Features),
	}
	c.snapshot.Store(&mesh.Snapshot{Settings: defaultSettings})
	return c
}

// Apply takes in what objects say. It does not wait for the Snapshot.
func (c *Catalog) Apply(facts ...mesh.Fact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fact := range facts {
		c.pending[fact.Object] = fact
		if timer := c.borrowed[fact.Object]; timer != nil {
			timer.Stop()
			delete(c.borrowed, fact.Object)
		}
	}
	c.notify()
}

// Report takes in what is wrong with an object beside what it says itself, in the place
// of what was reported of it before; none ends it. It counts for as long as there is
// such an object. It does not wait for the Snapshot.
func (c *Catalog) Report(object mesh.ObjectRef, problems []mesh.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[object] = problems
	c.notify()
}

// Trust takes in the roots that peers are verified against, as PEM, in the place of those
// before. It does not wait for the Snapshot.
func (c *Catalog) Trust(roots []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roots = string(roots)
	c.notify()
}

// Synced says that the facts that there were at first have all been applied. No
// Snapshot is made before.
func (c *Catalog) Synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced = true
	c.notify()
}

func (c *Catalog) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Ready returns a channel that is closed when there is the first Snapshot.
func (c *Catalog) Ready() <-chan struct{} { return c.ready }

// Snapshot returns the whole mesh, or an empty one before Ready. It is never nil.
func (c *Catalog) Snapshot() *mesh.Snapshot { return c.snapshot.Load() }

// View returns what the proxy may see, or false if no such proxy is known.
func (c *Catalog) View(proxyUID string) (*mesh.View, bool) {
	return c.Snapshot().Views.Get(proxyUID)
}

// Problems returns what is wrong with an object, sorted by field and reason. The
// caller must not change it.
func (c *Catalog) Problems(object mesh.ObjectRef) []mesh.Problem {
	if problems, ok := c.Snapshot().Problems.Get(object.String()); ok {
		return problems.List
	}
	return nil
}

// Facts returns what the objects of some kinds say, sorted by kind, namespace and
// name. Nobody may change it.
func (c *Catalog) Facts(kinds ...string) []mesh.Fact {
	c.joinedMu.RLock()
	defer c.joinedMu.RUnlock()
	return c.joined.factsOf(kinds)
}

// SubscribeObjects returns a channel of the objects that there are, and from then on of
// those that have come, changed or gone, or whose Problems have, until stop is closed.
// An object that changes again before it was received is sent once.
func (c *Catalog) SubscribeObjects(stop <-chan struct{}) <-chan mesh.ObjectRef {
	// What is joined in between is sent twice, and nothing is missed.
	changed, s := c.objects.subscribe(stop)
	c.joinedMu.RLock()
	defer c.joinedMu.RUnlock()
	for _, facts := range c.joined.facts {
		s.add(lastOf(facts).Object)
	}
	return changed
}

// Subscribe returns a channel of the UIDs of proxies whose View is new, changed or
// gone, until stop is closed. A proxy that changes again before it was received is
// sent once.
func (c *Catalog) Subscribe(stop <-chan struct{}) <-chan string {
	changed, _ := c.proxies.subscribe(stop)
	return changed
}

// Run joins facts as they come, until ctx ends. It is called once.
//
// These things can happen: facts come or are said to be complete; it has been quiet
// for the hold-off; the oldest change has waited long enough; the end.
func (c *Catalog) Run(ctx context.Context) {
	var quiet, late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			c.returnAll()
			return
		case <-c.wake:
			quiet = time.After(c.options.HoldOff)
			if late == nil {
				late = time.After(c.options.MaxHoldOff)
			}
			continue
		case <-quiet:
		case <-late:
		}
		quiet, late = nil, nil
		c.publish()
	}
}

// publish joins what is pending and makes it known.
func (c *Catalog) publish() {
	c.mu.Lock()
	if !c.synced || c.options.Trusts && c.roots == "" {
		c.mu.Unlock()
		return
	}
	facts, reports, roots, joining := c.pending, c.reports, c.roots, c.joining
	c.pending, c.reports, c.joining = map[mesh.ObjectRef]mesh.Fact{}, map[mesh.ObjectRef][]mesh.Problem{}, make(chan struct{})
	c.mu.Unlock()

	begin, ran := time.Now(), c.joined.graph.Runs()
	c.joinedMu.Lock()
	c.joined.trust(roots)
	for _, fact := range facts {
		c.joined.set(fact)
	}
	for object, problems := range reports {
		c.joined.report(object, problems)
	}
	c.joinedMu.Unlock()
	former, next := c.Snapshot(), c.joined.snapshot()
	c.snapshot.Store(next)
	c.broadcast(facts, former.Problems, next.Problems)
	changed := 0
	for change := range next.Views.Diff(former.Views) {
		c.proxies.send(change.Name)
		c.awaited.wake(change.Name)
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

// broadcast sends subscribers the objects of facts and of those whose Problems changed.
func (c *Catalog) broadcast(facts map[mesh.ObjectRef]mesh.Fact, former, next mesh.Table[*mesh.Problems]) {
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

// Build returns the Snapshot of the facts, of which the last of each object counts, in
// a mesh whose proxies can do everything.
func Build(facts []mesh.Fact) *mesh.Snapshot { return BuildFor(facts, nil) }

// BuildFor returns the Snapshot of the facts, of which the last of each object counts,
// with the Problems of what proxies can't do. Features are those of Options.
func BuildFor(facts []mesh.Fact, features FeaturesOf) *mesh.Snapshot {
	joined := newJoin(features)
	for _, fact := range facts {
		joined.set(fact)
	}
	return joined.snapshot()
}

// snapshot brings everything up to date with the facts.
func (j *join) snapshot() *mesh.Snapshot {
	j.graph.Update()
	settings := j.settings.Current(only)
	if settings == nil {
		settings = defaultSettings
	}
	return &mesh.Snapshot{
		Settings:  settings,
		Views:     j.views.Current(),
		Services:  j.servicesTable.Current(),
		Workloads: j.workloadsTable.Current(),
		Problems:  j.problems.Current(),
	}
}
