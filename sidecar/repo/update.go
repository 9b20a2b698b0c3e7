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

// changed queues the session of a proxy whose View has changed.
func (s *Server) changed(uid string) {
	s.mu.Lock()
	session := s.sessions[uid]
	s.mu.Unlock()
	if session != nil {
		session.notice(time.Now())
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
