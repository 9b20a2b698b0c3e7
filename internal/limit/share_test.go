package limit

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestShare has one key take everything before others come.
func TestShare(t *testing.T) {
	s := NewShare[string](6, 4)
	var yielded []string
	take := func(key, name string, n int) *Place[string] {
		t.Helper()
		p, ok := s.Take(key, n, func() { yielded = append(yielded, name) })
		if !ok {
			t.Fatalf("%s gets nothing for %s", key, name)
		}
		return p
	}
	none := func(key string, n int) {
		t.Helper()
		if _, ok := s.Take(key, n, func() {}); ok {
			t.Fatalf("%s gets another %d", key, n)
		}
	}
	yields := func(want ...string) {
		t.Helper()
		if len(yielded) != len(want) {
			t.Fatalf("%q have yielded, want %q", yielded, want)
		}
		for i := range want {
			if yielded[i] != want[i] {
				t.Fatalf("%q have yielded, want %q", yielded, want)
			}
		}
	}
	first := take("greedy", "greedy 1", 1)
	take("greedy", "greedy 2", 1)
	take("greedy", "greedy 3", 1)
	last := take("greedy", "greedy 4", 1)
	none("greedy", 1)
	take("other", "other 1", 2)
	yields()

	// Everything is taken: the key with the most loses its latest place.
	a := take("a", "a 1", 1)
	yields("greedy 4")
	if last.Give(); s.Taken() != 6 {
		t.Errorf("%d are taken after giving back a lost place, want 6", s.Taken())
	}
	if last.More(1) {
		t.Error("a lost place gets more")
	}
	// A key cannot take from keys that have less than it would have.
	none("a", 3)
	// Keys with equal shares take turns.
	b := take("b", "b 1", 1)
	yields("greedy 4", "greedy 3")
	if !b.More(1) {
		t.Error("b cannot have as much as the others")
	}
	yields("greedy 4", "greedy 3", "greedy 2")
	if !first.More(1) || first.More(2) {
		t.Error("greedy has more than the others")
	}
	yields("greedy 4", "greedy 3", "greedy 2", "other 1")
	for _, p := range []*Place[string]{first, a, b} {
		p.Give()
		p.Give()
	}
	if s.Taken() != 0 || len(s.by) != 0 {
		t.Errorf("afterwards %d are taken, by %d", s.Taken(), len(s.by))
	}
}

// TestNobodyYieldsInVain has a key take more than other keys must yield.
func TestNobodyYieldsInVain(t *testing.T) {
	s := NewShare[string](10, 10)
	yielded := 0
	for _, n := range []int{6, 2} {
		if _, ok := s.Take("greedy", n, func() { yielded++ }); !ok {
			t.Fatalf("there is no room for %d", n)
		}
	}
	// This would also need the older place, although its key would have less then.
	if _, ok := s.Take("other", 7, func() {}); ok {
		t.Error("another key gets more than the greedy one would keep")
	}
	other, ok := s.Take("other", 2, func() {})
	if !ok {
		t.Fatal("there is no room for 2")
	}
	if other.More(5) {
		t.Error("a place gets more than the greedy key would keep")
	}
	if yielded != 0 || s.Taken() != 10 {
		t.Errorf("%d places have yielded in vain, and %d are taken, want 10", yielded, s.Taken())
	}
	if !other.More(2) || yielded != 1 || s.Taken() != 10 {
		t.Errorf("%d places have yielded, and %d are taken, want 1 and 10", yielded, s.Taken())
	}
}

// TestKeep has keys with equally much wait for each other's places.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShare[string](3, 2).Keep(time.Minute)
		yielded := ""
		take := func(key string) bool {
			_, ok := s.Take(key, 1, func() { yielded += key })
			return ok
		}
		if !take("a") || !take("b") || !take("b") {
			t.Fatal("there is no room")
		}
		if !take("c") || yielded != "b" {
			t.Errorf("from %q a place was taken, want one from b, which had two", yielded)
		}
		time.Sleep(time.Minute - 1)
		if take("d") || yielded != "b" {
			t.Errorf("before the end of their time, %q have yielded", yielded)
		}
		time.Sleep(time.Nanosecond)
		if !take("d") || yielded != "ba" {
			t.Errorf("%q have yielded, want b and then a, whose place was the oldest", yielded)
		}
	})
}
