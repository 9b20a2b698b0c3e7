// Package graph implements incremental computation: after a change it recomputes only
// the affected results.
//
// Inputs are set from outside. A Memo is a function of a key that reads inputs,
// indexes, tables and other memos through a Reader, which records the dependencies. A
// Rule is such a function for each key of an input; it puts its results into Tables.
// After a change of an input, only the functions that read it are run again, and
// those that read a result which changed.
//
// Package internal/catalog is built on package graph, which knows only the tables and
// digests of package mesh. A Graph and its parts must be used by one goroutine at a time;
// values are shared and must be immutable.
package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Graph holds inputs, functions and results that depend on each other. The zero Graph is
// empty.
type Graph struct {
	// revision counts changes; see node.changed.
	revision uint64
	rules    []runner
	// reading is a stack of the new dependencies of the running functions. A nested
	// function finishes before its caller reads on.
	reading []*node
	runs    uint64
	// orphans have lost a reader or their value, and may be removed.
	orphans []*node
}

type runner interface{ run() }

// Runs returns the number of function runs so far, a measure of the work done.
func (g *Graph) Runs() uint64 { return g.runs }

// Update reruns outdated functions after inputs changed. Rules run in the order of their
// creation, so a rule should read only tables of earlier rules; it sees tables of later
// ones one Update late.
func (g *Graph) Update() {
	for _, rule := range g.rules {
		rule.run()
	}
	for len(g.orphans) > 0 {
		last := g.orphans[len(g.orphans)-1]
		g.orphans = g.orphans[:len(g.orphans)-1]
		if last.readers.len() == 0 && last.drop != nil {
			last.drop()
		}
	}
}

// node is something that can be read.
type node struct {
	// readers are the cells that depend on it.
	readers readers
	// changed is the revision of the last change of the value.
	changed uint64
	// cell is nil for values that are set, not computed.
	cell *cell
	// drop is called when the node has no readers. It removes the node unless it has a
	// value.
	drop func()
}

// touch records a change of the value and marks its readers as stale.
func (g *Graph) touch(n *node) {
	n.changed = g.revision
	n.mark()
}

func (n *node) mark() {
	for reader := range n.readers.all() {
		if !reader.stale {
			reader.stale = true
			if reader.due != nil {
				reader.due()
			}
			reader.mark()
		}
	}
}

// cell is a computed node.
type cell struct {
	node
	graph *Graph
	// reads are the dependencies of the last run, in order and without duplicates.
	reads []*node
	// run counts the runs. During a run, kept is the number of dependencies that repeat
	// those of the run before, in order; astray is set at the first difference.
	run    uint64
	kept   int
	astray bool
	// stale is set when a dependency may have changed since verified.
	stale    bool
	verified uint64
	// compute runs the function and reports whether the result changed.
	compute func(*Reader) bool
	// due, for rules, queues the cell for the next Update.
	due func()
}

// refresh updates the cell if it is stale.
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

// outdated reports whether a dependency changed. Dependencies are refreshed in the order
// of reading, since a change of an early one may mean that later ones are no longer read.
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

// recompute runs the function and drops dependencies that were not read again.
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
		if n.readers.run(c) != c.run {
			c.unread(n)
		}
	}
	clear(c.reads[c.kept:])
	c.reads = append(c.reads[:c.kept], g.reading[begin:]...)
	clear(g.reading[begin:])
	g.reading = g.reading[:begin]
}

func (c *cell) unread(n *node) {
	n.readers.remove(c)
	if n.readers.len() == 0 {
		c.graph.orphans = append(c.graph.orphans, n)
	}
}

// end drops all dependencies.
func (c *cell) end() {
	for _, n := range c.reads {
		c.unread(n)
	}
	c.reads = nil
}

// Reader records what a function reads. It is invalid after the function returns.
type Reader struct{ cell *cell }

func (r *Reader) read(n *node) {
	c := r.cell
	// Fast path: most runs read the same nodes as the run before.
	if !c.astray {
		if c.kept < len(c.reads) && c.reads[c.kept] == n {
			c.kept++
			return
		}
		c.astray = true
		for _, kept := range c.reads[:c.kept] {
			kept.readers.set(c, c.run)
		}
	}
	if n.readers.run(c) == c.run {
		return
	}
	n.readers.set(c, c.run)
	c.graph.reading = append(c.graph.reading, n)
}

// Input has values by key that are set from outside.
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

// Set sets the value of a key.
func (in *Input[K, V]) Set(key K, value V) { in.put(key, value, true) }

// Delete removes the value of a key.
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

// Get returns the value of the key and whether it exists.
func (in *Input[K, V]) Get(r *Reader, key K) (V, bool) {
	s := in.slot(key)
	r.read(&s.node)
	return s.value, s.has
}

// Current returns the key's value, or the zero value. It is for use outside of functions.
func (in *Input[K, V]) Current(key K) V {
	if s := in.slots[key]; s != nil {
		return s.value
	}
	var none V
	return none
}
