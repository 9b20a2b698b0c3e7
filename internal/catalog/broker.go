package catalog

import (
	"sync"

	"github.com/outrigger-mesh/outrigger/internal/bell"
)

// broker sends names to subscribers. It is safe for concurrent use.
type broker[T comparable] struct {
	mu          sync.Mutex
	subscribers map[*subscriber[T]]struct{}
}

// subscriber queues the names that it has not received yet, in order and without
// duplicates.
type subscriber[T comparable] struct {
	mu    sync.Mutex
	queue []T
	known map[T]struct{}
	wake  bell.Bell
}

func (b *broker[T]) send(name T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subscribers {
		s.add(name)
	}
}

func (b *broker[T]) subscribe(stop <-chan struct{}) (<-chan T, *subscriber[T]) {
	s := &subscriber[T]{known: map[T]struct{}{}, wake: bell.New()}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscribers == nil {
		b.subscribers = map[*subscriber[T]]struct{}{}
	}
	b.subscribers[s] = struct{}{}
	out := make(chan T)
	go func() {
		defer close(out)
		defer b.leave(s)
		s.deliver(out, stop)
	}()
	return out, s
}

func (b *broker[T]) leave(s *subscriber[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subscribers, s)
}

func (s *subscriber[T]) add(name T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.known[name]; again {
		return
	}
	s.known[name] = struct{}{}
	s.queue = append(s.queue, name)
	s.wake.Ring()
}

func (s *subscriber[T]) deliver(out chan<- T, stop <-chan struct{}) {
	for {
		name, ok := s.first()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-stop:
				return
			}
		}
		select {
		case out <- name:
		case <-stop:
			return
		}
	}
}

// first removes the first name from the queue. If the name is sent again while it is
// being delivered, it is delivered again.
func (s *subscriber[T]) first() (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var name T
	if len(s.queue) == 0 {
		return name, false
	}
	name = s.queue[0]
	s.queue = s.queue[1:]
	delete(s.known, name)
	return name, true
}

// waiters wait for names. It is safe for concurrent use.
type waiters struct {
	mu     sync.Mutex
	byName map[string]*waiting
}

// waiting is the group that waits for one name.
type waiting struct {
	woken chan struct{}
	count int
}

// enter returns a channel that is closed when the name is next woken. The caller must
// call leave once.
func (w *waiters) enter(name string) (woken <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byName == nil {
		w.byName = map[string]*waiting{}
	}
	of := w.byName[name]
	if of == nil {
		of = &waiting{woken: make(chan struct{})}
		w.byName[name] = of
	}
	of.count++
	return of.woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if of.count--; of.count == 0 && w.byName[name] == of {
			delete(w.byName, name)
		}
	}
}

func (w *waiters) wake(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if of := w.byName[name]; of != nil {
		close(of.woken)
		delete(w.byName, name)
	}
}
