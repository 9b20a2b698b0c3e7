package mesh

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"slices"
)

// Table is an immutable map from names to sealed parts. A changed Table shares with
// the one that it was made from whatever did not change: a change costs the nodes on
// the way to what it changes, of which there is one more for each sixteenfold size, and
// the difference of two is found in the time that the difference takes. Its digest
// depends on its content only, not on how it came about. The zero Table is empty. All
// methods may be called from many goroutines.
type Table[V Digester] struct{ root *node[V] }

// Len returns the number of entries.
func (t Table[V]) Len() int { return t.root.len() }

// Digest returns a digest of all names and parts. That of an empty Table is zero.
func (t Table[V]) Digest() Digest { return t.root.sum() }

// Get returns the part of that name and whether there is one.
func (t Table[V]) Get(name string) (V, bool) { return t.root.get(hashOf(name), name) }

// All yields the entries in an order that is the same for equal Tables, and is not
// that of the names.
func (t Table[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) { t.root.all(yield) }
}

// Names returns the names, sorted.
func (t Table[V]) Names() []string {
	names := make([]string, 0, t.Len())
	for name := range t.All() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Change is a new part of that name, or the end of the one there is.
type Change[V Digester] struct {
	Name   string
	Value  V
	Delete bool
}

// With returns a Table with the changes, of which the last of each name counts. It
// returns the same Table if they change nothing.
func (t Table[V]) With(changes ...Change[V]) Table[V] {
	return Table[V]{t.root.with(0, sorted(changes))}
}

// TableOf returns a Table of the parts by their names.
func TableOf[V Digester](parts map[string]V) Table[V] {
	changes := make([]Change[V], 0, len(parts))
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		changes = append(changes, Change[V]{Name: name, Value: parts[name]})
	}
	return Table[V]{}.With(changes...)
}

// Diff yields the changes that make t of former: t.Diff(former) applied to former
// is t. Parts of one name with equal digests are no change.
func (t Table[V]) Diff(former Table[V]) iter.Seq[Change[V]] {
	return func(yield func(Change[V]) bool) { t.root.diff(former.root, yield) }
}

// MarshalJSON returns an object of the parts, sorted by name.
func (t Table[V]) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, name := range t.Names() {
		if i > 0 {
			out.WriteByte(',')
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		value, _ := t.Get(name)
		content, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		out.Write(key)
		out.WriteByte(':')
		out.Write(content)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// IsZero reports whether the Table is empty, so that JSON can leave it out.
func (t Table[V]) IsZero() bool { return t.root == nil }
