package repo

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// queue holds the sessions whose View may have changed. One worker per processor empties
// it, however many proxies a change concerns.
type queue struct {
	mu     sync.Mutex
	filled sync.Cond
	stale  []*session
	closed bool
}

func (q *queue) put(s *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stale = append(q.stale, s)
	q.filled.Signal()
}

// take waits for a session and returns it, or false once the queue is closed.
func (q *queue) take() (*session, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.stale) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return nil, false
	}
	s := q.stale[0]
	q.stale[0] = nil
	q.stale = q.stale[1:]
	return s, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}

// refresh updates sessions until the queue is closed.
func (s *Server) refresh() {
	for {
		session, ok := s.stale.take()
		if !ok {
			return
		}
		s.updateSafely(session)
	}
}

// updateSafely updates the session. A panic does not affect other sessions.
func (s *Server) updateSafely(session *session) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("generating the files of a proxy panicked", "uid", session.peer.ProxyUID, "panic", r)
		}
	}()
	session.update()
}

// watch queues the sessions of changed proxies until stop is closed.
func (s *Server) watch(changes <-chan string, stop <-chan struct{}) {
	ticker := time.NewTicker(resyncCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case uid, ok := <-changes:
			if !ok {
				changes = nil
				continue
			}
			s.mu.Lock()
			session := s.sessions[uid]
			s.mu.Unlock()
			if session != nil {
				session.notice(time.Now())
			}
		case now := <-ticker.C:
			if interval := s.ctrl.Configurator.GetConfigResyncInterval(); interval > 0 {
				s.resync(now.Add(-interval))
			}
		}
	}
}

// resync queues the sessions whose View was not checked since. Only those whose View has
// changed are sent anything.
func (s *Server) resync(since time.Time) {
	for _, session := range s.all() {
		session.mu.Lock()
		due := session.refreshed.Before(since)
		session.mu.Unlock()
		if due {
			session.notice(time.Now())
		}
	}
}

// all returns all sessions.
func (s *Server) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.sessions))
}
