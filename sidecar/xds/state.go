package xds

import (
	"math"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// typeState tracks one resource type of a client: what it should have, what it has and
// what it subscribes to. The client has what the table says, except for the exceptions.
type typeState struct {
	Type
	// active is set once the client has sent a request for the type.
	active bool
	subscription
	// table holds the resources that the client should have.
	table mesh.Table[*Resource]
	// exceptions are the subscribed resources whose version is stale or unsent, or for
	// which the client awaits an answer.
	exceptions map[string]*exception
	// retries are groups of names, each to be sent in a response of its own before
	// anything else.
	retries [][]string
	// found are the items that remain of what additions found for several responses, in their
	// order. They are of the table.
	found []item
	// flight is the unacknowledged response.
	flight *flight
	// nonce is that of the last response.
	nonce string
	// expected are names that the client should subscribe to soon.
	expected map[string]struct{}
	// mustRespond is set if the client awaits a response even if it is empty.
	mustRespond bool
	limits      limits
}

// limits are those of the responses of a type.
type limits struct {
	// bytes limits the resources of one response, except for the first.
	bytes int
	// asking limits how many resources of one response make the client ask for others by
	// name. It asks for all of them in one request, and package crypto/tls keeps a buffer of that
	// size, up to 32 KiB, as long as the connection lasts.
	asking int
	// few is up to how many resources are sent in the order of their names.
	few int
}

// The state of the world has no limit of asking, because most of its responses have all
// resources that the client should have so far.
var (
	deltaLimits = limits{bytes: 1 << 20, asking: 128, few: 64}
	sotwLimits  = limits{bytes: 1 << 20, asking: math.MaxInt, few: 64}
)

// exception is the state of one resource of which a client's version differs from the
// table's.
type exception struct {
	// has is the digest of the client's version, zero if it has none; was is that resource
	// if it was sent on this stream.
	has mesh.Digest
	was *Resource
	// uncertain is set if the client's version is unknown, since the client rejected the
	// resource together with others; before is its last known version.
	uncertain bool
	before    mesh.Digest
	// refused is the digest of the rejected version, which is not sent again.
	refused mesh.Digest
	// awaited is set if the client awaits an answer, and resend if the resource is to be
	// sent again although it is up to date.
	awaited, resend bool
	// inFlight is set if it is in the unacknowledged response, and retry if it is in one
	// of the retries.
	inFlight, retry bool
}

// The exceptions of nearly all resources of a client that has just connected: unsent ones, ones for
// which it awaits an answer, and ones that are on their way. All clients share them, so that
// connecting costs little memory, and they are never changed.
var (
	unsent  = &exception{}
	awaited = &exception{awaited: true}
	sending = &exception{inFlight: true}
)

func (e *exception) isShared() bool { return e == unsent || e == awaited || e == sending }

// flight is an unacknowledged response.
type flight struct {
	nonce string
	items []item
	// late is set once the client should have another table than when the response was sent.
	late bool
}

// item is a resource in a response; a nil resource is a removal.
type item struct {
	name     string
	resource *Resource
}

func (i item) digest() mesh.Digest {
	if i.resource == nil {
		return mesh.Digest{}
	}
	return i.resource.digest
}

// asksFor reports whether the client subscribes to the name.
func (t *typeState) asksFor(name string) bool {
	return t.active && (t.wildcard || t.named(t.table, name))
}

// exceptionFor returns the exception of the resource, to be changed. Initially the client has
// nothing.
func (t *typeState) exceptionFor(name string) *exception {
	e := t.exceptions[name]
	if e == nil || e.isShared() {
		own := new(exception)
		if e != nil {
			*own = *e
		}
		e = own
		t.except(name, e)
	}
	return e
}

// except makes the exception that of the resource.
func (t *typeState) except(name string, e *exception) {
	if t.exceptions == nil {
		t.exceptions = make(map[string]*exception)
	}
	t.exceptions[name] = e
}

// await records that the client awaits an answer about the resource. Unless there is an exception
// already, it has nothing.
func (t *typeState) await(name string) {
	if e := t.exceptions[name]; e == nil || e == unsent {
		t.except(name, awaited)
	} else if !e.awaited {
		t.exceptionFor(name).awaited = true
	}
}

// reserve makes room for exceptions.
func (t *typeState) reserve(n int) {
	if t.exceptions == nil && n > 1 {
		t.exceptions = make(map[string]*exception, n)
	}
}

// prune drops the exception if it no longer differs from the table.
func (t *typeState) prune(name string, e *exception) {
	r, ok := t.table.Get(name)
	if !e.awaited && !e.resend && !e.inFlight && (ok && e.has == r.digest || !ok && e.has.IsZero()) {
		t.forget(name)
	}
}

func (t *typeState) forget(name string) {
	delete(t.exceptions, name)
	if len(t.exceptions) == 0 {
		// Maps do not shrink.
		t.exceptions = nil
	}
}

// unexpect records that the client has subscribed to the name or need not.
func (t *typeState) unexpect(name string) {
	delete(t.expected, name)
	if len(t.expected) == 0 {
		// Maps do not shrink.
		t.expected = nil
	}
}

// retarget makes next the table that the client should have.
func (t *typeState) retarget(next mesh.Table[*Resource]) {
	former := t.table
	for change := range next.Diff(former) {
		was, had := former.Get(change.Name)
		asked := t.asksFor(change.Name)
		if had == change.Delete {
			t.tableChanged(change.Name)
		}
		e := t.exceptions[change.Name]
		switch {
		case !asked:
			continue
		case e != nil:
			if !e.isShared() {
				e.refused, e.retry, e.uncertain = mesh.Digest{}, false, false
			}
		case change.Delete && t.Quiet && !t.wildcard:
			continue
		case had:
			e = t.exceptionFor(change.Name)
			e.has, e.was = was.digest, was
		case t.Quiet && !t.wildcard:
			// It may still have a version whose removal was suppressed.
			t.exceptionFor(change.Name).has = unknownDigest
		default:
			t.except(change.Name, unsent)
		}
	}
	t.table, t.retries, t.found = next, nil, nil
	if t.flight != nil {
		t.flight.late = true
	}
	for name, e := range t.exceptions {
		if e.retry {
			e.retry = false
		}
		if r, ok := next.Get(name); !ok && t.Quiet && !t.wildcard && !e.awaited && !e.inFlight {
			t.forget(name)
		} else if !ok || r.digest != e.refused {
			t.prune(name, e)
		}
	}
	for name := range t.expected {
		if _, ok := next.Get(name); !ok {
			t.unexpect(name)
		}
	}
	t.compact(next)
}

// action is what an exception requires.
type action int

const (
	nothing action = iota
	send
	remove
)

// action returns what is required, where the client should have the resource, or none if it is nil.
func (e *exception) action(r *Resource) action {
	switch {
	case e.inFlight:
		return nothing
	case r == nil && (e.awaited || !e.has.IsZero()):
		return remove
	case r == nil || r.digest == e.refused:
		return nothing
	case e.has != r.digest || e.awaited || e.resend:
		return send
	}
	return nothing
}

// resource returns the resource that the client should have, or nil if it should have none.
func (t *typeState) resource(name string) *Resource {
	r, _ := t.table.Get(name)
	return r
}

// additions returns the items of the next response: new and changed resources, and
// removals that the client awaits.
func (t *typeState) additions() []item {
	for len(t.retries) > 0 {
		group := t.retries[0]
		t.retries = t.retries[1:]
		var items []item
		for _, name := range group {
			if e := t.exceptions[name]; e != nil && e.retry {
				e.retry = false
				if r := t.resource(name); e.action(r) == send {
					items = append(items, item{name, r})
				}
			}
		}
		if len(items) > 0 {
			return items
		}
	}
	if items := t.takeFound(); len(items) > 0 {
		return items
	}
	found, removals := t.find()
	if len(removals) > 0 {
		// They are sent alone, so that a bad resource cannot block them.
		return removals
	}
	t.found = found
	return t.takeFound()
}

// takeFound returns the items of the next response from what was found before.
func (t *typeState) takeFound() []item {
	found, n := t.found, 0
	t.found = nil
	size, asking := 0, 0
	for k, i := range found {
		// The client may have unsubscribed from it since it was found.
		if e := t.exceptions[i.name]; e == nil || e.action(i.resource) != send {
			continue
		}
		size += i.resource.size
		if i.resource.Asks != "" {
			asking++
		}
		if n > 0 && (size > t.limits.bytes || asking > t.limits.asking) {
			t.found = found[k:]
			break
		}
		found[n] = i
		n++
	}
	return found[:n:n]
}

// find returns all new and changed resources, and the removals that the client awaits, in an
// order that depends only on what they are: by name, unless they are many.
func (t *typeState) find() (items, removals []item) {
	if n := len(t.exceptions); n > t.limits.few && n > t.table.Len()/2 {
		// Most proxies that connect lack everything. Going through the table is then cheaper
		// than sorting.
		items = make([]item, 0, len(t.exceptions))
		seen := 0
		for name, r := range t.table.All() {
			if e := t.exceptions[name]; e != nil {
				seen++
				if e.action(r) == send {
					items = append(items, item{name, r})
				}
			}
		}
		if seen == len(t.exceptions) {
			return items, nil
		}
		items = items[:0]
	}
	for name, e := range t.exceptions {
		switch r := t.resource(name); {
		case e.action(r) == send:
			items = append(items, item{name, r})
		case e.awaited && e.action(r) == remove:
			removals = append(removals, item{name: name})
		}
	}
	return sorted(items), sorted(removals)
}

// removals returns the removals of the next response.
func (t *typeState) removals() []item {
	var items []item
	for name, e := range t.exceptions {
		if e.action(t.resource(name)) == remove {
			items = append(items, item{name: name})
		}
	}
	return sorted(items)
}

// sorted sorts the items by name, and returns them.
func sorted(items []item) []item {
	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.name, b.name) })
	return items
}

// pending reports whether anything is unsent or unacknowledged. Removals that nobody
// awaits count only with removals set.
func (t *typeState) pending(removals bool) bool {
	if t.flight != nil || t.mustRespond || len(t.expected) > 0 {
		return true
	}
	for name, e := range t.exceptions {
		if a := e.action(t.resource(name)); a == send || a == remove && (removals || e.awaited) {
			return true
		}
	}
	return false
}

// markSent records that the items are sent under the nonce.
func (t *typeState) markSent(nonce string, items []item) {
	t.nonce, t.mustRespond = nonce, false
	t.flight = &flight{nonce: nonce, items: items}
	for _, i := range items {
		if e := t.exceptions[i.name]; e == nil || e.isShared() {
			t.except(i.name, sending)
		} else {
			e.inFlight, e.awaited, e.resend = true, false, false
		}
	}
}

// ack records that the client has accepted the response in flight, and returns its
// items.
func (t *typeState) ack() []item {
	f := t.flight
	t.flight = nil
	for _, i := range f.items {
		t.delivered(i, f.late)
	}
	return f.items
}

// delivered records that the client has the item, of a response that may be late.
func (t *typeState) delivered(i item, late bool) {
	e := t.exceptions[i.name]
	switch {
	case e == nil || !e.inFlight:
		return
	case e == sending && (!late || t.resource(i.name) == i.resource):
		t.forget(i.name)
		return
	}
	e = t.exceptionFor(i.name)
	e.inFlight, e.uncertain, e.has, e.was = false, false, i.digest(), i.resource
	t.prune(i.name, e)
}

// nack records that the client has rejected the response in flight. A resource that was
// rejected alone is not sent again before it changes. If several were rejected, any of
// them may be bad, so they are sent again in parts: those named in the client's message
// one by one, or otherwise in halves.
//
// Envoy rejects a response as a whole and remembers none of its versions. It still
// applies the good clusters and listeners and names the bad ones in its message. It
// applies routes, endpoints and secrets up to the first bad one, and nothing of a
// response that it cannot decode. It ignores resources that it has already applied when
// they are sent again.
func (t *typeState) nack(message string) {
	f := t.flight
	t.flight = nil
	var refused []item
	for _, i := range f.items {
		e := t.exceptions[i.name]
		switch {
		case i.resource == nil:
			// There is no other way to send a removal.
			t.delivered(i, f.late)
		case e != nil && e.inFlight:
			refused = append(refused, i)
		}
	}
	if len(refused) == 1 {
		i := refused[0]
		e := t.exceptionFor(i.name)
		e.inFlight, e.refused = false, i.digest()
		if e.uncertain {
			e.uncertain, e.has = false, e.before
		}
		t.prune(i.name, e)
		return
	}
	names := make([]string, len(refused))
	for n, i := range refused {
		names[n] = i.name
		// Envoy may have applied some of the rejected resources.
		e := t.exceptionFor(i.name)
		if !e.uncertain {
			e.uncertain, e.before = true, e.has
		}
		e.inFlight, e.retry, e.has = false, true, unknownDigest
	}
	t.retries = append(split(names, message), t.retries...)
}

// split returns the names in groups, at least two if there are two names.
func split(names []string, message string) [][]string {
	var suspects [][]string
	var others []string
	for _, name := range names {
		if strings.Contains(message, name) {
			suspects = append(suspects, []string{name})
		} else {
			others = append(others, name)
		}
	}
	const few = 16
	switch {
	case len(names) < 2:
		return [][]string{names}
	case len(others) > 0 && len(suspects) > 0 && len(suspects) <= few:
		return append([][]string{others}, suspects...)
	}
	return [][]string{names[:len(names)/2], names[len(names)/2:]}
}
