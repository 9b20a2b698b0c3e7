package limit

import "testing"

// TestShare has one key take all, and others come.
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

	// All is taken. What came last is taken from who has most.
	a := take("a", "a 1", 1)
	yields("greedy 4")
	if last.Give(); s.Taken() != 6 {
		t.Errorf("%d are taken after a place was given back that was gone, want 6", s.Taken())
	}
	if last.More(1) {
		t.Error("a place that is gone gets more")
	}
	// Nobody takes from those who have less than he would.
	none("a", 3)
	// Who has as much as others takes turns with them.
	b := take("b", "b 1", 1)
	yields("greedy 4", "greedy 3")
	if !b.More(1) {
		t.Error("b may not have as much as the others")
	}
	yields("greedy 4", "greedy 3", "greedy 2")
	if !first.More(1) || first.More(2) {
		t.Error("greedy may have as much as the others, and no more")
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

// TestNobodyYieldsInVain has a key ask for more than others would make room for.
func TestNobodyYieldsInVain(t *testing.T) {
	s := NewShare[string](10, 10)
	yielded := 0
	for _, n := range []int{6, 2} {
		if _, ok := s.Take("greedy", n, func() { yielded++ }); !ok {
			t.Fatalf("there is no room for %d", n)
		}
	}
	// For all of it the older place would have to go, which is smaller than what is asked.
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
		t.Errorf("%d places have yielded for nothing, and %d are taken, want 10", yielded, s.Taken())
	}
	if !other.More(2) || yielded != 1 || s.Taken() != 10 {
		t.Errorf("%d places have yielded, and %d are taken, want 1 and 10", yielded, s.Taken())
	}
}
