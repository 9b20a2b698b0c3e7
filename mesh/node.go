package mesh

import (
	"cmp"
	"slices"
	"strings"
)

const (
	// digitBits is the number of hash bits that select a branch's child.
	digitBits = 4
	children  = 1 << digitBits
	// leafSize is the maximum number of entries in a leaf. Only a leaf at maxDepth, whose
	// names share the whole hash, may have more.
	leafSize = 16
	maxDepth = 64 / digitBits
)

// node is a node of a Table: a leaf with entries, or a branch with a child for each next
// digit of the entries' hashes. Its shape depends only on the entries: it is a leaf if
// there are at most leafSize. Nodes are immutable. The empty node is nil.
type node[V Digester] struct {
	size   int
	digest Digest
	// entries are sorted by hash and name.
	entries  []entry[V]
	children *[children]*node[V]
}

type entry[V Digester] struct {
	hash  uint64
	name  string
	value V
}

func (e entry[V]) compare(hash uint64, name string) int {
	if e.hash != hash {
		return cmp.Compare(e.hash, hash)
	}
	return strings.Compare(e.name, name)
}

// hashOf is FNV-1a with a final mix that makes the first digits differ too. The result is
// the same in every process.
func hashOf(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// digitOf returns the digit of the hash that selects the child of a branch at that depth.
func digitOf(hash uint64, depth int) int {
	return int(hash >> (64 - digitBits*(depth+1)) & (children - 1))
}

func newLeaf[V Digester](entries []entry[V]) *node[V] {
	if len(entries) == 0 {
		return nil
	}
	var buffer [1024]byte
	content := buffer[:0]
	for _, e := range entries {
		content = appendKeyed(content, e.name, e.value.Digest())
	}
	return &node[V]{size: len(entries), digest: DigestBytes(content), entries: entries}
}

// newBranch returns the node with the children, as a leaf if they have few entries.
func newBranch[V Digester](kids [children]*node[V]) *node[V] {
	size := 0
	var content [children * len(Digest{})]byte
	for i, kid := range kids {
		size += kid.len()
		digest := kid.sum()
		copy(content[i*len(digest):], digest[:])
	}
	if size <= leafSize {
		entries := make([]entry[V], 0, size)
		for _, kid := range kids {
			entries = append(entries, kid.list()...)
		}
		return newLeaf(entries)
	}
	// Allocate the node and its children together.
	made := &struct {
		node     node[V]
		children [children]*node[V]
	}{children: kids}
	made.node = node[V]{size: size, digest: DigestBytes(content[:]), children: &made.children}
	return &made.node
}

// split returns the node of entries that exceed a leaf.
func split[V Digester](depth int, entries []entry[V]) *node[V] {
	var kids [children]*node[V]
	for len(entries) > 0 {
		digit, n := digitOf(entries[0].hash, depth), 1
		for n < len(entries) && digitOf(entries[n].hash, depth) == digit {
			n++
		}
		if n <= leafSize || depth+1 == maxDepth {
			// Cloned, so that the leaf does not keep its neighbours in memory.
			kids[digit] = newLeaf(slices.Clone(entries[:n]))
		} else {
			kids[digit] = split(depth+1, entries[:n])
		}
		entries = entries[n:]
	}
	return newBranch(kids)
}

func (n *node[V]) len() int {
	if n == nil {
		return 0
	}
	return n.size
}

func (n *node[V]) sum() Digest {
	if n == nil {
		return Digest{}
	}
	return n.digest
}

func (n *node[V]) isBranch() bool { return n != nil && n.children != nil }

func (n *node[V]) get(hash uint64, name string) (V, bool) {
	for depth := 0; n.isBranch(); depth++ {
		n = n.children[digitOf(hash, depth)]
	}
	if n != nil {
		for i := range n.entries {
			if e := &n.entries[i]; e.hash == hash && e.name == name {
				return e.value, true
			}
		}
	}
	var none V
	return none, false
}

// all yields the entries in the order of their hashes, until yield returns false.
func (n *node[V]) all(yield func(string, V) bool) bool {
	switch {
	case n == nil:
		return true
	case n.isBranch():
		for _, kid := range n.children {
			if !kid.all(yield) {
				return false
			}
		}
		return true
	}
	for _, e := range n.entries {
		if !yield(e.name, e.value) {
			return false
		}
	}
	return true
}

// list returns the entries in the order of their hashes. The result must not be changed.
func (n *node[V]) list() []entry[V] {
	switch {
	case n == nil:
		return nil
	case !n.isBranch():
		return n.entries
	}
	entries := make([]entry[V], 0, n.size)
	for _, kid := range n.children {
		entries = append(entries, kid.list()...)
	}
	return entries
}

// change is a Change with the hash of its name and its place among the changes.
type change[V Digester] struct {
	hash  uint64
	place int
	Change[V]
}

// sorted returns the changes in the order of entries, keeping the last of each name.
func sorted[V Digester](changes []Change[V]) []change[V] {
	all := make([]change[V], 0, len(changes))
	for i, c := range changes {
		all = append(all, change[V]{hashOf(c.Name), i, c})
	}
	slices.SortFunc(all, func(a, b change[V]) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.place, b.place))
	})
	last := all[:0]
	for i, c := range all {
		if i+1 == len(all) || all[i+1].Name != c.Name {
			last = append(last, c)
		}
	}
	return last
}

// with returns the node with the changes applied, or n itself if nothing changes. The
// changes are sorted and all belong below n.
func (n *node[V]) with(depth int, changes []change[V]) *node[V] {
	if !n.isBranch() {
		return n.merge(depth, changes)
	}
	kids, same := *n.children, true
	for len(changes) > 0 {
		digit, count := digitOf(changes[0].hash, depth), 1
		for count < len(changes) && digitOf(changes[count].hash, depth) == digit {
			count++
		}
		kid := kids[digit].with(depth+1, changes[:count])
		same = same && kid == kids[digit]
		kids[digit] = kid
		changes = changes[count:]
	}
	if same {
		return n
	}
	return newBranch(kids)
}

// merge implements with for leaves.
func (n *node[V]) merge(depth int, changes []change[V]) *node[V] {
	former := n.list()
	merged, same := make([]entry[V], 0, len(former)+len(changes)), true
	for _, c := range changes {
		for len(former) > 0 && former[0].compare(c.hash, c.Name) < 0 {
			merged, former = append(merged, former[0]), former[1:]
		}
		found := len(former) > 0 && former[0].name == c.Name
		switch {
		case c.Delete && !found:
			continue
		case found && !c.Delete && former[0].value.Digest() == c.Value.Digest():
			continue
		case !c.Delete:
			merged = append(merged, entry[V]{c.hash, c.Name, c.Value})
		}
		if same = false; found {
			former = former[1:]
		}
	}
	merged = append(merged, former...)
	switch {
	case same:
		return n
	case len(merged) <= leafSize || depth == maxDepth:
		return newLeaf(merged)
	}
	return split(depth, merged)
}

// diff yields the changes from former to n, until yield returns false. It skips nodes
// with equal digests, so its cost is proportional to the difference.
func (n *node[V]) diff(former *node[V], yield func(Change[V]) bool) bool {
	switch {
	case n == former || n.sum() == former.sum():
		return true
	case former == nil:
		return n.all(func(name string, value V) bool { return yield(Change[V]{Name: name, Value: value}) })
	case n == nil:
		return former.all(func(name string, _ V) bool { return yield(Change[V]{Name: name, Delete: true}) })
	}
	if n.isBranch() && former.isBranch() {
		for i, kid := range n.children {
			if !kid.diff(former.children[i], yield) {
				return false
			}
		}
		return true
	}
	// One is a branch with many entries, the other a leaf with few: nearly all differ.
	return diffEntries(n.list(), former.list(), yield)
}

// diffEntries walks two sorted lists side by side.
func diffEntries[V Digester](is, was []entry[V], yield func(Change[V]) bool) bool {
	for len(is) > 0 || len(was) > 0 {
		order := 0
		switch {
		case len(is) == 0:
			order = 1
		case len(was) == 0:
			order = -1
		default:
			order = is[0].compare(was[0].hash, was[0].name)
		}
		var c Change[V]
		switch {
		case order > 0:
			c = Change[V]{Name: was[0].name, Delete: true}
			was = was[1:]
		case order < 0:
			c = Change[V]{Name: is[0].name, Value: is[0].value}
			is = is[1:]
		default:
			same := is[0].value.Digest() == was[0].value.Digest()
			c = Change[V]{Name: is[0].name, Value: is[0].value}
			is, was = is[1:], was[1:]
			if same {
				continue
			}
		}
		if !yield(c) {
			return false
		}
	}
	return true
}
