package repo

import (
	"slices"
	"sync"
	"time"
)

// queue holds sessions whose View may have changed. However many proxies a change
// concerns, only as many are worked on at once as there are processors.
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

// take returns the next one, or false if there will be none.
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
		s.attempt(session)
	}
}

// attempt updates the session. What it makes panic is its own, and no other's.
func (s *Server) attempt(session *session) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("the files of a proxy can't be made", "uid", session.peer.ProxyUID, "panic", r)
		}
	}()
	session.update()
}

// watch tells sessions of what happened, until stop is closed.
func (s *Server) watch(changes <-chan string, stop <-chan struct{}) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
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
		case now := <-look.C:
			if interval := s.ctrl.Configurator.GetConfigResyncInterval(); interval > 0 {
				s.resync(now.Add(-interval))
			}
		}
	}
}

// resync looks at the Views that were not looked at since. What a proxy has is never in
// doubt, it is named by its digest.
func (s *Server) resync(since time.Time) {
	for _, session := range s.each() {
		session.mu.Lock()
		due := session.refreshed.Before(since)
		session.mu.Unlock()
		if due {
			session.notice(time.Now())
		}
	}
}

// each returns all sessions.
func (s *Server) each() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.sessions))
	for _, session := range s.sessions {
		all = append(all, session)
	}
	return slices.Clip(all)
}
