package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Memo is a function whose results are cached as long as they have readers and their
// dependencies don't change.
type Memo[K, V comparable] struct {
	graph *Graph
	f     func(r *Reader, key K) V
	cells map[K]*memoCell[K, V]
}

type memoCell[K, V any] struct {
	cell
	key   K
	value V
}

// NewMemo returns a Memo of f, which must depend only on its key and what it reads
// through r, and must not read its own result. Results are compared by digest if they
// have one, otherwise with ==.
func NewMemo[K, V comparable](g *Graph, f func(r *Reader, key K) V) *Memo[K, V] {
	return &Memo[K, V]{graph: g, f: f, cells: map[K]*memoCell[K, V]{}}
}

// Get returns the result for the key.
func (m *Memo[K, V]) Get(r *Reader, key K) V {
	c := m.cells[key]
	if c == nil {
		c = &memoCell[K, V]{key: key}
		c.cell = cell{graph: m.graph, stale: true}
		c.node.cell = &c.cell
		c.drop = func() {
			delete(m.cells, c.key)
			c.end()
		}
		c.compute = func(r *Reader) bool {
			is := m.f(r, c.key)
			if same(c.value, is) {
				return false
			}
			c.value = is
			return true
		}
		m.cells[key] = c
	}
	c.refresh()
	r.read(&c.node)
	return c.value
}

// same reports whether two results are equal.
func same[V comparable](a, b V) bool {
	var none V
	if a == b {
		return true
	}
	x, ok := any(a).(mesh.Digester)
	y, also := any(b).(mesh.Digester)
	return ok && also && a != none && b != none && x.Digest() == y.Digest()
}
