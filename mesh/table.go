package mesh

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"slices"
)

// Table is an immutable map from names to sealed parts. A changed Table shares all
// unchanged nodes with the Table it was made from: a change copies only the path to the
// changed entry, whose depth is logarithmic (base 16) in the size. The cost of Diff is
// proportional to the difference. The digest depends only on the content, not on the
// history. The zero Table is empty. All methods are safe for concurrent use.
type Table[V Digester] struct{ root *node[V] }

// Len returns the number of entries.
func (t Table[V]) Len() int { return t.root.len() }

// Digest returns a digest of all names and parts, which is zero for an empty Table.
func (t Table[V]) Digest() Digest { return t.root.sum() }

// Get returns the part with the name and whether it exists.
func (t Table[V]) Get(name string) (V, bool) { return t.root.get(hashOf(name), name) }

// All yields the entries in an order that is the same for equal Tables but not sorted by
// name.
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

// Change sets or deletes the part with a name.
type Change[V Digester] struct {
	Name   string
	Value  V
	Delete bool
}

// With returns a Table with the changes applied. The last change of each name counts. It
// returns the same Table if nothing changes.
func (t Table[V]) With(changes ...Change[V]) Table[V] {
	return Table[V]{t.root.with(0, sorted(changes))}
}

// TableOf returns a Table of the parts, keyed by their names.
func TableOf[V Digester](parts map[string]V) Table[V] {
	changes := make([]Change[V], 0, len(parts))
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		changes = append(changes, Change[V]{Name: name, Value: parts[name]})
	}
	return Table[V]{}.With(changes...)
}

// Diff yields the changes from former to t: applied to former, they give t. Parts with
// equal digests count as unchanged.
func (t Table[V]) Diff(former Table[V]) iter.Seq[Change[V]] {
	return func(yield func(Change[V]) bool) { t.root.diff(former.root, yield) }
}

// MarshalJSON returns a JSON object of the parts, sorted by name.
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

// IsZero reports whether the Table is empty. It makes the JSON option omitzero work.
func (t Table[V]) IsZero() bool { return t.root == nil }
