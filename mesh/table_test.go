package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// item is a part of a Table.
type item struct {
	Sealed
	Name string
	Port uint16
}

func itemOf(name string, port uint16) *item { return Seal(&item{Name: name, Port: port}) }

// plain returns the ports of a Table's services, which identify them.
func plain(t Table[*item]) map[string]uint16 {
	ports := make(map[string]uint16)
	for name, s := range t.All() {
		ports[name] = s.Port
	}
	return ports
}

// step is a random change; few names, so that changes meet.
func step(r *rand.Rand) Change[*item] {
	name := fmt.Sprint("s", r.IntN(600))
	if r.IntN(3) == 0 {
		return Change[*item]{Name: name, Delete: true}
	}
	return Change[*item]{Name: name, Value: itemOf(name, uint16(1+r.IntN(3)))}
}

// TestTableWalk walks at random beside a map.
func TestTableWalk(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		var table Table[*item]
		want := make(map[string]uint16)
		for range 150 {
			former, formerWant := table, maps.Clone(want)
			changes := make([]Change[*item], r.IntN(20))
			for i := range changes {
				changes[i] = step(r)
				if changes[i].Delete {
					delete(want, changes[i].Name)
				} else {
					want[changes[i].Name] = changes[i].Value.Port
				}
			}
			table = table.With(changes...)

			if diff := cmp.Diff(want, plain(table)); diff != "" {
				t.Fatalf("seed %d: All (-want +got):\n%s", seed, diff)
			}
			if table.Len() != len(want) {
				t.Fatalf("seed %d: Len() = %d, want %d", seed, table.Len(), len(want))
			}
			if got, want := table.Names(), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
				t.Fatalf("seed %d: Names() = %v, want %v", seed, got, want)
			}
			for i := range 600 {
				name := fmt.Sprint("s", i)
				s, ok := table.Get(name)
				if port, there := want[name]; ok != there || ok && s.Port != port {
					t.Fatalf("seed %d: Get(%q) = %v, %t, want %d, %t", seed, name, s, ok, port, there)
				}
			}
			if diff := cmp.Diff(formerWant, plain(former)); diff != "" {
				t.Fatalf("seed %d: With changed the former Table (-want +got):\n%s", seed, diff)
			}
			if (table.Digest() == former.Digest()) != maps.Equal(want, formerWant) {
				t.Fatalf("seed %d: equal digests and equal contents do not go together", seed)
			}

			// The result does not depend on the history.
			parts := make(map[string]*item)
			for name, s := range table.All() {
				parts[name] = s
			}
			if TableOf(parts).Digest() != table.Digest() {
				t.Fatalf("seed %d: the digest is not that of a new Table of the same parts", seed)
			}

			// The difference leads from one to the other and contains nothing else.
			differences := slices.Collect(table.Diff(former))
			if again := former.With(differences...); again.Digest() != table.Digest() || !maps.Equal(plain(again), want) {
				t.Fatalf("seed %d: the difference applied to the former Table gives %v, want %v", seed, plain(again), want)
			}
			for _, d := range differences {
				was, there := formerWant[d.Name]
				if is, still := want[d.Name]; there == still && was == is {
					t.Fatalf("seed %d: %q is in the difference and did not change", seed, d.Name)
				}
			}
		}
	}
}

func TestTableDigestKnowsNoOrder(t *testing.T) {
	parts := make(map[string]*item)
	for i := range 1000 {
		name := fmt.Sprint("s", i)
		parts[name] = itemOf(name, 80)
	}
	want := TableOf(parts)
	names := slices.Collect(maps.Keys(parts))
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 2))
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		var got Table[*item]
		for _, name := range names {
			got = got.With(
				Change[*item]{Name: "passing", Value: itemOf("passing", 1)},
				Change[*item]{Name: name, Value: itemOf(name, 81)},
			).With(
				Change[*item]{Name: "passing", Delete: true},
				Change[*item]{Name: name, Value: parts[name]},
			)
		}
		if got.Digest() != want.Digest() {
			t.Errorf("seed %d: the digest depends on how the Table came about", seed)
		}
		if diff := cmp.Diff(slices.Collect(orderOf(want)), slices.Collect(orderOf(got))); diff != "" {
			t.Errorf("seed %d: the order of All depends on how the Table came about:\n%s", seed, diff)
		}
	}
	empty := want
	for name := range want.All() {
		empty = empty.With(Change[*item]{Name: name, Delete: true})
	}
	if empty.Digest() != (Table[*item]{}).Digest() || !empty.IsZero() {
		t.Error("a Table that lost all its entries is not as the zero Table is")
	}
}

func orderOf(t Table[*item]) func(func(string) bool) {
	return func(yield func(string) bool) {
		for name := range t.All() {
			if !yield(name) {
				return
			}
		}
	}
}

// TestTableNamesAreKept uses names and parts that a careless digest would confuse.
func TestTableNamesAreKept(t *testing.T) {
	a, b := itemOf("a", 1), itemOf("b", 2)
	seen := make(map[Digest]string)
	for what, parts := range map[string]map[string]*item{
		"nothing": nil,
		"a":       {"x": a}, "b": {"x": b}, "a elsewhere": {"y": a},
		"both": {"x": a, "y": b}, "both exchanged": {"x": b, "y": a}, "without a name": {"": a},
	} {
		digest := TableOf(parts).Digest()
		if other, taken := seen[digest]; taken {
			t.Errorf("%q and %q have one digest", what, other)
		}
		seen[digest] = what
	}
}

func TestTableShares(t *testing.T) {
	parts := make(map[string]*item)
	for i := range 2000 {
		parts[fmt.Sprint("s", i)] = itemOf("s", 80)
	}
	former := TableOf(parts)
	changes := []Change[*item]{
		{Name: "s7", Value: itemOf("s", 81)},
		{Name: "s8", Delete: true},
		{Name: "new", Value: itemOf("s", 80)},
		{Name: "s9", Value: itemOf("s", 80)},
	}
	next := former.With(changes...)
	shared := nodesOf(former.root, nil)
	var made int
	for n := range nodesOf(next.root, nil) {
		if !shared[n] {
			made++
		}
	}
	// Each of the three effective changes has its own leaf; they share one root.
	if most := 3*depthOf(next.root) - 2; made > most {
		t.Errorf("%d nodes of %d are not shared, want %d at most", made, len(shared), most)
	}
	if value, _ := next.Get("s9"); value != parts["s9"] {
		t.Error("an equal part replaced the one that was there")
	}
	same := former.With(Change[*item]{Name: "s9", Value: itemOf("s", 80)}, Change[*item]{Name: "none", Delete: true})
	if same.root != former.root {
		t.Error("With changes nothing, and the Table is another")
	}
}

// nodesOf adds the nodes of a Table to those that were seen.
func nodesOf(n *node[*item], seen map[*node[*item]]bool) map[*node[*item]]bool {
	if seen == nil {
		seen = make(map[*node[*item]]bool)
	}
	if n == nil {
		return seen
	}
	seen[n] = true
	if n.isBranch() {
		for _, kid := range n.children {
			nodesOf(kid, seen)
		}
	}
	return seen
}

// depthOf returns how many nodes there are on the longest way from the root to a leaf.
func depthOf(n *node[*item]) int {
	if !n.isBranch() {
		return 1
	}
	deepest := 0
	for _, kid := range n.children {
		deepest = max(deepest, depthOf(kid))
	}
	return 1 + deepest
}

// TestTableOfOneHash uses names with equal hashes.
func TestTableOfOneHash(t *testing.T) {
	var all []change[*item]
	for i := range 3 * leafSize {
		name := fmt.Sprintf("s%02d", i)
		all = append(all, change[*item]{hash: 42, Change: Change[*item]{Name: name, Value: itemOf(name, 80)}})
	}
	var none *node[*item]
	whole := none.with(0, all)
	if got, want := whole.len(), len(all); got != want {
		t.Fatalf("there are %d entries, want %d", got, want)
	}
	for _, c := range all {
		if s, ok := whole.get(42, c.Name); !ok || s != c.Value {
			t.Errorf("%q is %v, %t", c.Name, s, ok)
		}
	}
	fewer := whole
	for i := range all[:2*leafSize+1] {
		all[i].Change = Change[*item]{Name: all[i].Name, Delete: true}
		fewer = fewer.with(0, all[i:i+1])
	}
	if again := none.with(0, all[2*leafSize+1:]); again.digest != fewer.digest || fewer.isBranch() {
		t.Errorf("what is left is a branch: %t, and has the digest %s, want that of a new one, %s", fewer.isBranch(), fewer.digest, again.digest)
	}
}

func TestTableOfNothing(t *testing.T) {
	var zero, other Table[*item]
	if zero.Len() != 0 || !zero.IsZero() || !zero.Digest().IsZero() || len(zero.Names()) != 0 || len(plain(zero)) != 0 {
		t.Errorf("the zero Table is not empty: %v", zero.Names())
	}
	if s, ok := zero.Get("a"); s != nil || ok {
		t.Errorf("Get of the zero Table = %v, %t", s, ok)
	}
	if content, err := json.Marshal(zero); err != nil || string(content) != "{}" {
		t.Errorf("the JSON of the zero Table is %s, %v", content, err)
	}
	if got := slices.Collect(zero.Diff(other)); len(got) != 0 {
		t.Errorf("two zero Tables differ by %v", got)
	}
	if same := zero.With(Change[*item]{Name: "a", Delete: true}); same != zero {
		t.Error("what is not there was deleted, and the Table is another")
	}
	if none := TableOf(map[string]*item(nil)); none != zero {
		t.Error("a Table of no parts is not the zero Table")
	}
	one := zero.With(Change[*item]{Name: "a", Value: itemOf("a", 1)})
	if got := slices.Collect(one.Diff(zero)); len(got) != 1 || got[0].Name != "a" || got[0].Delete {
		t.Errorf("a Table of one differs from the zero Table by %v", got)
	}
	if got := slices.Collect(zero.Diff(one)); len(got) != 1 || got[0].Name != "a" || !got[0].Delete {
		t.Errorf("the zero Table differs from a Table of one by %v", got)
	}
}

func TestTableEarlyEnd(t *testing.T) {
	table := TableOf(map[string]*item{"a": itemOf("a", 1), "b": itemOf("b", 1), "c": itemOf("c", 1)})
	count := 0
	for range table.All() {
		count++
		break
	}
	for range table.Diff(Table[*item]{}) {
		count++
		break
	}
	if count != 2 {
		t.Errorf("loops that ended at the first entry saw %d", count)
	}
}

func TestTableJSON(t *testing.T) {
	got, err := json.Marshal(TableOf(map[string]*item{"z": itemOf("a", 1), `"a"`: itemOf("b", 2)}))
	const want = `{"\"a\"":{"Name":"b","Port":2},"z":{"Name":"a","Port":1}}`
	if err != nil || string(got) != want {
		t.Errorf("the JSON is %s, %v\nwant %s", got, err, want)
	}
}
