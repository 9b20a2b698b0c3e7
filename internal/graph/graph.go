// Package graph recomputes what depends on what has changed, and nothing else.
//
// Inputs are set from outside. A Memo is a function of a key that reads inputs,
// indexes, tables and other memos through a Reader, which notes what was read. A
// Rule is such a function for each key of an input; it puts its results into
// Tables. When an input changes, exactly the functions are run again that read it,
// directly or through a result that came out different.
//
// It stands under internal/catalog and knows nothing of a mesh but its tables. A
// Graph and all that belongs to it are for one goroutine at a time; values are shared
// and must be immutable.
package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Graph holds what depends on each other. The zero Graph is empty.
type Graph struct {
	// revision counts the changes; see node.changed.
	revision uint64
	rules    []runner
	// reading is a stack of what the functions that run have newly read so far. One
	// that is called by another ends before the other reads on.
	reading []*node
	runs    uint64
	// orphans are what lost a reader, or a value, and may be of no use any more.
	orphans []*node
}

type runner interface{ run() }

// Runs returns how many functions have been run so far: the work that changes made.
func (g *Graph) Runs() uint64 { return g.runs }

// Update runs what is due after the inputs have been changed: the rules in the
// order in which they were made, so that a rule should read only tables of earlier
// ones: it would see those of later ones an Update late.
func (g *Graph) Update() {
	for _, rule := range g.rules {
		rule.run()
	}
	for len(g.orphans) > 0 {
		last := g.orphans[len(g.orphans)-1]
		g.orphans = g.orphans[:len(g.orphans)-1]
		if len(last.readers) == 0 && last.drop != nil {
			last.drop()
		}
	}
}

// node is something that can be read.
type node struct {
	// readers are the cells that read it, each with a run that did so.
	readers map[*cell]uint64
	// changed is the revision at which the value last became another.
	changed uint64
	// cell is nil for values that are set and not computed.
	cell *cell
	// drop is called when nobody reads the node; it forgets it unless it has a value
	// of its own.
	drop func()
}

// touch notes that the value is another and that its readers are to be looked at.
func (g *Graph) touch(n *node) {
	n.changed = g.revision
	n.mark()
}

func (n *node) mark() {
	for reader := range n.readers {
		if !reader.stale {
			reader.stale = true
			if reader.due != nil {
				reader.due()
			}
			reader.mark()
		}
	}
}

// cell is a node that is computed.
type cell struct {
	node
	graph *Graph
	// reads are what its last run read, each once, in the order of reading.
	reads []*node
	// run counts how often it was computed. Of a run, kept is how many of the reads
	// before it has repeated so far, in their order, and astray says that it has read
	// something else since.
	run    uint64
	kept   int
	astray bool
	// stale says that something that it read may have changed since verified.
	stale    bool
	verified uint64
	// compute runs the function and reports whether the result is another.
	compute func(*Reader) bool
	// due, for rules, puts the cell on the list of those to run.
	due func()
}

// refresh brings the cell up to date.
func (c *cell) refresh() {
	if !c.stale {
		return
	}
	c.stale = false
	if c.verified == 0 || c.outdated() {
		c.recompute()
	}
	c.verified = c.graph.revision
}

// outdated reports whether something that was read is another now. What was read
// is brought up to date in the order of reading, because a difference early on may
// mean that the rest would not be read any more.
func (c *cell) outdated() bool {
	for _, n := range c.reads {
		if n.cell != nil {
			n.cell.refresh()
		}
		if n.changed > c.verified {
			return true
		}
	}
	return false
}

// recompute runs the function, and then ceases to read what only the run before
// read.
func (c *cell) recompute() {
	g := c.graph
	begin := len(g.reading)
	g.runs++
	c.run++
	c.kept, c.astray = 0, false
	if c.compute(&Reader{c}) {
		c.changed = g.revision
	}
	for _, n := range c.reads[c.kept:] {
		if n.readers[c] != c.run {
			c.unread(n)
		}
	}
	clear(c.reads[c.kept:])
	c.reads = append(c.reads[:c.kept], g.reading[begin:]...)
	clear(g.reading[begin:])
	g.reading = g.reading[:begin]
}

func (c *cell) unread(n *node) {
	delete(n.readers, c)
	if len(n.readers) == 0 {
		c.graph.orphans = append(c.graph.orphans, n)
	}
}

// end ceases to read anything.
func (c *cell) end() {
	for _, n := range c.reads {
		c.unread(n)
	}
	c.reads = nil
}

// Reader is what a function reads through. It is of no use after the function
// returned.
type Reader struct{ cell *cell }

func (r *Reader) read(n *node) {
	c := r.cell
	// Most runs read what the one before did, which is noted already.
	if !c.astray {
		if c.kept < len(c.reads) && c.reads[c.kept] == n {
			c.kept++
			return
		}
		c.astray = true
		for _, kept := range c.reads[:c.kept] {
			kept.readers[c] = c.run
		}
	}
	if n.readers[c] == c.run {
		return
	}
	if n.readers == nil {
		n.readers = map[*cell]uint64{}
	}
	n.readers[c] = c.run
	c.graph.reading = append(c.graph.reading, n)
}

// Input is values by their keys that are set from outside.
type Input[K comparable, V mesh.Digester] struct {
	graph  *Graph
	slots  map[K]*slot[V]
	follow []func(key K, was, is V, had, has bool)
}

type slot[V any] struct {
	node
	value V
	has   bool
}

// NewInput returns an empty Input.
func NewInput[K comparable, V mesh.Digester](g *Graph) *Input[K, V] {
	return &Input[K, V]{graph: g, slots: map[K]*slot[V]{}}
}

// Set gives the key a value.
func (in *Input[K, V]) Set(key K, value V) { in.put(key, value, true) }

// Delete takes the key's value away.
func (in *Input[K, V]) Delete(key K) {
	var none V
	in.put(key, none, false)
}

func (in *Input[K, V]) put(key K, value V, has bool) {
	if !has && in.slots[key] == nil {
		return
	}
	s := in.slot(key)
	if s.has == has && (!has || s.value.Digest() == value.Digest()) {
		return
	}
	in.graph.revision++
	was, had := s.value, s.has
	s.value, s.has = value, has
	in.graph.touch(&s.node)
	if !has {
		in.graph.orphans = append(in.graph.orphans, &s.node)
	}
	for _, follow := range in.follow {
		follow(key, was, value, had, has)
	}
}

func (in *Input[K, V]) slot(key K) *slot[V] {
	s := in.slots[key]
	if s == nil {
		s = &slot[V]{}
		s.drop = func() {
			if !s.has {
				delete(in.slots, key)
			}
		}
		in.slots[key] = s
	}
	return s
}

// Get returns the key's value and whether there is one.
func (in *Input[K, V]) Get(r *Reader, key K) (V, bool) {
	s := in.slot(key)
	r.read(&s.node)
	return s.value, s.has
}

// Current returns the key's value, or the zero one, outside of functions.
func (in *Input[K, V]) Current(key K) V {
	if s := in.slots[key]; s != nil {
		return s.value
	}
	var none V
	return none
}
