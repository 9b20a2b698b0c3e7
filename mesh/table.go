package mesh

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"
)

// buckets is how many buckets a Table has. A change copies the array of them and
// the buckets that it touches, so the number of allocations of a change does not
// depend on the size of the Table, and the bytes grow with a 256th of it.
const buckets = 256

// Table is an immutable map from names to sealed parts. A changed Table shares with
// the one that it was made from whatever did not change, so the difference of two
// is found in the time that the difference takes. Its digest depends on its content
// only, not on how it came about. The zero Table is empty. All methods may be
// called from many goroutines.
type Table[V Digester] struct {
	root *[buckets]*bucket[V]
	size int
	// digest is zero for an empty Table.
	digest Digest
}

// bucket holds the entries whose names fall into it, sorted by name.
type bucket[V Digester] struct {
	entries []entry[V]
	digest  Digest
}

type entry[V Digester] struct {
	name  string
	value V
}

// Len returns the number of entries.
func (t Table[V]) Len() int { return t.size }

// Digest returns a digest of all names and parts.
func (t Table[V]) Digest() Digest { return t.digest }

// Get returns the part of that name and whether there is one.
func (t Table[V]) Get(name string) (V, bool) {
	if t.root != nil {
		if b := t.root[bucketOf(name)]; b != nil {
			if i, found := b.find(name); found {
				return b.entries[i].value, true
			}
		}
	}
	var none V
	return none, false
}

// All yields the entries in an order that is the same for equal Tables, and is not
// that of the names.
func (t Table[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		if t.root == nil {
			return
		}
		for _, b := range t.root {
			if b == nil {
				continue
			}
			for _, e := range b.entries {
				if !yield(e.name, e.value) {
					return
				}
			}
		}
	}
}

// Names returns the names, sorted.
func (t Table[V]) Names() []string {
	names := make([]string, 0, t.size)
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
	next := t
	var touched [buckets]bool
	var coming [buckets]int
	for _, change := range changes {
		coming[bucketOf(change.Name)]++
	}
	for _, change := range changes {
		index := bucketOf(change.Name)
		b := next.bucket(index)
		i, found := b.find(change.Name)
		if change.Delete && !found || !change.Delete && found && b.entries[i].value.Digest() == change.Value.Digest() {
			continue
		}
		if !touched[index] {
			if next.root == t.root {
				next.root = new([buckets]*bucket[V])
				if t.root != nil {
					*next.root = *t.root
				}
			}
			touched[index] = true
			b = b.copy(coming[index])
			next.root[index] = b
		}
		switch {
		case change.Delete:
			b.entries = slices.Delete(b.entries, i, i+1)
			next.size--
		case found:
			b.entries[i].value = change.Value
		default:
			b.entries = slices.Insert(b.entries, i, entry[V]{change.Name, change.Value})
			next.size++
		}
	}
	switch {
	case next.root == t.root:
		return t
	case next.size == 0:
		return Table[V]{}
	}
	for index, b := range next.root {
		switch {
		case !touched[index]:
		case len(b.entries) == 0:
			next.root[index] = nil
		default:
			b.sum()
		}
	}
	next.sum()
	return next
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
	return func(yield func(Change[V]) bool) {
		if t.root == former.root || t.digest == former.digest {
			return
		}
		for index := range buckets {
			was, is := former.bucket(uint8(index)), t.bucket(uint8(index))
			if was == is {
				continue
			}
			for change := range is.diff(was) {
				if !yield(change) {
					return
				}
			}
		}
	}
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
func (t Table[V]) IsZero() bool { return t.size == 0 }

// bucket returns a bucket, which is nil if it is empty.
func (t Table[V]) bucket(index uint8) *bucket[V] {
	if t.root == nil {
		return nil
	}
	return t.root[index]
}

func (t *Table[V]) sum() {
	content := make([]byte, 0, buckets*len(Digest{}))
	for _, b := range t.root {
		if b == nil {
			content = append(content, make([]byte, len(Digest{}))...)
		} else {
			content = append(content, b.digest[:]...)
		}
	}
	t.digest = DigestBytes(content)
}

// copy returns a bucket with room for that many more. The bucket may be nil.
func (b *bucket[V]) copy(more int) *bucket[V] {
	var entries []entry[V]
	if b != nil {
		entries = b.entries
	}
	return &bucket[V]{entries: append(make([]entry[V], 0, len(entries)+more), entries...)}
}

func (b *bucket[V]) find(name string) (int, bool) {
	if b == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(b.entries, name, func(e entry[V], name string) int { return strings.Compare(e.name, name) })
}

func (b *bucket[V]) sum() {
	content := make([]byte, 0, 64*len(b.entries))
	for _, e := range b.entries {
		content = appendKeyed(content, e.name, e.value.Digest())
	}
	b.digest = DigestBytes(content)
}

// diff walks two sorted buckets side by side. Either may be nil.
func (b *bucket[V]) diff(former *bucket[V]) iter.Seq[Change[V]] {
	return func(yield func(Change[V]) bool) {
		var was, is []entry[V]
		if former != nil {
			was = former.entries
		}
		if b != nil {
			is = b.entries
		}
		for len(was) > 0 || len(is) > 0 {
			var change Change[V]
			switch {
			case len(is) == 0 || len(was) > 0 && was[0].name < is[0].name:
				change = Change[V]{Name: was[0].name, Delete: true}
				was = was[1:]
			case len(was) == 0 || is[0].name < was[0].name:
				change = Change[V]{Name: is[0].name, Value: is[0].value}
				is = is[1:]
			default:
				same := was[0].value.Digest() == is[0].value.Digest()
				change = Change[V]{Name: is[0].name, Value: is[0].value}
				was, is = was[1:], is[1:]
				if same {
					continue
				}
			}
			if !yield(change) {
				return
			}
		}
	}
}

// bucketOf is FNV-1a folded to a byte: a spread that is the same in every process.
func bucketOf(name string) uint8 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return uint8(h ^ h>>8 ^ h>>16 ^ h>>24)
}
