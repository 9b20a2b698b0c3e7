package xds

import "github.com/outrigger-mesh/outrigger/mesh"

// subscription is the set of resources of one type that a client subscribes to. Only
// its difference from the table is stored, so a client that subscribes to every
// resource by name, as most do for endpoints, costs no more than one that subscribes
// to none.
type subscription struct {
	// wildcard subscribes to all resources.
	wildcard bool
	// diff holds the subscribed names or, if inverse is set, the names in which the
	// subscription differs from the table: table names that are not subscribed to, and
	// subscribed names that are not in the table.
	diff    map[string]struct{}
	inverse bool
	// compactedAt is the size of diff after the last attempt to compact it.
	compactedAt int
}

// minCompact is the size of diff up to which it is not compacted.
const minCompact = 16

// named reports whether the client subscribes to the name explicitly.
func (s *subscription) named(table mesh.Table[*Resource], name string) bool {
	_, differs := s.diff[name]
	if !s.inverse {
		return differs
	}
	_, exists := table.Get(name)
	return exists != differs
}

// reserve makes room for n more names.
func (s *subscription) reserve(n int) {
	if s.diff == nil && n > minCompact {
		s.diff = make(map[string]struct{}, n)
	}
}

// toggle subscribes to the name or, if it is subscribed to, unsubscribes from it.
func (s *subscription) toggle(name string) {
	if _, ok := s.diff[name]; ok {
		delete(s.diff, name)
		return
	}
	if s.diff == nil {
		s.diff = make(map[string]struct{})
	}
	s.diff[name] = struct{}{}
}

// tableChanged preserves the subscription when the name enters or leaves the table.
func (s *subscription) tableChanged(name string) {
	if s.inverse {
		s.toggle(name)
	}
}

// all returns the explicitly subscribed names that are in the table, and the number of
// those that are not.
func (s *subscription) all(table mesh.Table[*Resource]) (names []string, others int) {
	for name := range table.All() {
		if s.named(table, name) {
			names = append(names, name)
		}
	}
	for name := range s.diff {
		if _, ok := table.Get(name); !ok {
			others++
		}
	}
	return names, others
}

// compact inverts the representation if that makes diff smaller.
func (s *subscription) compact(table mesh.Table[*Resource]) {
	n := len(s.diff)
	if n == 0 {
		s.diff = nil
	}
	s.compactedAt = min(s.compactedAt, n)
	if n <= minCompact || n < 2*s.compactedAt {
		return
	}
	existing := 0
	for name := range s.diff {
		if _, ok := table.Get(name); ok {
			existing++
		}
	}
	if fewer := table.Len() + n - 2*existing; fewer < n {
		diff := make(map[string]struct{}, fewer)
		for name := range table.All() {
			if _, ok := s.diff[name]; !ok {
				diff[name] = struct{}{}
			}
		}
		for name := range s.diff {
			if _, ok := table.Get(name); !ok {
				diff[name] = struct{}{}
			}
		}
		s.inverse, s.diff = !s.inverse, diff
	}
	s.compactedAt = len(s.diff)
	if len(s.diff) == 0 {
		s.diff = nil
	}
}
