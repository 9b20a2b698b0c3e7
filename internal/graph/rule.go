package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Rule runs a function for each key of an Input.
type Rule[K comparable] struct {
	graph *Graph
	f     func(r *Reader, key K, out *Output)
	cells map[K]*ruleCell[K]
	due   []*ruleCell[K]
	// outputs are the tables changed in this run.
	outputs map[store]struct{}
}

type ruleCell[K comparable] struct {
	cell
	key  K
	gone bool
	out  Output
}

// NewRule makes a Rule that runs f for each key of the Input that has a value. When the
// key is deleted, everything that f put into tables for it is removed. f must depend only
// on its key and what it reads through r.
func NewRule[K comparable, V mesh.Digester](in *Input[K, V], f func(r *Reader, key K, out *Output)) {
	rule := &Rule[K]{graph: in.graph, f: f, cells: map[K]*ruleCell[K]{}, outputs: map[store]struct{}{}}
	in.graph.rules = append(in.graph.rules, rule)
	in.follow = append(in.follow, func(key K, _, _ V, had, has bool) {
		switch {
		case has && !had:
			rule.add(key)
		case had && !has:
			rule.remove(key)
		}
	})
}

func (rule *Rule[K]) add(key K) {
	if c := rule.cells[key]; c != nil {
		c.gone = false
		return
	}
	c := &ruleCell[K]{key: key}
	c.cell = cell{graph: rule.graph, stale: true}
	c.node.cell = &c.cell
	c.cell.due = func() { rule.due = append(rule.due, c) }
	c.compute = func(r *Reader) bool {
		var out Output
		if !c.gone {
			rule.f(r, c.key, &out)
		}
		out.replace(&c.out, rule.outputs)
		c.out = out
		return false
	}
	rule.cells[key] = c
	c.cell.due()
}

func (rule *Rule[K]) remove(key K) {
	c := rule.cells[key]
	c.gone = true
	c.verified = 0
	if !c.stale {
		c.stale = true
		c.cell.due()
	}
}

func (rule *Rule[K]) run() {
	for len(rule.due) > 0 {
		due := rule.due
		rule.due = nil
		for _, c := range due {
			c.refresh()
			if c.gone {
				delete(rule.cells, c.key)
			}
		}
	}
	for output := range rule.outputs {
		output.flush()
	}
	clear(rule.outputs)
}
