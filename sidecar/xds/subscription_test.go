package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestSubscription compares a subscription with a plain set of names while tables and
// names change a little or a lot.
func TestSubscription(t *testing.T) {
	inverse := 0
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		state := &typeState{Type: Type{URL: endpoints, Named: true}, active: true}
		want := map[string]bool{}
		for range 100 {
			var changes []mesh.Change[*Resource]
			many := []int{1, 3, 100}[random.IntN(3)]
			for range random.IntN(many + 1) {
				name := fmt.Sprint("n", random.IntN(150))
				changes = append(changes, mesh.Change[*Resource]{
					Name: name, Value: resourceOf(endpoints, name, fmt.Sprint(random.IntN(3))), Delete: random.IntN(3) == 0,
				})
			}
			state.retarget(state.table.With(changes...))
			for range random.IntN(many + 1) {
				name := fmt.Sprint("n", random.IntN(150))
				if state.named(state.table, name) != want[name] {
					t.Fatalf("seed %d: %s is subscribed: %t", seed, name, !want[name])
				}
				state.toggle(name)
				want[name] = !want[name]
			}
			if random.IntN(8) == 0 {
				for name := range state.table.All() {
					if !want[name] {
						state.toggle(name)
						want[name] = true
					}
				}
			}
			state.compact(state.table)
			if state.inverse {
				inverse++
			}
			count := 0
			for i := range 150 {
				name := fmt.Sprint("n", i)
				if state.named(state.table, name) != want[name] {
					t.Fatalf("seed %d: %s is subscribed: %t", seed, name, !want[name])
				}
				if want[name] {
					count++
				}
			}
			if names, others := state.all(state.table); len(names)+others != count {
				t.Fatalf("seed %d: %d names and %d others are subscribed, want %d", seed, len(names), others, count)
			}
		}
	}
	if inverse < 500 || inverse > 4500 {
		t.Errorf("the subscription was inverse %d of 5000 times", inverse)
	}
}

// TestSubscriptionIsSmall subscribes to each resource of a table by name.
func TestSubscriptionIsSmall(t *testing.T) {
	config := services(1000)
	state := &typeState{Type: Type{URL: endpoints, Named: true}, active: true, table: config[2]}
	for name := range config[2].All() {
		state.toggle(name)
	}
	state.toggle("another")
	state.compact(state.table)
	if len(state.diff) != 1 || !state.inverse {
		t.Errorf("%d names are kept", len(state.diff))
	}
}

// TestUnsubscribedIsNotSent unsubscribes from resources that several responses would bring.
func TestUnsubscribedIsNotSent(t *testing.T) {
	content := map[string]string{}
	for i := range 9 {
		content[fmt.Sprintf("e%d", i)] = "1"
	}
	e := &typeState{Type: Type{URL: endpoints, Named: true}, active: true, limits: limits{bytes: 1, asking: 1, few: 4}}
	e.retarget(state{endpoints: content}.config(nil)[2])
	s := &stream{types: []*typeState{e}}
	for name := range content {
		s.subscribe(e, name, true)
	}
	var got []string
	for n := 0; ; n++ {
		items := e.additions()
		if len(items) == 0 {
			break
		}
		e.markSent(fmt.Sprint(n), items)
		for _, i := range items {
			got = append(got, i.name)
		}
		if n == 1 {
			// They are still to be sent, in whatever order.
			for name := range content {
				if !slices.Contains(got, name) && len(content) > 6 {
					s.unsubscribe(e, name)
					delete(content, name)
				}
			}
		}
		e.ack()
	}
	slices.Sort(got)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(content)), got); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}
