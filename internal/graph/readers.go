package graph

import (
	"iter"
	"slices"
)

// readers are the cells that depend on a node, each with the run that read it; runs begin with
// 1. Most nodes have one or two readers, for which a map would be many times as large.
type readers struct {
	few  []reading
	many map[*cell]uint64
}

type reading struct {
	cell *cell
	run  uint64
}

// maxFew is the number of readers up to which they are searched.
const maxFew = 8

func (r *readers) len() int { return len(r.few) + len(r.many) }

// run returns the run in which the cell has read, or 0.
func (r *readers) run(c *cell) uint64 {
	if r.many != nil {
		return r.many[c]
	}
	if i := r.index(c); i >= 0 {
		return r.few[i].run
	}
	return 0
}

func (r *readers) index(c *cell) int {
	return slices.IndexFunc(r.few, func(of reading) bool { return of.cell == c })
}

func (r *readers) set(c *cell, run uint64) {
	if r.many != nil {
		r.many[c] = run
		return
	}
	if i := r.index(c); i >= 0 {
		r.few[i].run = run
		return
	}
	if len(r.few) < maxFew {
		r.few = append(r.few, reading{c, run})
		return
	}
	r.many = make(map[*cell]uint64, 2*maxFew)
	for _, of := range r.few {
		r.many[of.cell] = of.run
	}
	r.few, r.many[c] = nil, run
}

func (r *readers) remove(c *cell) {
	if r.many != nil {
		if delete(r.many, c); len(r.many) == 0 {
			r.many = nil
		}
		return
	}
	if i := r.index(c); i >= 0 {
		r.few = slices.Delete(r.few, i, i+1)
	}
	if len(r.few) == 0 {
		r.few = nil
	}
}

// all yields the cells.
func (r *readers) all() iter.Seq[*cell] {
	return func(yield func(*cell) bool) {
		for _, of := range r.few {
			if !yield(of.cell) {
				return
			}
		}
		for c := range r.many {
			if !yield(c) {
				return
			}
		}
	}
}
