package limit

import (
	"container/list"
	"sync"
	"time"
)

// Share divides a capacity among keys, such as places for connections among addresses.
// While there is enough, every key gets what it takes. After that, a key that has less
// gets the latest place of a key that has more, so nobody can lock others out by taking
// everything. It is safe for concurrent use.
type Share[K comparable] struct {
	all, each int
	tenure    time.Duration

	mu    sync.Mutex
	taken int
	// turn is the number of places ever taken, which gives their order.
	turn uint64
	by   map[K]*holding[K]
}

// holding is what a key has: the total, and its places, oldest first.
type holding[K comparable] struct {
	taken  int
	places list.List
}

// Place is a part of a Share, until it is given back or lost to another key.
type Place[K comparable] struct {
	share *Share[K]
	key   K
	taken int
	turn  uint64
	since time.Time
	// yield is called when the place is lost to another key.
	yield func()
	at    *list.Element
}

// NewShare returns a Share with limits for the total and for each key, both at least 1.
func NewShare[K comparable](all, each int) *Share[K] {
	return &Share[K]{all: max(all, 1), each: max(each, 1), by: make(map[K]*holding[K])}
}

// Keep returns the Share with a rule for keys that have equally much: they take turns, but a
// place is kept for at least d. It is for servers whose clients need a place for a short time,
// and would all have to begin again if they took turns at once. It must be called before the
// Share is used.
func (s *Share[K]) Keep(d time.Duration) *Share[K] {
	s.tenure = d
	return s
}

// Take takes n for the key. It returns false if the key would exceed its limit, or if
// nothing is left and no key has more. yield is called from any goroutine when the
// place is lost to another key; it must end the use of the place, and must not block.
func (s *Share[K]) Take(key K, n int, yield func()) (*Place[K], bool) {
	s.mu.Lock()
	yields, ok := s.makeRoom(key, n)
	var p *Place[K]
	if ok {
		s.turn++
		p = &Place[K]{share: s, key: key, turn: s.turn, since: time.Now(), yield: yield}
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

// More takes n more for the place. It returns false if that exceeds a limit or the
// place is lost. On failure the place stays as it was.
func (p *Place[K]) More(n int) bool {
	s := p.share
	s.mu.Lock()
	var yields []func()
	ok := p.at != nil
	if ok {
		// Only other keys yield, so this place cannot be lost here.
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

// Give gives the place back. Only the first call has an effect.
func (p *Place[K]) Give() {
	p.share.mu.Lock()
	defer p.share.mu.Unlock()
	p.share.remove(p)
}

// Taken returns the total that is taken.
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

// makeRoom frees places of other keys until the key can take n more. It reports whether
// it can, and returns the yield functions of the lost places. If it cannot, no place is
// lost. The caller holds mu.
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
		// The latest place has made the least progress.
		last := has.last.Value.(*Place[K])
		if has.taken == mine && time.Since(last.since) < s.tenure {
			return nil, false
		}
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

// rest is what a key would have left: the total and its last place.
type rest struct {
	taken int
	last  *list.Element
}

// most returns the key's holding that has, or would have left, the most, except for one
// key. Among equals it is the one whose last place is the oldest, so that keys take
// turns.
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
