package delivery

import (
	"sync"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Cache is a two-generation cache: once limit keys have been used, those unused since
// the last time are dropped. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	limit int

	mu            sync.Mutex
	recent, older map[K]*V
}

// NewCache returns an empty Cache that keeps at least limit keys and at most twice as many.
func NewCache[K comparable, V any](limit int) *Cache[K, V] { return &Cache[K, V]{limit: limit} }

// Get returns the value of the key: the same pointer each time, or one to a zero value
// if the key is new or was dropped. The value must synchronize access to itself.
func (c *Cache[K, V]) Get(key K) *V {
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

// Outbounds caches the last Outbound of each key with a driver's translation of it, so
// that the cost of the next one depends on what changed. It is safe for concurrent use.
type Outbounds[K comparable, T any] struct{ states *Cache[K, outboundState[T]] }

type outboundState[T any] struct {
	sync.Mutex
	from       *mesh.Outbound
	translated T
}

// NewOutbounds returns Outbounds that keep at least limit keys and at most twice as many.
func NewOutbounds[K comparable, T any](limit int) *Outbounds[K, T] {
	return &Outbounds[K, T]{NewCache[K, outboundState[T]](limit)}
}

// Update returns the translation of the key's Outbound. If the Outbound has changed
// since the last call, translate makes it from the former Outbound, initially empty,
// and the former translation, initially the zero T.
func (o *Outbounds[K, T]) Update(key K, outbound *mesh.Outbound, translate func(former *mesh.Outbound, translated T) T) T {
	state := o.states.Get(key)
	state.Lock()
	defer state.Unlock()
	switch {
	case state.from == nil:
		state.from = new(mesh.Outbound)
	case state.from.Digest() == outbound.Digest():
		return state.translated
	}
	state.from, state.translated = outbound, translate(state.from, state.translated)
	return state.translated
}
