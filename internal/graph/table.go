package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Table is a mesh.Table that rules put values into.
type Table[V mesh.Digester] struct {
	node
	graph *Graph
	table mesh.Table[V]
	// shares count the keys that put the value of each name.
	shares map[string]*share[V]
	// pending are the names that changed since the last flush.
	pending []string
}

type share[V mesh.Digester] struct {
	value V
	count int
}

// NewTable returns an empty Table.
func NewTable[V mesh.Digester](g *Graph) *Table[V] {
	return &Table[V]{graph: g, shares: map[string]*share[V]{}}
}

// Get returns the values put by the rules before the one that reads.
func (t *Table[V]) Get(r *Reader) mesh.Table[V] {
	r.read(&t.node)
	return t.table
}

// Current returns the values after an Update.
func (t *Table[V]) Current() mesh.Table[V] { return t.table }

// Tables are Tables by key. A Table exists as long as it has values or readers.
type Tables[K comparable, V mesh.Digester] struct {
	graph *Graph
	byKey map[K]*Table[V]
}

// NewTables returns empty Tables.
func NewTables[K comparable, V mesh.Digester](g *Graph) *Tables[K, V] {
	return &Tables[K, V]{graph: g, byKey: map[K]*Table[V]{}}
}

// Of returns the Table of the key. The caller must not keep it.
func (t *Tables[K, V]) Of(key K) *Table[V] {
	table := t.byKey[key]
	if table == nil {
		table = NewTable[V](t.graph)
		table.drop = func() {
			if len(table.shares) == 0 {
				delete(t.byKey, key)
			}
		}
		t.byKey[key] = table
	}
	return table
}

// Current returns the values of a key's Table after an Update.
func (t *Tables[K, V]) Current(key K) mesh.Table[V] {
	if table := t.byKey[key]; table != nil {
		return table.table
	}
	return mesh.Table[V]{}
}

// flush applies the pending changes.
func (t *Table[V]) flush() {
	changes := make([]mesh.Change[V], 0, len(t.pending))
	for _, name := range t.pending {
		if s := t.shares[name]; s != nil {
			changes = append(changes, mesh.Change[V]{Name: name, Value: s.value})
		} else {
			changes = append(changes, mesh.Change[V]{Name: name, Delete: true})
		}
	}
	t.pending = nil
	if next := t.table.With(changes...); next.Digest() != t.table.Digest() {
		t.table = next
		// Cells verified before this have not seen the change.
		t.graph.revision++
		t.graph.touch(&t.node)
	}
	if len(t.shares) == 0 {
		t.graph.orphans = append(t.graph.orphans, &t.node)
	}
}

// store is a Table of any type.
type store interface {
	put(name string, value mesh.Digester)
	take(name string)
	flush()
}

// place identifies a value in a table.
type place struct {
	table store
	name  string
}

// Output collects the results of one run of a Rule's function.
type Output struct{ results []result }

type result struct {
	place
	value mesh.Digester
}

// Put puts a value into a Table under a name. Several keys of rules may put the same
// value; it stays as long as one of them does.
func Put[V mesh.Digester](out *Output, t *Table[V], name string, value V) {
	out.results = append(out.results, result{place{t, name}, value})
}

// replace puts the results of out and takes back those of former.
func (out *Output) replace(former *Output, outputs map[store]struct{}) {
	// Fast path: most runs use the same places as the run before.
	same := 0
	for same < min(len(out.results), len(former.results)) && out.results[same].place == former.results[same].place {
		same++
	}
	for i, is := range out.results {
		if i < same && is.value == former.results[i].value {
			continue
		}
		is.table.put(is.name, is.value)
		outputs[is.table] = struct{}{}
		if i < same {
			is.table.take(is.name)
		}
	}
	for _, was := range former.results[same:] {
		was.table.take(was.name)
		outputs[was.table] = struct{}{}
	}
}

func (t *Table[V]) put(name string, value mesh.Digester) {
	s := t.shares[name]
	if s == nil {
		s = &share[V]{}
		t.shares[name] = s
	}
	s.value = value.(V)
	s.count++
	t.note(name)
}

func (t *Table[V]) take(name string) {
	if s := t.shares[name]; s != nil {
		if s.count--; s.count == 0 {
			delete(t.shares, name)
		}
	}
	t.note(name)
}

func (t *Table[V]) note(name string) {
	if last := len(t.pending) - 1; last < 0 || t.pending[last] != name {
		t.pending = append(t.pending, name)
	}
}
