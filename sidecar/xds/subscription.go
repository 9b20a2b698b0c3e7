package xds

import "github.com/outrigger-mesh/outrigger/mesh"

// subscription is what a client asks for of one type. A client that asks for each
// resource of a table by its name, as most do for endpoints, costs no more than one
// that asks for none: kept is how its names differ from those of the table.
type subscription struct {
	// wildcard says that all there are are asked for.
	wildcard bool
	// inverse says that the names of the table are asked for but for the odd ones, and
	// odd ones that it has not. Otherwise the odd ones are asked for.
	inverse bool
	odd     map[string]struct{}
	// weighed is how many odd ones there were when it was last looked for fewer.
	weighed int
}

// oddities is how many odd names are left as they are.
const oddities = 16

// named reports whether the name is asked for by itself.
func (s *subscription) named(table mesh.Table[*Resource], name string) bool {
	_, odd := s.odd[name]
	if !s.inverse {
		return odd
	}
	_, there := table.Get(name)
	return there != odd
}

// toggle has the name be asked for if it was not, and the other way round.
func (s *subscription) toggle(name string) {
	if _, odd := s.odd[name]; odd {
		delete(s.odd, name)
		return
	}
	if s.odd == nil {
		s.odd = make(map[string]struct{})
	}
	s.odd[name] = struct{}{}
}

// moved keeps what is asked for as it is when a name comes into the table or goes.
func (s *subscription) moved(name string) {
	if s.inverse {
		s.toggle(name)
	}
}

// all returns the names that are asked for by themselves and are in the table, and how
// many others are.
func (s *subscription) all(table mesh.Table[*Resource]) (names []string, others int) {
	for name := range table.All() {
		if s.named(table, name) {
			names = append(names, name)
		}
	}
	for name := range s.odd {
		if _, there := table.Get(name); !there {
			others++
		}
	}
	return names, others
}

// weigh writes down the same with fewer odd names if it can.
func (s *subscription) weigh(table mesh.Table[*Resource]) {
	n := len(s.odd)
	if n == 0 {
		s.odd = nil
	}
	s.weighed = min(s.weighed, n)
	if n <= oddities || n < 2*s.weighed {
		return
	}
	there := 0
	for name := range s.odd {
		if _, ok := table.Get(name); ok {
			there++
		}
	}
	if fewer := table.Len() + len(s.odd) - 2*there; fewer < len(s.odd) {
		odd := make(map[string]struct{}, fewer)
		for name := range table.All() {
			if _, ok := s.odd[name]; !ok {
				odd[name] = struct{}{}
			}
		}
		for name := range s.odd {
			if _, ok := table.Get(name); !ok {
				odd[name] = struct{}{}
			}
		}
		s.inverse, s.odd = !s.inverse, odd
	}
	s.weighed = len(s.odd)
	if len(s.odd) == 0 {
		s.odd = nil
	}
}
