// Package jwks fetches the public keys of tokens' issuers by https. It reads from the facts of TokenPolicies
// what to fetch, and the keys become facts. A user of a namespace chooses what is fetched, so the
// MeshConfig says from which hosts, and size, time, redirects and addresses are bounded.
package jwks

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// period is how often keys are fetched, and firstRetry how soon again after a failure; that is
	// doubled up to period.
	period     = 5 * time.Minute
	firstRetry = 10 * time.Second
	// settleTime limits how long the first Snapshot waits for keys.
	settleTime = 10 * time.Second
	// atOnce is how many addresses are fetched at the same time.
	atOnce = 64
	// perNamespace limits the addresses of one namespace.
	perNamespace = 16
)

// The reasons of Problems with fetched keys.
const (
	// ReasonNotFetched: keys could not be fetched. The last ones stay.
	ReasonNotFetched = "NotFetched"
	// ReasonDisabled: the MeshConfig does not allow to fetch them.
	ReasonDisabled = "Disabled"
	// ReasonTooMany: a namespace has more addresses than are fetched.
	ReasonTooMany = "TooMany"
)

// Options configure a Fetcher.
type Options struct {
	// Apply gets the facts of keys. It must not block.
	Apply func(...fact.Fact)
	Log   *slog.Logger

	// connect and period are replaced in tests.
	connect *connector
	period  time.Duration
}

// Fetcher fetches keys. Its methods are safe for concurrent use.
type Fetcher struct {
	options Options
	wake    chan struct{}
	slots   chan struct{}

	mu         sync.Mutex
	hosts      *source.KeyHosts
	members    map[string]bool
	policies   map[mesh.Name][]fact.KeyAddress
	sets       map[fact.KeyAddress]*set
	unexpected map[fact.KeyAddress]bool
}

// set is what is known of one address.
type set struct {
	keys []mesh.TokenKey
	// flaws are those of the keys, and failure the one of the last try.
	flaws   []fact.Flaw
	failure *fact.Flaw
	due     time.Time
	retry   time.Duration
	running bool
	// hosts are those of the last try.
	hosts *source.KeyHosts
	// tried is closed after the first try.
	tried chan struct{}
	ended bool
}

// New returns a Fetcher that fetches nothing until Run, and nothing before Allow.
func New(options Options) *Fetcher {
	if options.connect == nil {
		options.connect = newConnector()
	}
	if options.period == 0 {
		options.period = period
	}
	return &Fetcher{
		options: options, wake: make(chan struct{}, 1), slots: make(chan struct{}, atOnce), hosts: &source.KeyHosts{},
		members: map[string]bool{}, policies: map[mesh.Name][]fact.KeyAddress{}, sets: map[fact.KeyAddress]*set{}, unexpected: map[fact.KeyAddress]bool{},
	}
}

// Allow says from which hosts keys may be fetched. Keys of hosts that are no longer allowed are dropped.
func (f *Fetcher) Allow(hosts *source.KeyHosts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// The MeshConfig changes for other reasons too.
	if !hosts.Equal(f.hosts) {
		f.hosts = hosts
		f.signal()
	}
}

// Observe reads which keys the TokenPolicies of the mesh's namespaces ask for. It ignores other facts,
// and does not block.
func (f *Fetcher) Observe(facts ...fact.Fact) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range facts {
		object := &facts[i].Object
		name := mesh.Name{Namespace: object.Namespace, Name: object.Name}
		switch object.FullKind() {
		case "Namespace":
			namespace, _ := facts[i].Content.(*fact.Namespace)
			if member := namespace != nil && namespace.Member; member != f.members[name.Name] {
				f.members[name.Name] = member
				f.signal()
			}
		case "TokenPolicy":
			var addresses []fact.KeyAddress
			if policy, ok := facts[i].Content.(*fact.TokenPolicy); ok {
				for _, issuer := range policy.Issuers {
					if issuer.Fetched != (fact.KeyAddress{}) {
						addresses = append(addresses, issuer.Fetched)
					}
				}
			}
			if slices.Equal(addresses, f.policies[name]) {
				continue
			}
			if f.policies[name] = addresses; len(addresses) == 0 {
				delete(f.policies, name)
			}
			f.signal()
		}
	}
}

func (f *Fetcher) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run fetches until ctx ends.
func (f *Fetcher) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		due, next := f.schedule(time.Now())
		for _, address := range due {
			running.Go(func() { f.fetch(ctx, address) })
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-f.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Settle returns when every address that is asked for has been tried once, or after ten seconds. Run must
// be running.
func (f *Fetcher) Settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	f.mu.Lock()
	f.expect(time.Now())
	var tried []chan struct{}
	for _, s := range f.sets {
		tried = append(tried, s.tried)
	}
	f.signal()
	f.mu.Unlock()
	for _, one := range tried {
		select {
		case <-one:
		case <-ctx.Done():
			return
		}
	}
}

// expect makes the sets those that are asked for. Its caller holds mu.
func (f *Fetcher) expect(now time.Time) {
	wanted, excess := f.wanted()
	for address, s := range f.sets {
		if !wanted[address] {
			s.end()
			delete(f.sets, address)
			f.options.Apply(source.Gone(address.Object()))
		}
	}
	for address := range wanted {
		if f.sets[address] == nil {
			f.sets[address] = &set{due: now, tried: make(chan struct{})}
		}
	}
	for address := range f.unexpected {
		if !excess[address] && !wanted[address] {
			f.options.Apply(source.Gone(address.Object()))
		}
	}
	for address := range excess {
		if !f.unexpected[address] {
			f.options.Apply(factOf(address, nil, fact.Flaw{Reason: ReasonTooMany,
				Message: "the namespace has more addresses of keys than the controller fetches, 16, so none of the issuer's tokens is verified; remove others"}))
		}
	}
	f.unexpected = excess
}

// wanted returns the addresses to fetch, and those beyond a namespace's limit that nobody else asks for.
func (f *Fetcher) wanted() (wanted, excess map[fact.KeyAddress]bool) {
	of := map[string]map[fact.KeyAddress]bool{}
	for name, addresses := range f.policies {
		if !f.members[name.Namespace] {
			continue
		}
		if of[name.Namespace] == nil {
			of[name.Namespace] = map[fact.KeyAddress]bool{}
		}
		for _, address := range addresses {
			of[name.Namespace][address] = true
		}
	}
	wanted, excess = map[fact.KeyAddress]bool{}, map[fact.KeyAddress]bool{}
	for _, addresses := range of {
		// Those that are fetched already stay, so that one more policy takes none away.
		list := slices.SortedFunc(maps.Keys(addresses), func(a, b fact.KeyAddress) int {
			if known := f.sets[a] != nil; known != (f.sets[b] != nil) {
				if known {
					return -1
				}
				return 1
			}
			return strings.Compare(a.URL+" "+a.Issuer, b.URL+" "+b.Issuer)
		})
		for i, address := range list {
			if i < perNamespace {
				wanted[address] = true
			} else {
				excess[address] = true
			}
		}
	}
	maps.DeleteFunc(excess, func(address fact.KeyAddress, _ bool) bool { return wanted[address] })
	return wanted, excess
}

// schedule returns the addresses that are due, and how long until the next one is.
func (f *Fetcher) schedule(now time.Time) ([]fact.KeyAddress, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expect(now)
	var due []fact.KeyAddress
	next := time.Hour
	for address, s := range f.sets {
		switch {
		case s.running:
		case !s.due.After(now) || s.hosts != f.hosts:
			s.running = true
			due = append(due, address)
		default:
			next = min(next, s.due.Sub(now))
		}
	}
	return due, next
}

// fetch fetches one address, and applies the result.
func (f *Fetcher) fetch(ctx context.Context, address fact.KeyAddress) {
	f.mu.Lock()
	hosts := f.hosts
	f.mu.Unlock()
	var keys fact.KeySet
	err := allowed(hosts, address)
	if err == nil {
		select {
		case f.slots <- struct{}{}:
			keys, err = f.options.connect.fetch(ctx, hosts, address)
			<-f.slots
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.signal()
	s := f.sets[address]
	if s == nil {
		return
	}
	// Two runs of one address never overlap, unless it was removed and added again.
	s.running, s.hosts = false, hosts
	f.take(address, s, keys, err)
	s.end()
}

func (s *set) end() {
	if !s.ended {
		s.ended = true
		close(s.tried)
	}
}

// take applies the result of a try.
func (f *Fetcher) take(address fact.KeyAddress, s *set, keys fact.KeySet, err error) {
	var failure *fact.Flaw
	wait := f.options.period
	switch flaw := flawOf(err); {
	case err == nil:
		s.keys, s.flaws, s.retry = keys.Keys, keys.Flaws, 0
	case flaw.Reason == ReasonDisabled:
		// What the MeshConfig does not allow has no keys, also if it was allowed before.
		s.keys, s.flaws, s.retry, failure = nil, nil, 0, flaw
	default:
		s.retry = min(max(2*s.retry, firstRetry), f.options.period)
		wait, failure = s.retry, flaw
		if len(s.keys) > 0 {
			flaw.Message += "; the keys that were fetched before stay in use"
		} else {
			flaw.Message += ", so none of the issuer's tokens is verified"
		}
	}
	if failure != nil && (s.failure == nil || *s.failure != *failure) {
		f.options.Log.Warn("the keys of a token issuer cannot be fetched", "url", address.URL, "reason", failure.Reason, "problem", failure.Message)
	}
	s.failure = failure
	// Replicas and addresses must not all ask at the same time.
	s.due = time.Now().Add(wait - time.Duration(rand.Int64N(int64(wait)/5+1)))
	flaws := slices.Clone(s.flaws)
	if failure != nil {
		flaws = append(flaws, *failure)
	}
	f.options.Apply(factOf(address, s.keys, flaws...))
}

func factOf(address fact.KeyAddress, keys []mesh.TokenKey, flaws ...fact.Flaw) fact.Fact {
	return fact.Fact{
		Object:  address.Object(),
		Content: mesh.Seal(&fact.TokenKeys{Sets: map[string]fact.KeySet{"": {Keys: keys, Flaws: flaws}}}),
	}
}
