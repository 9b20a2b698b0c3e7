package graph

import "github.com/outrigger-mesh/outrigger/mesh"

// Keys is an Input of keys that rules put, for rules that come after those. A key exists as
// long as a rule puts it.
type Keys[K comparable] struct {
	*Input[K, present]
	shares map[string]*keyShare[K]
	// pending are the names that changed since the last flush.
	pending []string
}

type keyShare[K comparable] struct {
	key   K
	count int
}

// present is the value of every key that exists.
type present struct{}

// Digest implements mesh.Digester.
func (present) Digest() mesh.Digest { return mesh.Digest{1} }

// keyResult is a key as the result of a rule.
type keyResult[K comparable] struct {
	present
	key K
}

// NewKeys returns empty Keys.
func NewKeys[K comparable](g *Graph) *Keys[K] {
	return &Keys[K]{Input: NewInput[K, present](g), shares: map[string]*keyShare[K]{}}
}

// PutKey puts a key into Keys. The name must be that of no other key.
func PutKey[K comparable](out *Output, k *Keys[K], name string, key K) {
	out.results = append(out.results, result{place{k, name}, keyResult[K]{key: key}})
}

func (k *Keys[K]) put(name string, value mesh.Digester) {
	s := k.shares[name]
	if s == nil {
		s = &keyShare[K]{key: value.(keyResult[K]).key}
		k.shares[name] = s
	}
	s.count++
	k.pending = append(k.pending, name)
}

func (k *Keys[K]) take(name string) {
	if s := k.shares[name]; s != nil {
		s.count--
		k.pending = append(k.pending, name)
	}
}

func (k *Keys[K]) flush() {
	for _, name := range k.pending {
		s := k.shares[name]
		switch {
		case s == nil:
		case s.count > 0:
			k.Set(s.key, present{})
		default:
			k.Delete(s.key)
			delete(k.shares, name)
		}
	}
	k.pending = nil
}
