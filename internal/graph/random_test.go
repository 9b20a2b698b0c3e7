package graph

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// garden is a graph with all kinds of nodes. Texts name each other, and also names that do not
// exist.
type garden struct {
	*bench
	naming *Index[string, string]
	// size reads itself: the size of a text includes those of the earlier texts that it names.
	size  *Memo[string, int]
	sizes *Tables[string, *text]
	// all are the sizes that there are.
	all *Keys[string]
}

func newGarden() *garden {
	g := &garden{bench: newBench()}
	g.naming = NewIndex(g.in, byLength, words)
	g.sizes = NewTables[string, *text](&g.Graph)
	g.all = NewKeys[string](&g.Graph)
	g.size = NewMemo(&g.Graph, func(r *Reader, key string) int {
		value, ok := g.in.Get(r, key)
		if !ok {
			return 0
		}
		size := 1
		for name := range strings.FieldsSeq(value.content) {
			if name < key {
				size += g.size.Get(r, name)
			}
		}
		return size % 5
	})
	NewRule(g.in, func(r *Reader, key string, out *Output) {
		size := fmt.Sprint(g.size.Get(r, key))
		Put(out, g.sizes.Of(size), key, of(key))
		PutKey(out, g.all, size, size)
	})
	NewRule(g.all.Input, func(r *Reader, size string, out *Output) {
		Put(out, g.out, "there is "+size, of(fmt.Sprint(g.sizes.Of(size).Get(r).Names())))
	})
	NewRule(g.in, func(r *Reader, key string, out *Output) {
		same := g.sizes.Of(fmt.Sprint(g.size.Get(r, key))).Get(r).Names()
		Put(out, g.out, key, of(fmt.Sprint(same, g.naming.Get(r, key))))
	})
	return g
}

// grown returns the expected content of the table, computed from scratch.
func grown(texts map[string]string) map[string]string {
	var size func(key string) int
	size = func(key string) int {
		content, ok := texts[key]
		if !ok {
			return 0
		}
		size1 := 1
		for name := range strings.FieldsSeq(content) {
			if name < key {
				size1 += size(name)
			}
		}
		return size1 % 5
	}
	want := map[string]string{}
	for key := range texts {
		var same []string
		naming := map[string]bool{}
		for other, content := range texts {
			if size(other) == size(key) {
				same = append(same, other)
			}
			if slices.Contains(strings.Fields(content), key) {
				naming[other] = true
			}
		}
		slices.Sort(same)
		want[key] = fmt.Sprint(same, slices.SortedFunc(maps.Keys(naming), byLength))
		want[fmt.Sprint("there is ", size(key))] = fmt.Sprint(same)
	}
	return want
}

// TestRandom changes texts at random, some of them several times between updates, and checks that
// the result is the same as computing everything from scratch.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		g := newGarden()
		texts := map[string]string{}
		for step := range 200 {
			for range r.IntN(4) {
				key := fmt.Sprint("t", r.IntN(12))
				if r.IntN(3) == 0 {
					delete(texts, key)
					g.in.Delete(key)
					continue
				}
				var names []string
				for range r.IntN(4) {
					names = append(names, fmt.Sprint("t", r.IntN(12)))
				}
				texts[key] = strings.Join(names, " ")
				g.in.Set(key, of(texts[key]))
			}
			g.Update()
			if got, want := contents(g.out.Current()), grown(texts); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: of %v came\n%v, want\n%v", seed, step, texts, got, want)
			}
			before := g.Runs()
			g.Update()
			if g.Runs() != before {
				t.Fatalf("seed %d, step %d: an Update without a change ran %d functions", seed, step, g.Runs()-before)
			}
		}
	}
}

// TestNothingGrows sets and deletes new keys and checks that nothing of them remains.
func TestNothingGrows(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 20_000
	}
	r := rand.New(rand.NewPCG(1, 1))
	g := newGarden()
	var keys []string
	for step := range steps {
		if len(keys) < 3 || r.IntN(2) == 0 && len(keys) < 10 {
			key := fmt.Sprint("t", step)
			keys = append(keys, key)
			// It names one that exists and one that never does.
			g.in.Set(key, of(keys[r.IntN(len(keys))]+fmt.Sprint(" u", step)))
		} else {
			i := r.IntN(len(keys))
			g.in.Delete(keys[i])
			keys = slices.Delete(keys, i, i+1)
		}
		if r.IntN(100) == 0 {
			g.Update()
		}
	}
	for _, key := range keys {
		g.in.Delete(key)
	}
	g.Update()
	left := map[string]int{
		"values": len(g.in.slots), "listings": len(g.naming.slots), "results": len(g.size.cells), "tables": len(g.sizes.byKey), "output": len(g.out.shares),
		"sizes":   len(g.all.slots) + len(g.all.shares) + len(g.all.pending),
		"pending": len(g.out.pending), "orphans": len(g.orphans), "reading": len(g.reading),
	}
	for i, rule := range g.rules {
		rule := rule.(*Rule[string])
		left[fmt.Sprint("rule ", i)] = len(rule.cells) + len(rule.due) + len(rule.outputs)
	}
	for what, count := range left {
		if count != 0 {
			t.Errorf("%d %s are left of keys that are gone", count, what)
		}
	}
}
