package envoy

import "sync"

// cache remembers what was used lately. It forgets by halves: once limit keys have
// been used, those that were not used since the last time are dropped. The zero
// value of V is what a key has that is new or was forgotten. It is safe for use by
// many goroutines.
type cache[K comparable, V any] struct {
	limit int

	mu            sync.Mutex
	recent, older map[K]*V
}

// get returns what is remembered for the key. V guards itself.
func (c *cache[K, V]) get(key K) *V {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.recent[key]; ok {
		return v
	}
	v, ok := c.older[key]
	if !ok {
		v = new(V)
	}
	if c.recent == nil || len(c.recent) >= c.limit {
		c.older, c.recent = c.recent, make(map[K]*V)
	}
	c.recent[key] = v
	return v
}
