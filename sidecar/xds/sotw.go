package xds

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// receiveSotW updates the subscription of a SotW client.
func (s *stream) receiveSotW(t *typeState, r request, first bool) error {
	if !first && r.nonce != t.nonce {
		// This answers an older response. The client repeats its subscription in the
		// answer to the latest one.
		return nil
	}
	if err := s.checkNames(r.names); err != nil {
		return err
	}
	t.mustRespond = t.mustRespond || first
	if wildcard := !t.Named && (first && len(r.names) == 0 || t.wildcard && len(r.names) == 0 || slices.Contains(r.names, "*")); wildcard != t.wildcard {
		if wildcard {
			s.subscribeAll(t, t.mustRespond, nil)
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
	for name := range t.diff {
		if t.named(t.table, name) && !asked[name] {
			s.unsubscribe(t, name)
		}
	}
	for _, name := range r.names {
		if asked[name] && !t.named(t.table, name) {
			s.subscribe(t, name, false)
			if _, ok := t.table.Get(name); ok && !t.wildcard {
				// The client awaits the resource, so it is an exception although has is zero.
				t.exceptionFor(name)
			}
		}
	}
	// A version does not say which names it covered, so it means nothing for a
	// subscription by name: the client may have dropped a name and added it again.
	if first && t.wildcard {
		if t.mustRespond = r.version != s.sotwVersion(t, nil); !t.mustRespond {
			t.exceptions = nil
		}
	}
	return s.limitNames(t)
}

// sotwResources returns the client's resources after it has accepted the items: the
// subscribed resources, where rejected and unsent ones keep their former version.
func (t *typeState) sotwResources(items []item) []*Resource {
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

// encodeSotW encodes the batch. For types that are not Named, a missing resource means
// its removal, so the response has all resources; otherwise only the changed ones.
func (s *stream) encodeSotW(b *batch, changed []*Resource) (*response, int) {
	version := s.sotwVersion(b.state, b.items)
	if b.state.Named {
		return sotwResponse(b.state.URL, b.nonce, version, changed), len(changed)
	}
	resources := b.state.sotwResources(b.items)
	return sotwResponse(b.state.URL, b.nonce, version, resources), len(resources)
}

// sotwVersion returns the version of the client's state after it has accepted the
// items; with nil items, of the subscribed part of the table.
func (s *stream) sotwVersion(t *typeState, items []item) string {
	var resources []*Resource
	if items == nil {
		for name, r := range t.table.All() {
			if t.asksFor(name) {
				resources = append(resources, r)
			}
		}
	} else {
		resources = t.sotwResources(items)
	}
	digests := make([]mesh.Digest, len(resources))
	for i, r := range resources {
		digests[i] = r.digest
	}
	return mesh.JoinDigests(digests...).String()
}
