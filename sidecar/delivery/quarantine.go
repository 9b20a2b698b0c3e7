package delivery

import (
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Quarantine decides which parts of its View a proxy is not given, because it refuses
// configurations with them. It belongs to one connected proxy, has neither a clock nor I/O,
// and is not safe for concurrent use.
//
//	         refused               accepted, parts are held
//	Whole ───────────▶ Narrowed ───────────────────────────▶ Searching ──▶ Settled
//	  ▲                   │ refused: hold more parts            │  ▲ accepted: keep the
//	  │                   ▼                                     ▼  │ half; refused: halve it
//	  └──────────── nothing is left to hold                 a single part is refused: it is
//	                                                        convicted
//
// A new View may come at any time. Parts that are held or convicted are tried again when
// their content changes.
type Quarantine struct {
	class *Convictions
	// latest is the View without anything left out, offered what the proxy was given last,
	// and accepted what it accepted last; nil if it accepted nothing yet.
	latest, offered, accepted *mesh.View
	// before is what it accepted before that.
	before *mesh.View
	// held are the parts that are left out until they have been tried, and trying those
	// of them that the offered View has again.
	held   map[mesh.Part]struct{}
	trying []mesh.Part
	// width is the index in widths of the parts to hold next.
	width int
	// hopeless is set while the offered View is refused whatever is left out.
	hopeless bool
	leftOut  []Conviction
}

// widths are the parts that are held one after the other while the proxy refuses what is
// left. What has changed since the last accepted View comes before what has not, texts of
// other namespaces before those of the proxy's own, and inbound rules last.
var widths = []struct {
	unchanged bool
	has       func(part mesh.Part, own string) bool
}{
	{false, func(p mesh.Part, own string) bool {
		return p.Kind == mesh.PartEgress || p.Kind == mesh.PartDestination && p.Namespace != own
	}},
	{false, func(p mesh.Part, _ string) bool { return p.Kind == mesh.PartDestination }},
	{false, func(p mesh.Part, _ string) bool { return p.Kind == mesh.PartBackend }},
	{true, func(p mesh.Part, _ string) bool { return !p.Inbound() }},
	{false, func(p mesh.Part, _ string) bool { return p.Inbound() }},
	{true, func(mesh.Part, string) bool { return true }},
}

// NewQuarantine returns the Quarantine of a proxy that has accepted nothing yet. Proxies of
// one class share what is known.
func NewQuarantine(class *Convictions) *Quarantine { return &Quarantine{class: class} }

// Offer returns the View to give to the proxy when latest is its View. It is latest itself
// unless something is left out.
func (q *Quarantine) Offer(latest *mesh.View) *mesh.View {
	q.latest, q.trying, q.width, q.hopeless = latest, nil, 0, false
	maps.DeleteFunc(q.held, func(part mesh.Part, _ struct{}) bool { return !latest.Has(part) })
	return q.offer()
}

// offer makes the View without what is convicted or held and not tried.
func (q *Quarantine) offer() *mesh.View {
	q.leftOut = q.class.of(q.latest)
	out := make(map[mesh.Part]struct{}, len(q.leftOut)+len(q.held))
	for _, known := range q.leftOut {
		out[known.Part] = struct{}{}
	}
	for part := range q.held {
		out[part] = struct{}{}
	}
	for _, part := range q.trying {
		delete(out, part)
	}
	q.offered = q.latest.Without(out)
	return q.offered
}

// Accepted records that the proxy accepted the offered View, and returns the View to give
// to it next.
func (q *Quarantine) Accepted() *mesh.View {
	if q.accepted != q.offered {
		q.before = q.accepted
	}
	q.accepted, q.width, q.hopeless = q.offered, 0, false
	for _, part := range q.trying {
		delete(q.held, part)
	}
	q.trying = nil
	if len(q.held) == 0 {
		return q.offered
	}
	return q.tryHalf()
}

// Refusal says what a proxy refused.
type Refusal struct {
	// Message is the proxy's.
	Message string
	// Of reports whether the part may be the cause, where a proxy refuses single resources. If
	// it is nil, the proxy refused the whole View, and any part may be.
	Of func(mesh.Part) bool
}

// Refused records that the proxy refused the offered View or, if each Refusal names its parts,
// some resources of it, and returns the View to give to it next. Once nothing helps against
// the refusal of a View, that is the View with everything that is not convicted, and against
// that of resources, the offered View.
func (q *Quarantine) Refused(refusals ...Refusal) *mesh.View {
	if q.accepted == q.offered {
		// It did not hold what it had accepted.
		q.accepted = q.before
	}
	if q.hopeless {
		return q.offered
	}
	// Where resources are refused by themselves, the others of what is tried are good.
	q.trying = slices.DeleteFunc(slices.Clone(q.trying), func(part mesh.Part) bool { return causeOf(refusals, part) == nil })
	switch len(q.trying) {
	case 0:
		return q.widen(refusals)
	case 1:
		q.class.convict(q.trying[0], causeOf(refusals, q.trying[0]).Message)
		delete(q.held, q.trying[0])
		return q.tryHalf()
	}
	q.trying = q.trying[:len(q.trying)/2]
	return q.offer()
}

// causeOf returns the first Refusal that the part may have caused, or nil.
func causeOf(refusals []Refusal, part mesh.Part) *Refusal {
	for i := range refusals {
		if of := refusals[i].Of; of == nil || of(part) {
			return &refusals[i]
		}
	}
	return nil
}

// tryHalf offers half of the held parts, or everything that is not convicted.
func (q *Quarantine) tryHalf() *mesh.View {
	held := slices.SortedFunc(maps.Keys(q.held), mesh.Part.Compare)
	q.trying = held[:(len(held)+1)/2]
	return q.offer()
}

// widen holds more of the parts that may be the cause. If there are none, it gives up and, if
// the whole View was refused, holds none.
func (q *Quarantine) widen(refusals []Refusal) *mesh.View {
	own := q.latest.Proxy.Namespace
	for ; q.width < len(widths); q.width++ {
		width, since := widths[q.width], q.accepted
		if width.unchanged {
			since = nil
		}
		more := false
		for _, part := range q.offered.PartsSince(since) {
			if width.has(part, own) && q.latest.Has(part) && causeOf(refusals, part) != nil {
				if q.held == nil {
					q.held = make(map[mesh.Part]struct{})
				}
				q.held[part] = struct{}{}
				more = true
			}
		}
		if more {
			q.width++
			return q.offer()
		}
	}
	if slices.ContainsFunc(refusals, func(r Refusal) bool { return r.Of != nil }) {
		return q.offered
	}
	// The proxy keeps what it has until its View changes.
	q.held, q.hopeless = nil, true
	return q.offer()
}

// Idle reports whether no parts are held, so that Accepted has nothing else to offer.
func (q *Quarantine) Idle() bool { return len(q.held) == 0 }

// Settled reports whether the proxy accepted the offered View and nothing is left to try.
func (q *Quarantine) Settled() bool {
	return q.accepted != nil && q.accepted.Digest() == q.offered.Digest() && len(q.held) == 0
}

// LeftOut returns the convicted parts that the offered View lacks, sorted.
func (q *Quarantine) LeftOut() []Conviction { return q.leftOut }
