package delivery

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestCache(t *testing.T) {
	c := NewCache[int, int](10)
	*c.Get(0) = 7
	for i := range 1000 {
		*c.Get(i % 500)++
		if got := *c.Get(0); got < 7 {
			t.Fatalf("a key that is used all the time was dropped after %d others", i)
		}
		if n := len(c.recent) + len(c.older); n > 2*c.limit {
			t.Fatalf("%d keys are kept, twice the limit is %d", n, 2*c.limit)
		}
	}
	if got := *c.Get(499 - 2*c.limit); got != 0 {
		t.Errorf("a key that was not used for long still has the value %d", got)
	}
}

// TestOutbounds translates what changed only, from the former Outbound of the same key.
func TestOutbounds(t *testing.T) {
	outbound := func(names ...string) *mesh.Outbound {
		parts := make(map[string]*mesh.Destination)
		for _, name := range names {
			parts[name] = mesh.Seal(&mesh.Destination{Name: name})
		}
		return mesh.NewOutbound("scope", mesh.TableOf(parts), mesh.Table[*mesh.Backend]{})
	}
	outbounds, calls := NewOutbounds[string, int](10), 0
	update := func(key string, o *mesh.Outbound) int {
		return outbounds.Update(key, o, func(former *mesh.Outbound, translated int) int {
			calls++
			for range o.Destinations.Diff(former.Destinations) {
				translated++
			}
			return translated
		})
	}
	for i, step := range []struct {
		key         string
		outbound    *mesh.Outbound
		want, calls int
	}{
		{"a", outbound("x", "y"), 2, 1},
		{"a", outbound("x", "y"), 2, 1},
		{"b", outbound("x", "y"), 2, 2},
		{"a", outbound("x", "y", "z"), 3, 3},
		{"a", outbound(), 6, 4},
		{"c", outbound(), 0, 5},
	} {
		if got := update(step.key, step.outbound); got != step.want || calls != step.calls {
			t.Errorf("step %d: %d changes in %d calls, want %d in %d", i, got, calls, step.want, step.calls)
		}
	}
}
