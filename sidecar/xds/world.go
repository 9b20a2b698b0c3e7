package xds

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// receiveWorld works in which resources a client of the state-of-the-world protocol
// asks for.
func (s *stream) receiveWorld(t *typeState, r request, first bool) error {
	if !first && r.nonce != t.nonce {
		// It answers to a response that was followed by another, to which it will say
		// the same.
		return nil
	}
	if err := s.checkNames(r.names); err != nil {
		return err
	}
	t.greet = t.greet || first
	if wildcard := !t.Named && (first && len(r.names) == 0 || t.wildcard && len(r.names) == 0 || slices.Contains(r.names, "*")); wildcard != t.wildcard {
		if wildcard {
			s.everything(t, t.greet, nil)
		} else {
			s.unsubscribe(t, "*")
		}
	}
	asked := make(map[string]bool, len(r.names))
	for _, name := range r.names {
		asked[name] = name != "*"
	}
	for name := range t.table.All() {
		if t.named(t.table, name) && !asked[name] {
			s.unsubscribe(t, name)
		}
	}
	for name := range t.odd {
		if t.named(t.table, name) && !asked[name] {
			s.unsubscribe(t, name)
		}
	}
	for _, name := range r.names {
		if asked[name] && !t.named(t.table, name) {
			s.subscribe(t, name, false)
			if _, ok := t.table.Get(name); ok && !t.wildcard {
				// That it has none yet, and waits, is what makes it an exception.
				t.except(name)
			}
		}
	}
	// Which names a version was of is not said, so it tells nothing where only some are
	// asked for: the client may have dropped one and taken it up again.
	if first && t.wildcard {
		if t.greet = r.version != s.worldVersion(t, nil); !t.greet {
			t.exceptions = nil
		}
	}
	return s.weigh(t)
}

// worldResources returns what the client has once it has taken the items: all that it
// is to have but for what it refuses, of which it keeps what it had.
func (t *typeState) worldResources(items []item) []*Resource {
	coming := make(map[string]*Resource, len(items))
	for _, i := range items {
		coming[i.name] = i.resource
	}
	var resources []*Resource
	add := func(name string, r *Resource) {
		if changed, ok := coming[name]; ok {
			r = changed
		} else if e := t.exceptions[name]; e != nil {
			r = e.was
		}
		if r != nil {
			resources = append(resources, r)
		}
	}
	for name, r := range t.table.All() {
		if t.asksFor(name) {
			add(name, r)
		}
	}
	for name := range t.exceptions {
		if _, ok := t.table.Get(name); !ok {
			add(name, nil)
		}
	}
	return resources
}

// encodeWorld returns the batch as a response: all resources where absence means that
// there is none, else those that change.
func (s *stream) encodeWorld(b *batch, changed []*Resource) (*response, int) {
	version := s.worldVersion(b.state, b.items)
	if b.state.Named {
		return worldResponse(b.state.URL, b.nonce, version, changed), len(changed)
	}
	resources := b.state.worldResources(b.items)
	return worldResponse(b.state.URL, b.nonce, version, resources), len(resources)
}

// worldVersion returns what the state of the client is called once it has taken the
// items. Without items it is that of the table as the client asks for it.
func (s *stream) worldVersion(t *typeState, items []item) string {
	var resources []*Resource
	if items == nil {
		for name, r := range t.table.All() {
			if t.asksFor(name) {
				resources = append(resources, r)
			}
		}
	} else {
		resources = t.worldResources(items)
	}
	digests := make([]mesh.Digest, len(resources))
	for i, r := range resources {
		digests[i] = r.digest
	}
	return mesh.JoinDigests(digests...).String()
}
