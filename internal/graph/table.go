package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Tables are mesh.Tables by the names of groups, which rules put values into.
type Tables[V mesh.Digester] struct {
	graph  *Graph
	groups map[string]*group[V]
	// pending are the groups with something put or taken since the last flush.
	pending []*group[V]
}

type group[V mesh.Digester] struct {
	node
	table mesh.Table[V]
	// put counts who put the value of each name.
	put map[string]*share[V]
	// pending are the names of what was put or taken since the last flush.
	pending []string
}

type share[V mesh.Digester] struct {
	value V
	count int
}

// NewTables returns Tables that are all empty.
func NewTables[V mesh.Digester](g *Graph) *Tables[V] {
	return &Tables[V]{graph: g, groups: map[string]*group[V]{}}
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
	for _, g := range t.pending {
		changes := make([]mesh.Change[V], 0, len(g.pending))
		for _, key := range g.pending {
			if s := g.put[key]; s != nil {
				changes = append(changes, mesh.Change[V]{Name: key, Value: s.value})
			} else {
				changes = append(changes, mesh.Change[V]{Name: key, Delete: true})
			}
		}
		g.pending = nil
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
	t.pending = nil
}

// store is Tables of any values.
type store interface {
	put(at place, value mesh.Digester)
	take(at place)
	flush()
}

// place says where a value is.
type place struct {
	tables     store
	group, key string
}

// Output takes the results of one run of a Rule's function.
type Output struct{ results []result }

type result struct {
	place
	value mesh.Digester
}

// Put puts a value under a key into a group of Tables. Several keys of rules may put
// the same value; it stays as long as one of them does.
func Put[V mesh.Digester](out *Output, t *Tables[V], group, key string, value V) {
	out.results = append(out.results, result{place{t, group, key}, value})
}

// replace puts what is in out and takes back what was in former.
func (out *Output) replace(former *Output, outputs map[store]struct{}) {
	// Most runs put into the same places as the one before.
	same := 0
	for same < min(len(out.results), len(former.results)) && out.results[same].place == former.results[same].place {
		same++
	}
	for i, is := range out.results {
		if i < same && is.value == former.results[i].value {
			continue
		}
		is.tables.put(is.place, is.value)
		outputs[is.tables] = struct{}{}
		if i < same {
			is.tables.take(is.place)
		}
	}
	for _, was := range former.results[same:] {
		was.tables.take(was.place)
		outputs[was.tables] = struct{}{}
	}
}

func (t *Tables[V]) put(at place, value mesh.Digester) {
	g := t.group(at.group)
	s := g.put[at.key]
	if s == nil {
		s = &share[V]{}
		g.put[at.key] = s
	}
	s.value = value.(V)
	s.count++
	t.note(g, at.key)
}

func (t *Tables[V]) take(at place) {
	g := t.group(at.group)
	if s := g.put[at.key]; s != nil {
		if s.count--; s.count == 0 {
			delete(g.put, at.key)
		}
	}
	t.note(g, at.key)
}

func (t *Tables[V]) note(g *group[V], key string) {
	if len(g.pending) == 0 {
		t.pending = append(t.pending, g)
	}
	if last := len(g.pending) - 1; last < 0 || g.pending[last] != key {
		g.pending = append(g.pending, key)
	}
}
