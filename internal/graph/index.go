package graph

import (
	"iter"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Index finds entries derived from the values of an Input by another key. Readers of a
// key depend only on its entries, not on the values.
type Index[K comparable, E any] struct {
	graph   *Graph
	compare func(a, b E) int
	slots   map[K]*listing[E]
}

// listing has the entries of a key, sorted, each with the number of values that yield it.
type listing[E any] struct {
	node
	entries []E
	counts  []int
	// lent is set once somebody may hold the slice of the entries, which must not change then.
	lent bool
}

// NewIndex returns an Index of the Input. For each value, entries yields the keys and
// entries of the index. Entries that compare as equal are the same.
func NewIndex[K comparable, V mesh.Digester, IK comparable, E any](in *Input[K, V], compare func(a, b E) int, entries func(key K, value V) iter.Seq2[IK, E]) *Index[IK, E] {
	x := &Index[IK, E]{graph: in.graph, compare: compare, slots: map[IK]*listing[E]{}}
	in.follow = append(in.follow, func(key K, was, is V, had, has bool) {
		// Add first, so that entries in both don't change.
		if has {
			for indexKey, e := range entries(key, is) {
				x.add(indexKey, e)
			}
		}
		if had {
			for indexKey, e := range entries(key, was) {
				x.remove(indexKey, e)
			}
		}
	})
	return x
}

// Get returns the entries of the key, sorted. The caller must not change them.
func (x *Index[K, E]) Get(r *Reader, key K) []E {
	l := x.listing(key)
	r.read(&l.node)
	l.lent = true
	return l.entries
}

// Current returns the entries of the key, sorted. It is for use outside of functions. The
// caller must not change them.
func (x *Index[K, E]) Current(key K) []E {
	if l := x.slots[key]; l != nil {
		l.lent = true
		return l.entries
	}
	return nil
}

func (x *Index[K, E]) listing(key K) *listing[E] {
	l := x.slots[key]
	if l == nil {
		l = &listing[E]{}
		l.drop = func() {
			if len(l.entries) == 0 {
				delete(x.slots, key)
			}
		}
		x.slots[key] = l
	}
	return l
}

// own returns the entries in a slice that nobody else holds.
func (l *listing[E]) own() []E {
	if l.lent {
		l.entries, l.lent = slices.Clone(l.entries), false
	}
	return l.entries
}

func (x *Index[K, E]) add(key K, e E) {
	l := x.listing(key)
	i, found := slices.BinarySearchFunc(l.entries, e, x.compare)
	if found {
		l.counts[i]++
		return
	}
	l.entries = slices.Insert(l.own(), i, e)
	l.counts = slices.Insert(l.counts, i, 1)
	x.graph.touch(&l.node)
}

func (x *Index[K, E]) remove(key K, e E) {
	l := x.listing(key)
	i, found := slices.BinarySearchFunc(l.entries, e, x.compare)
	if !found {
		return
	}
	if l.counts[i]--; l.counts[i] > 0 {
		return
	}
	l.entries = slices.Delete(l.own(), i, i+1)
	l.counts = slices.Delete(l.counts, i, i+1)
	x.graph.touch(&l.node)
	if len(l.entries) == 0 {
		x.graph.orphans = append(x.graph.orphans, &l.node)
	}
}
