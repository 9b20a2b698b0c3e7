package envoy

import "testing"

func TestCache(t *testing.T) {
	c := cache[int, int]{limit: 10}
	*c.get(0) = 7
	for i := range 1000 {
		*c.get(i % 500)++
		if got := *c.get(0); got < 7 {
			t.Fatalf("what is used all the time is forgotten after %d others", i)
		}
		if n := len(c.recent) + len(c.older); n > 2*c.limit {
			t.Fatalf("%d keys are remembered, twice the limit is %d", n, 2*c.limit)
		}
	}
	if got := *c.get(499 - 2*c.limit); got != 0 {
		t.Errorf("what was not used for long is remembered as %d", got)
	}
}
