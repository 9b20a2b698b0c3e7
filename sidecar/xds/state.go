package xds

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// typeState is what a client has of one type, what it should have and what it asks
// for. What it has is the table, but for the exceptions.
type typeState struct {
	Type
	// active says that the client has asked for the type.
	active bool
	subscription
	// table is what it should have.
	table mesh.Table[*Resource]
	// exceptions are the resources, of those that the client asks for, of which it has
	// something else than the table, or which it waits for.
	exceptions map[string]*exception
	// retries are names to be sent in one response each time, ahead of others.
	retries [][]string
	// flight is the response that the client has not answered yet.
	flight *flight
	// nonce is that of the last response, and accepted the version of the last one that
	// was not refused.
	nonce string
	// expected are the names that the client is to ask for soon.
	expected map[string]struct{}
	// greet says that the client waits for a response even if there is nothing in it.
	greet bool
}

// exception is one resource of which a client has not what the table has.
type exception struct {
	// has is the digest of what it has, zero if it has nothing, and was is that if it
	// came by this stream.
	has mesh.Digest
	was *Resource
	// unsure says that what it has is not known, as it refused this and others together,
	// and before what it had until then.
	unsure bool
	before mesh.Digest
	// refused is the digest of what it has refused, which is not sent again.
	refused mesh.Digest
	// asked says that it waits to be told, and again that it is to be sent what it has.
	asked, again bool
	// flying says that it is in the response that is not answered yet, and retry that
	// it is in one of the retries.
	flying, retry bool
}

// flight is a response that is not answered yet.
type flight struct {
	nonce string
	items []item
}

// item is a resource of a response; without a resource, the end of one.
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

// asksFor reports whether the client is to have the resource of that name.
func (t *typeState) asksFor(name string) bool {
	return t.active && (t.wildcard || t.named(t.table, name))
}

func (t *typeState) except(name string) *exception {
	e := t.exceptions[name]
	if e == nil {
		e = new(exception)
		if t.exceptions == nil {
			t.exceptions = make(map[string]*exception)
		}
		t.exceptions[name] = e
	}
	return e
}

// settle forgets the exception if there is nothing left of it.
func (t *typeState) settle(name string, e *exception) {
	r, ok := t.table.Get(name)
	if !e.asked && !e.again && !e.flying && (ok && e.has == r.digest || !ok && e.has.IsZero()) {
		t.forget(name)
	}
}

func (t *typeState) forget(name string) {
	delete(t.exceptions, name)
	if len(t.exceptions) == 0 {
		// A map does not shrink by itself.
		t.exceptions = nil
	}
}

// retarget makes another table what the client should have.
func (t *typeState) retarget(next mesh.Table[*Resource]) {
	former := t.table
	for change := range next.Diff(former) {
		was, had := former.Get(change.Name)
		asked := t.asksFor(change.Name)
		if had == change.Delete {
			t.moved(change.Name)
		}
		e := t.exceptions[change.Name]
		switch {
		case !asked:
			continue
		case e != nil:
			e.refused, e.retry, e.unsure = mesh.Digest{}, false, false
		case change.Delete && t.Quiet && !t.wildcard:
			continue
		case had:
			t.except(change.Name).has, t.except(change.Name).was = was.digest, was
		case t.Quiet && !t.wildcard:
			// It may still have what it was not told the end of.
			t.except(change.Name).has = foreign
		default:
			t.except(change.Name)
		}
	}
	t.table, t.retries = next, nil
	for name, e := range t.exceptions {
		e.retry = false
		if r, ok := next.Get(name); !ok && t.Quiet && !t.wildcard && !e.asked && !e.flying {
			t.forget(name)
		} else if !ok || r.digest != e.refused {
			t.settle(name, e)
		}
	}
	for name := range t.expected {
		if _, ok := next.Get(name); !ok {
			delete(t.expected, name)
		}
	}
	t.weigh(next)
}

// due is what is to be done about an exception.
type due int

const (
	nothing due = iota
	send
	remove
)

func (t *typeState) due(name string, e *exception) due {
	r, ok := t.table.Get(name)
	switch {
	case e.flying:
		return nothing
	case ok && r.digest == e.refused:
		return nothing
	case ok && (e.has != r.digest || e.asked || e.again):
		return send
	case !ok && (e.asked || !e.has.IsZero()):
		return remove
	}
	return nothing
}

// most is about how many bytes of resources are sent in one response.
const most = 1 << 20

// additions returns what is to be sent in the next response: resources that are new or
// changed, and the names that the client waits for and there are not. The limit holds
// but for the first resource.
func (t *typeState) additions(limit int) []item {
	for len(t.retries) > 0 {
		group := t.retries[0]
		t.retries = t.retries[1:]
		var items []item
		for _, name := range group {
			if e := t.exceptions[name]; e != nil && e.retry {
				e.retry = false
				if r, ok := t.table.Get(name); ok && t.due(name, e) == send {
					items = append(items, item{name, r})
				}
			}
		}
		if len(items) > 0 {
			return items
		}
	}
	// By itself, so that what is wrong with a resource does not stand in its way.
	if items := t.listed(func(name string, e *exception) bool { return e.asked && t.due(name, e) == remove }); len(items) > 0 {
		return items
	}
	items := t.listed(func(name string, e *exception) bool { return t.due(name, e) == send })
	size := 0
	for i, item := range items {
		if item.resource != nil {
			size += len(item.resource.Body)
		}
		if i > 0 && size > limit {
			return items[:i]
		}
	}
	return items
}

// removals returns the ends that are to be told in the next response.
func (t *typeState) removals() []item {
	return t.listed(func(name string, e *exception) bool { return t.due(name, e) == remove })
}

// listed returns the exceptions that are chosen, sorted by name.
func (t *typeState) listed(choose func(string, *exception) bool) []item {
	var items []item
	for name, e := range t.exceptions {
		if choose(name, e) {
			r, _ := t.table.Get(name)
			items = append(items, item{name, r})
		}
	}
	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.name, b.name) })
	return items
}

// waits reports whether additions are not sent or not answered yet.
func (t *typeState) waits() bool {
	if t.flight != nil || t.greet || len(t.expected) > 0 {
		return true
	}
	for name, e := range t.exceptions {
		if d := t.due(name, e); d == send || d == remove && e.asked {
			return true
		}
	}
	return false
}

// unfinished reports whether anything is not sent or not answered yet.
func (t *typeState) unfinished() bool {
	if t.waits() {
		return true
	}
	for name, e := range t.exceptions {
		if t.due(name, e) == remove {
			return true
		}
	}
	return false
}

// take notes that the items are sent under the nonce.
func (t *typeState) take(nonce string, items []item) {
	t.nonce, t.greet = nonce, false
	t.flight = &flight{nonce: nonce, items: items}
	for _, i := range items {
		e := t.except(i.name)
		e.flying, e.asked, e.again = true, false, false
	}
}

// ack notes that the client has what is in flight.
func (t *typeState) ack() []item {
	items := t.flight.items
	t.flight = nil
	for _, i := range items {
		t.land(i)
	}
	return items
}

// land notes that the client has the item.
func (t *typeState) land(i item) {
	e := t.exceptions[i.name]
	if e == nil || !e.flying {
		return
	}
	e.flying, e.unsure, e.has, e.was = false, false, i.digest(), i.resource
	t.settle(i.name, e)
}

// nack notes that the client has refused what is in flight. A resource that is refused
// alone is not sent again before it changes. Of several any may be at fault, so they are
// sent again in parts: those apart that the client's message names, or else in halves.
//
// Envoy refuses a response as a whole and remembers none of its versions. Of clusters
// and listeners it still takes the good ones, and names the others in its message; of
// routes, endpoints and secrets it takes those before the first bad one, and of a
// response that it can't decode nothing. What it took already it knows when it gets it
// again, and does nothing.
func (t *typeState) nack(message string) {
	items := t.flight.items
	t.flight = nil
	var names []string
	for _, i := range items {
		e := t.exceptions[i.name]
		switch {
		case i.resource == nil:
			// There is no other way to say that something is gone.
			t.land(i)
		case e != nil && e.flying:
			names = append(names, i.name)
		}
	}
	if len(names) == 1 {
		for _, i := range items {
			if i.name == names[0] {
				e := t.exceptions[i.name]
				e.flying, e.refused = false, i.digest()
				if e.unsure {
					e.unsure, e.has = false, e.before
				}
				t.settle(i.name, e)
			}
		}
		return
	}
	for _, name := range names {
		// Envoy takes some of a response that it refuses.
		e := t.exceptions[name]
		if !e.unsure {
			e.unsure, e.before = true, e.has
		}
		e.flying, e.retry, e.has = false, true, foreign
	}
	t.retries = append(split(names, message), t.retries...)
}

// split returns names in at least two parts if there are two.
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
