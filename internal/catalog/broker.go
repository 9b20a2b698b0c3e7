package catalog

import "sync"

// broker tells subscribers of names. It is safe for use by many goroutines.
type broker struct {
	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
}

// subscriber holds what it has not been told yet, each name once, in the order in
// which they came.
type subscriber struct {
	mu    sync.Mutex
	queue []string
	known map[string]struct{}
	wake  chan struct{}
}

func (b *broker) tell(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subscribers {
		s.add(name)
	}
}

func (b *broker) subscribe(stop <-chan struct{}) <-chan string {
	s := &subscriber{known: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscribers == nil {
		b.subscribers = map[*subscriber]struct{}{}
	}
	b.subscribers[s] = struct{}{}
	out := make(chan string)
	go func() {
		defer close(out)
		defer b.leave(s)
		s.deliver(out, stop)
	}()
	return out
}

func (b *broker) leave(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subscribers, s)
}

func (s *subscriber) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.known[name]; again {
		return
	}
	s.known[name] = struct{}{}
	s.queue = append(s.queue, name)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscriber) deliver(out chan<- string, stop <-chan struct{}) {
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

// first takes the first name out. Told again while it is being delivered, it is
// delivered again.
func (s *subscriber) first() (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return "", false
	}
	name := s.queue[0]
	s.queue = s.queue[1:]
	delete(s.known, name)
	return name, true
}
