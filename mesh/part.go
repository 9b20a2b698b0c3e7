package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// PartKind is a kind of Part.
type PartKind string

// Kinds of parts. A View without the part answers requests to a destination with 500 and
// closes its connections, does the same for the share of a backend, and denies what an
// egress match, a permission or an ingress would allow.
const (
	PartDestination PartKind = "destination"
	PartBackend     PartKind = "backend"
	PartEgress      PartKind = "egress match"
	PartPermission  PartKind = "permission"
	PartIngress     PartKind = "ingress"
)

// Part is a piece of a View that can be left out by itself, without allowing anything. It
// is comparable. Parts with the same content in different Views are equal.
type Part struct {
	Kind PartKind
	// Name is that of the destination, backend, permission or ingress. For an egress match
	// it is "host:port".
	Name string
	// Namespace is that of the objects which the part was made of; empty if unknown.
	Namespace string
	// Digest is that of the content.
	Digest Digest
}

// String returns "KIND NAME".
func (p Part) String() string { return string(p.Kind) + " " + p.Name }

// Inbound reports whether the part is about what a proxy accepts.
func (p Part) Inbound() bool { return p.Kind == PartPermission || p.Kind == PartIngress }

// Compare orders parts by kind, name and content.
func (p Part) Compare(other Part) int {
	return cmp.Or(cmp.Compare(p.Kind, other.Kind), cmp.Compare(p.Name, other.Name), slices.Compare(p.Digest[:], other.Digest[:]))
}

// PartsSince returns the parts of the View that the former one lacks, sorted; all parts if
// former is nil. Its cost is proportional to the difference.
func (v *View) PartsSince(former *View) []Part {
	var before struct {
		destinations Table[*Destination]
		backends     Table[*Backend]
		egress       *Egress
		inbound      *Inbound
	}
	if former != nil {
		before.destinations, before.backends = former.Outbound.Destinations, former.Outbound.Backends
		before.egress, before.inbound = former.Egress, former.Inbound
	}
	parts := make(map[Part]struct{})
	for c := range v.Outbound.Destinations.Diff(before.destinations) {
		if !c.Delete {
			parts[partOfDestination(c.Value)] = struct{}{}
		}
	}
	for c := range v.Outbound.Backends.Diff(before.backends) {
		if !c.Delete {
			parts[partOfBackend(c.Value)] = struct{}{}
		}
	}
	if before.egress == nil || before.egress.Digest() != v.Egress.Digest() {
		addNew(parts, egressParts(v.Egress), egressParts(before.egress))
	}
	if before.inbound == nil || before.inbound.Digest() != v.Inbound.Digest() {
		addNew(parts, inboundParts(v.Inbound), inboundParts(before.inbound))
	}
	return slices.SortedFunc(maps.Keys(parts), Part.Compare)
}

func addNew(parts, now, before map[Part]struct{}) {
	for part := range now {
		if _, known := before[part]; !known {
			parts[part] = struct{}{}
		}
	}
}

func partOfDestination(d *Destination) Part {
	return Part{PartDestination, d.Name, d.Service.Namespace, d.Digest()}
}

func partOfBackend(b *Backend) Part {
	return Part{PartBackend, b.Name, b.Service.Namespace, b.Digest()}
}

func partOfPermission(p Permission) Part {
	return Part{PartPermission, p.Origin.Name(), p.Origin.Object.Namespace, DigestOf(p)}
}

func partOfDenial(d Denial) Part {
	return Part{PartPermission, d.Origin.Name(), d.Origin.Object.Namespace, DigestOf(d)}
}

func partOfIngress(i Ingress) Part {
	return Part{PartIngress, i.Origin.Name(), i.Origin.Object.Namespace, DigestOf(i)}
}

// partOfMatch returns the part of a match of a host, which allows it within some ranges or
// everywhere.
func partOfMatch(port EgressRoutes, host EgressHost, within []EgressWithin, match HTTPMatch) Part {
	var ranges any
	if len(within) > 0 {
		ranges = within[0].Ranges
	}
	name := partName(port, host)
	return Part{PartEgress, name, "", DigestOf([]any{port.Protocol, name, ranges, match})}
}

// partName returns the Name of the parts of a host.
func partName(port EgressRoutes, host EgressHost) string {
	return fmt.Sprintf("%s:%d", host.Host, port.Port)
}

func egressParts(e *Egress) map[Part]struct{} {
	parts := make(map[Part]struct{})
	if e == nil {
		return parts
	}
	for _, port := range e.Ports {
		for _, host := range port.Hosts {
			for _, match := range host.Matches {
				parts[partOfMatch(port, host, nil, match)] = struct{}{}
			}
			for i, within := range host.Within {
				for _, match := range within.Matches {
					parts[partOfMatch(port, host, host.Within[i:i+1], match)] = struct{}{}
				}
			}
		}
	}
	return parts
}

func inboundParts(in *Inbound) map[Part]struct{} {
	parts := make(map[Part]struct{})
	if in == nil {
		return parts
	}
	for _, access := range in.accesses() {
		for _, rule := range access.Rules {
			parts[partOfPermission(rule)] = struct{}{}
		}
		for _, denial := range access.Denials {
			parts[partOfDenial(denial)] = struct{}{}
		}
	}
	for _, port := range in.Ports {
		for _, ingress := range port.Ingress {
			parts[partOfIngress(ingress)] = struct{}{}
		}
	}
	return parts
}

// Has reports whether the View has the part.
func (v *View) Has(part Part) bool {
	switch part.Kind {
	case PartDestination:
		d, ok := v.Outbound.Destinations.Get(part.Name)
		return ok && partOfDestination(d) == part
	case PartBackend:
		b, ok := v.Outbound.Backends.Get(part.Name)
		return ok && partOfBackend(b) == part
	case PartEgress:
		_, ok := egressParts(v.Egress)[part]
		return ok
	default:
		_, ok := inboundParts(v.Inbound)[part]
		return ok
	}
}

// Without returns the View without those of its parts that are given, and the View itself if
// it has none of them. Everything else is shared. A destination that is left out keeps its
// addresses, so that nothing else takes its traffic.
func (v *View) Without(parts map[Part]struct{}) *View {
	if len(parts) == 0 {
		return v
	}
	outbound, egress, inbound := v.Outbound.without(parts), v.Egress.without(parts), v.Inbound.without(parts)
	if outbound == v.Outbound && egress == v.Egress && inbound == v.Inbound {
		return v
	}
	return NewView(v.Proxy, v.Settings, inbound, outbound, egress)
}

func (o *Outbound) without(parts map[Part]struct{}) *Outbound {
	gone := make(map[string]struct{})
	var backends []Change[*Backend]
	destinations := make(map[string]*Destination)
	for part := range parts {
		switch part.Kind {
		case PartBackend:
			if b, ok := o.Backends.Get(part.Name); ok && partOfBackend(b) == part {
				gone[part.Name] = struct{}{}
				backends = append(backends, Change[*Backend]{Name: part.Name, Delete: true})
			}
		case PartDestination:
			if d, ok := o.Destinations.Get(part.Name); ok && partOfDestination(d) == part {
				destinations[part.Name] = d.failing()
			}
		}
	}
	if len(gone) > 0 {
		for name, d := range o.Destinations.All() {
			if _, already := destinations[name]; already {
				continue
			}
			for backend := range d.AllBackends() {
				if _, is := gone[backend]; is {
					destinations[name] = d.withoutBackends(gone)
					break
				}
			}
		}
	}
	if len(destinations) == 0 && len(backends) == 0 {
		return o
	}
	var changes []Change[*Destination]
	for name, d := range destinations {
		changes = append(changes, Change[*Destination]{Name: name, Value: d})
	}
	without := NewOutbound(o.Scope, o.Destinations.With(changes...), o.Backends.With(backends...))
	if len(o.Unknown) > 0 {
		without = without.WithUnknown(o.Unknown)
	}
	return without
}

// failing returns the Destination with nothing but the answer 500, or closed connections.
func (d *Destination) failing() *Destination {
	failing := *d
	failing.Sealed = Sealed{}
	failing.Routes, failing.Backends, failing.Servers, failing.HashOn, failing.Hosts = nil, nil, nil, nil, nil
	nothing := []WeightedBackend{{Weight: 1}}
	if d.Protocol.IsHTTP() {
		failing.Routes = []Route{{Backends: nothing}}
	} else {
		failing.Backends = nothing
	}
	return Seal(&failing)
}

// withoutBackends returns the Destination with these backends replaced by the answer 500 or
// closed connections. Copies of requests are not sent to them.
func (d *Destination) withoutBackends(gone map[string]struct{}) *Destination {
	replace := func(backends []WeightedBackend) []WeightedBackend {
		replaced := slices.Clone(backends)
		for i, b := range replaced {
			if _, is := gone[b.Backend]; is {
				replaced[i] = WeightedBackend{Weight: b.Weight}
			}
		}
		return replaced
	}
	without := *d
	without.Sealed = Sealed{}
	without.Routes, without.Backends, without.Servers = slices.Clone(d.Routes), replace(d.Backends), slices.Clone(d.Servers)
	for i := range without.Routes {
		route := &without.Routes[i]
		route.Backends = replace(route.Backends)
		route.Mirrors = slices.DeleteFunc(slices.Clone(route.Mirrors), func(m Mirror) bool { _, is := gone[m.Backend]; return is })
	}
	for i := range without.Servers {
		without.Servers[i].Backends = replace(without.Servers[i].Backends)
	}
	return Seal(&without)
}

func (e *Egress) without(parts map[Part]struct{}) *Egress {
	if !anyOf(parts, PartEgress) || !anyIn(egressParts(e), parts) {
		return e
	}
	without := *e
	without.Sealed = Sealed{}
	without.Ports = slices.Clone(e.Ports)
	for p := range without.Ports {
		port := &without.Ports[p]
		port.Hosts = slices.Clone(port.Hosts)
		for h := range port.Hosts {
			host := &port.Hosts[h]
			keep := func(within []EgressWithin, matches []HTTPMatch) []HTTPMatch {
				kept := make([]HTTPMatch, 0, len(matches))
				for _, match := range matches {
					if _, out := parts[partOfMatch(*port, *host, within, match)]; !out {
						kept = append(kept, match)
					}
				}
				return kept
			}
			// A host without matches stays, so that nothing else allows it.
			host.Matches = keep(nil, host.Matches)
			var kept []EgressWithin
			for _, within := range host.Within {
				if matches := keep([]EgressWithin{within}, within.Matches); len(matches) > 0 {
					kept = append(kept, EgressWithin{Ranges: within.Ranges, Matches: matches})
				}
			}
			host.Within = kept
		}
	}
	return Seal(&without)
}

func (in *Inbound) without(parts map[Part]struct{}) *Inbound {
	if !anyOf(parts, PartPermission, PartIngress) || !anyIn(inboundParts(in), parts) {
		return in
	}
	// What a denial that is left out might refuse is refused with all the rest.
	closed := func(a Access) bool {
		return slices.ContainsFunc(a.Denials, func(d Denial) bool { _, out := parts[partOfDenial(d)]; return out })
	}
	access := func(a Access) Access {
		if closed(a) {
			return Access{}
		}
		a.Rules = slices.DeleteFunc(slices.Clone(a.Rules), func(p Permission) bool { _, out := parts[partOfPermission(p)]; return out })
		return a
	}
	without := *in
	without.Sealed = Sealed{}
	without.Ports, without.Others = slices.Clone(in.Ports), access(in.Others)
	for i := range without.Ports {
		port := &without.Ports[i]
		if closed(port.Access) {
			port.Ingress = nil
		}
		port.Access = access(port.Access)
		port.Ingress = slices.DeleteFunc(slices.Clone(port.Ingress), func(i Ingress) bool { _, out := parts[partOfIngress(i)]; return out })
	}
	return Seal(&without)
}

func anyOf(parts map[Part]struct{}, kinds ...PartKind) bool {
	for part := range parts {
		if slices.Contains(kinds, part.Kind) {
			return true
		}
	}
	return false
}

func anyIn(all, parts map[Part]struct{}) bool {
	for part := range parts {
		if _, is := all[part]; is {
			return true
		}
	}
	return false
}
