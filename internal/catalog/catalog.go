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
	// Log is told of each Snapshot, at debug level; nil means slog.Default().
	Log *slog.Logger
}

// Catalog keeps the Snapshot of a mesh up to date with its facts. All methods may be
// called from many goroutines.
type Catalog struct {
	options Options
	// proxies and objects tell of what changed.
	proxies broker[string]
	objects broker[mesh.ObjectRef]

	mu sync.Mutex
	// pending are the facts that are not in the Snapshot yet, the last of each object.
	pending map[mesh.ObjectRef]mesh.Fact
	synced  bool
	// wake has room for one token: there is something to look at.
	wake chan struct{}

	snapshot atomic.Pointer[mesh.Snapshot]
	ready    chan struct{}
}

// New returns a Catalog that does nothing before Run.
func New(options Options) *Catalog {
	if options.HoldOff == 0 {
		options.HoldOff = DefaultHoldOff
	}
	if options.MaxHoldOff == 0 {
		options.MaxHoldOff = DefaultMaxHoldOff
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	c := &Catalog{
		options: options,
		pending: map[mesh.ObjectRef]mesh.Fact{},
		wake:    make(chan struct{}, 1),
		ready:   make(chan struct{}),
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
	}
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

// Ready returns a channel that is closed when there is the first whole Snapshot.
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

// SubscribeObjects returns a channel of the objects that have come, changed or gone,
// or whose Problems have, until stop is closed. An object that changes again before
// it was received is told once.
func (c *Catalog) SubscribeObjects(stop <-chan struct{}) <-chan mesh.ObjectRef {
	return c.objects.subscribe(stop)
}

// Subscribe returns a channel of the UIDs of proxies whose View is new, changed or
// gone, until stop is closed. A proxy that changes again before it was received is
// told once.
func (c *Catalog) Subscribe(stop <-chan struct{}) <-chan string { return c.proxies.subscribe(stop) }

// Run joins facts as they come, until ctx ends. It is called once.
//
// These things can happen: facts come or are said to be complete; it has been quiet
// for the hold-off; the oldest change has waited long enough; the end.
func (c *Catalog) Run(ctx context.Context) {
	joined := newJoin()
	var quiet, late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
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
		c.publish(joined)
	}
}

// publish joins what is pending and makes it known.
func (c *Catalog) publish(joined *join) {
	c.mu.Lock()
	if !c.synced {
		c.mu.Unlock()
		return
	}
	facts := c.pending
	c.pending = map[mesh.ObjectRef]mesh.Fact{}
	c.mu.Unlock()

	begin, ran := time.Now(), joined.graph.Runs()
	for _, fact := range facts {
		joined.set(fact)
	}
	former, next := c.Snapshot(), joined.snapshot()
	c.snapshot.Store(next)
	c.tellObjects(facts, former.Problems, next.Problems)
	changed := 0
	for change := range next.Views.Diff(former.Views) {
		c.proxies.tell(change.Name)
		changed++
	}
	select {
	case <-c.ready:
	default:
		close(c.ready)
	}
	c.options.Log.Debug("joined the mesh", "facts", len(facts), "runs", joined.graph.Runs()-ran, "changed_views", changed, "duration", time.Since(begin))
}

// tellObjects tells of the objects of facts and of those whose Problems changed.
func (c *Catalog) tellObjects(facts map[mesh.ObjectRef]mesh.Fact, former, next mesh.Table[*mesh.Problems]) {
	for object := range facts {
		c.objects.tell(object)
	}
	for change := range next.Diff(former) {
		problems := change.Value
		if change.Delete {
			problems, _ = former.Get(change.Name)
		}
		c.objects.tell(problems.Object)
	}
}

// Build returns the Snapshot of the facts, of which the last of each object counts.
func Build(facts []mesh.Fact) *mesh.Snapshot {
	joined := newJoin()
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
		Views:     j.views.Current(only),
		Services:  j.servicesTable.Current(only),
		Workloads: j.workloadsTable.Current(only),
		Problems:  j.problems.Current(only),
	}
}
