package limit

import (
	"container/list"
	"sync"
)

// Share divides so much among keys, such as places for connections among addresses.
// While there is enough everybody gets what he asks for. When there is not, a key that
// has less gets what a key that has more took last: whoever takes it all can keep
// nobody else out. It is safe for use by many goroutines.
type Share[K comparable] struct {
	all, each int

	mu    sync.Mutex
	taken int
	// turn counts the places that were ever taken, which tells their order.
	turn uint64
	by   map[K]*holding[K]
}

// holding is what a key has: how much, and its places, the oldest first.
type holding[K comparable] struct {
	taken  int
	places list.List
}

// Place is what somebody has of a Share, until he gives it back or has to.
type Place[K comparable] struct {
	share *Share[K]
	key   K
	taken int
	turn  uint64
	// yield is called when the place goes to somebody else.
	yield func()
	at    *list.Element
}

// NewShare returns a Share of so much in all, of which a key may have no more than each.
// Both are at least 1.
func NewShare[K comparable](all, each int) *Share[K] {
	return &Share[K]{all: max(all, 1), each: max(each, 1), by: make(map[K]*holding[K])}
}

// Take takes n for the key, or returns false if the key has too much, or as much as
// anybody where nothing is left. Yield is called, from any goroutine, when the place has
// gone to another key; it must end what the place is for, and not wait.
func (s *Share[K]) Take(key K, n int, yield func()) (*Place[K], bool) {
	s.mu.Lock()
	yields, ok := s.makeRoom(key, n)
	var p *Place[K]
	if ok {
		s.turn++
		p = &Place[K]{share: s, key: key, turn: s.turn, yield: yield}
		h := s.by[key]
		if h == nil {
			h = &holding[K]{}
			s.by[key] = h
		}
		p.at = h.places.PushBack(p)
		s.add(p, n)
	}
	s.mu.Unlock()
	for _, yield := range yields {
		yield()
	}
	return p, ok
}

// More takes n more for what the place is for, or returns false if it may not have them
// or the place is gone. What it had it keeps.
func (p *Place[K]) More(n int) bool {
	s := p.share
	s.mu.Lock()
	var yields []func()
	ok := p.at != nil
	if ok {
		// Whoever has more may be asked to yield, and this place is not: it is the key's.
		if yields, ok = s.makeRoom(p.key, n); ok {
			s.add(p, n)
		}
	}
	s.mu.Unlock()
	for _, yield := range yields {
		yield()
	}
	return ok
}

// Give gives the place back. Only the first call does.
func (p *Place[K]) Give() {
	p.share.mu.Lock()
	defer p.share.mu.Unlock()
	p.share.remove(p)
}

// Taken returns how much is taken in all.
func (s *Share[K]) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

func (s *Share[K]) add(p *Place[K], n int) {
	p.taken += n
	s.by[p.key].taken += n
	s.taken += n
}

func (s *Share[K]) remove(p *Place[K]) {
	if p.at == nil {
		return
	}
	h := s.by[p.key]
	h.places.Remove(p.at)
	p.at = nil
	h.taken -= p.taken
	s.taken -= p.taken
	if h.places.Len() == 0 {
		delete(s.by, p.key)
	}
}

// makeRoom takes from others until n more can be taken for the key, and returns whether
// they can and what is to be called for those that it took from. Where they can't, it
// takes from nobody. It is called with mu held.
func (s *Share[K]) makeRoom(key K, n int) (yields []func(), ok bool) {
	mine := n
	if h := s.by[key]; h != nil {
		mine += h.taken
	}
	if mine > s.each {
		return nil, false
	}
	var leaving []*Place[K]
	var kept map[*holding[K]]rest
	for free := s.all - s.taken; free < n; {
		most, has := s.most(key, kept)
		if most == nil || has.taken < mine {
			return nil, false
		}
		// What came last has got least far.
		last := has.last.Value.(*Place[K])
		leaving = append(leaving, last)
		free += last.taken
		if kept == nil {
			kept = make(map[*holding[K]]rest)
		}
		kept[most] = rest{has.taken - last.taken, has.last.Prev()}
	}
	for _, place := range leaving {
		s.remove(place)
		yields = append(yields, place.yield)
	}
	return yields, true
}

// rest is what a key would have left, and the last of its places.
type rest struct {
	taken int
	last  *list.Element
}

// most returns what the key has, or would have left, that has most, leaving one out. Of
// several it is the one whose last place is the oldest, so that they take turns.
func (s *Share[K]) most(except K, kept map[*holding[K]]rest) (most *holding[K], has rest) {
	for key, h := range s.by {
		if key == except {
			continue
		}
		left, ok := kept[h]
		if !ok {
			left = rest{h.taken, h.places.Back()}
		}
		if left.last == nil {
			continue
		}
		if most == nil || left.taken > has.taken || left.taken == has.taken && turnOf[K](left.last) < turnOf[K](has.last) {
			most, has = h, left
		}
	}
	return most, has
}

func turnOf[K comparable](place *list.Element) uint64 { return place.Value.(*Place[K]).turn }
