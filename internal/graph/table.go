package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Tables are mesh.Tables by the names of groups, which rules put values into.
type Tables[V mesh.Digester] struct {
	graph   *Graph
	groups  map[string]*group[V]
	pending map[string]map[string]struct{}
}

type group[V mesh.Digester] struct {
	node
	table mesh.Table[V]
	// put counts who put the value of each name.
	put map[string]*share[V]
}

type share[V mesh.Digester] struct {
	value V
	count int
}

// NewTables returns Tables that are all empty.
func NewTables[V mesh.Digester](g *Graph) *Tables[V] {
	return &Tables[V]{graph: g, groups: map[string]*group[V]{}, pending: map[string]map[string]struct{}{}}
}

// Get returns the Table of the group, as the rules before the one that reads have
// left it.
func (t *Tables[V]) Get(r *Reader, name string) mesh.Table[V] {
	g := t.group(name)
	r.read(&g.node)
	return g.table
}

// Current returns the Table of the group after an Update.
func (t *Tables[V]) Current(name string) mesh.Table[V] {
	if g := t.groups[name]; g != nil {
		return g.table
	}
	return mesh.Table[V]{}
}

func (t *Tables[V]) group(name string) *group[V] {
	g := t.groups[name]
	if g == nil {
		g = &group[V]{put: map[string]*share[V]{}}
		g.drop = func() {
			if len(g.put) == 0 {
				delete(t.groups, name)
			}
		}
		t.groups[name] = g
	}
	return g
}

// flush makes the Tables hold what has been put.
func (t *Tables[V]) flush() {
	for name, changed := range t.pending {
		g := t.group(name)
		changes := make([]mesh.Change[V], 0, len(changed))
		for key := range changed {
			if s := g.put[key]; s != nil {
				changes = append(changes, mesh.Change[V]{Name: key, Value: s.value})
			} else {
				changes = append(changes, mesh.Change[V]{Name: key, Delete: true})
			}
		}
		if next := g.table.With(changes...); next.Digest() != g.table.Digest() {
			g.table = next
			// What was verified before this moment has not seen it.
			t.graph.revision++
			t.graph.touch(&g.node)
		}
		if len(g.put) == 0 {
			t.graph.orphans = append(t.graph.orphans, &g.node)
		}
	}
	clear(t.pending)
}

func (t *Tables[V]) note(name, key string) {
	if t.pending[name] == nil {
		t.pending[name] = map[string]struct{}{}
	}
	t.pending[name][key] = struct{}{}
}

type flusher interface{ flush() }

// place says where a value is.
type place struct {
	tables     flusher
	group, key string
}

// Output takes the results of one run of a Rule's function.
type Output struct {
	entries map[place]result
}

type result struct {
	value mesh.Digester
	put   func()
	take  func()
}

// Put puts a value under a key into a group of Tables. Several keys of rules may put
// the same value; it stays as long as one of them does.
func Put[V mesh.Digester](out *Output, t *Tables[V], name, key string, value V) {
	if out.entries == nil {
		out.entries = map[place]result{}
	}
	out.entries[place{t, name, key}] = result{
		value: value,
		put: func() {
			g := t.group(name)
			s := g.put[key]
			if s == nil {
				s = &share[V]{}
				g.put[key] = s
			}
			s.value = value
			s.count++
			t.note(name, key)
		},
		take: func() {
			g := t.group(name)
			if s := g.put[key]; s != nil {
				if s.count--; s.count == 0 {
					delete(g.put, key)
				}
			}
			t.note(name, key)
		},
	}
}

// replace puts what is in out and takes back what was in former.
func (out *Output) replace(former *Output, outputs map[flusher]struct{}) {
	for at, is := range out.entries {
		was, had := former.entries[at]
		if had && was.value == is.value {
			continue
		}
		is.put()
		if had {
			was.take()
		}
		outputs[at.tables] = struct{}{}
	}
	for at, was := range former.entries {
		if _, kept := out.entries[at]; !kept {
			was.take()
			outputs[at.tables] = struct{}{}
		}
	}
}
