package catalog

import (
	"context"
	"net/netip"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// onDemand returns the other Services that clients know who get those on demand that they
// use.
func (c clients) onDemand() (others fact.Services, ok bool) {
	if c.services == "" {
		return nil, false
	}
	return fact.ParseServices(c.services).OnDemand()
}

// makeOnDemand returns the Outbound of clients of a service account that know the Services
// and what they have used, which is not everything.
func (j *join) makeOnDemand(r *graph.Reader, key clients, others fact.Services) *mesh.Outbound {
	account := key.ServiceAccount
	used := j.usedBy.Get(r, account)
	listed := mesh.NewOutbound("", mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{})
	if len(others) > 0 {
		listed = j.outbounds.Get(r, j.shared.Get(r, clients{ServiceAccount: account, services: others.String()}))
	}
	var destinations []mesh.Change[*mesh.Destination]
	var backends []mesh.Change[*mesh.Backend]
	retried := j.retried.Of(account).Get(r)
	for _, offered := range j.offersOf(r, account, used) {
		for _, d := range offered.destinations {
			if own, ok := retried.Get(d.Name); ok {
				d = own
			}
			destinations = append(destinations, mesh.Change[*mesh.Destination]{Name: d.Name, Value: d})
		}
		for _, b := range offered.backends {
			backends = append(backends, mesh.Change[*mesh.Backend]{Name: b.Name, Value: b})
		}
	}
	known := mesh.NewOutbound(key.scope(), listed.Destinations.With(destinations...), listed.Backends.With(backends...))
	return known.WithUnknown(j.unknown(r))
}

// offersOf returns what a service account gets of what it has used.
func (j *join) offersOf(r *graph.Reader, account fact.ServiceAccount, used *used) []offer {
	permissive := j.mustSettings(r).PermissivePolicy
	var offers []offer
	called := slices.Clone(used.Pods)
	for _, name := range used.Services {
		svc := j.service(r, name)
		if svc == nil {
			continue
		}
		for _, spec := range svc.Ports {
			of := j.audienceIn(r, mesh.ServicePort{Name: name, Port: spec.Port}, account.Namespace)
			if permissive {
				offers = append(offers, j.offerOf(r, of))
			} else if slices.Contains(j.sourcesOf(r, of), account) {
				offers = append(offers, j.offerOfTo(r, account, svc, of))
			}
		}
		if len(j.routesFor(r, name)) > 0 {
			for w := range j.endpointsOf(r, name) {
				called = append(called, w.Name)
			}
		}
	}
	for _, key := range called {
		w, ok := j.workloads.Get(r, key)
		if ok && j.hasSidecar(r, w) && (permissive || slices.Contains(j.grants.Get(r, accountOf(w)).sources, account)) {
			offers = append(offers, j.direct(r, key))
		}
	}
	return offers
}

// used is what a service account has used.
type used struct {
	fact.Used
	digest mesh.Digest
}

func (u *used) Digest() mesh.Digest { return u.digest }

func (j *join) makeUsed(r *graph.Reader, account fact.ServiceAccount) *used {
	made := &used{}
	if l, ok := j.learned.Get(r, mesh.Name{Namespace: account.Namespace, Name: fact.LearnedName}); ok {
		made.Used = l.Accounts[account.Name]
	}
	made.digest = mesh.DigestOf(made.Used)
	return made
}

// addressRange has addresses of Destinations.
type addressRange struct {
	mesh.Sealed
	Prefix netip.Prefix
}

// The lengths of the prefixes of Outbound.Unknown. They are a compromise: connections out of
// the mesh to addresses that share a prefix with the mesh take the way by the agent, and each
// new prefix is a change of every Outbound on demand.
const (
	prefix4 = 16
	prefix6 = 48
)

// putRanges puts the prefixes of the addresses of Destinations.
func (j *join) putRanges(out *graph.Output, destinations []*mesh.Destination) {
	var last netip.Prefix
	for _, d := range destinations {
		for _, address := range d.Addresses {
			bits := prefix4
			if address.Is6() {
				bits = prefix6
			}
			prefix, err := address.Prefix(bits)
			if err != nil || prefix == last {
				continue
			}
			last = prefix
			graph.Put(out, j.ranges, prefix.String(), mesh.Seal(&addressRange{Prefix: prefix}))
		}
	}
}

// unknown returns all ranges, sorted.
func (j *join) unknown(r *graph.Reader) []netip.Prefix {
	var all []netip.Prefix
	for _, found := range j.ranges.Get(r).All() {
		all = append(all, found.Prefix)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return all
}

// find returns what the pods of a service account use when they call an address, or false if
// that is nothing in the mesh that they may call.
func (j *join) find(account fact.ServiceAccount, address netip.AddrPort) (fact.Used, bool) {
	calls := []clients{{ServiceAccount: account}}
	if settings := j.settings.Current(single); settings != nil && settings.PermissivePolicy {
		calls = []clients{inNamespace(account.Namespace), everyone}
	}
	for _, of := range calls {
		for _, d := range j.destinationTables.Current(of).All() {
			if d.Port != address.Port() || !slices.Contains(d.Addresses, address.Addr()) {
				continue
			}
			if !isDirect(d.Name) {
				return fact.Used{Services: fact.Services{d.Service.Name}}, true
			}
			if services := j.servicesOf.Current(d.Service.Name); len(services) > 0 {
				return fact.Used{Services: services}, true
			}
			return fact.Used{Pods: []mesh.Name{d.Service.Name}}, true
		}
	}
	return fact.Used{}, false
}

// question is a call of Find.
type question struct {
	account fact.ServiceAccount
	at      netip.AddrPort
	answer  chan<- answer
}

type answer struct {
	used  fact.Used
	found bool
}

// Find returns what the pods of a service account use when they call an address, or false if
// that is nothing in the mesh that they may call. It waits for the first Snapshot. An error
// is the cause of ctx.
func (c *Catalog) Find(ctx context.Context, account fact.ServiceAccount, address netip.AddrPort) (fact.Used, bool, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return fact.Used{}, false, context.Cause(ctx)
	}
	answers := make(chan answer, 1)
	select {
	case c.questions <- question{account, address, answers}:
	case <-ctx.Done():
		return fact.Used{}, false, context.Cause(ctx)
	}
	select {
	case a := <-answers:
		return a.used, a.found, nil
	case <-ctx.Done():
		return fact.Used{}, false, context.Cause(ctx)
	}
}

// AwaitDestination waits until the View of a proxy has a Destination at the address, or knows
// that it has everything. An error is the cause of ctx.
func (c *Catalog) AwaitDestination(ctx context.Context, proxyUID string, address netip.AddrPort) error {
	for {
		// Subscribe before checking, so that no View is missed in between.
		changed, leave := c.awaited.enter(proxyUID)
		view, ok := c.View(proxyUID)
		if ok && Knows(view, address) {
			leave()
			return nil
		}
		select {
		case <-changed:
			leave()
		case <-ctx.Done():
			leave()
			return context.Cause(ctx)
		}
	}
}

// Knows reports whether a View has a Destination at the address, or everything that its proxy
// may call.
func Knows(view *mesh.View, address netip.AddrPort) bool {
	if len(view.Outbound.Unknown) == 0 {
		return true
	}
	for _, d := range view.Outbound.Destinations.All() {
		if d.Port == address.Port() && slices.Contains(d.Addresses, address.Addr()) {
			return true
		}
	}
	return false
}
