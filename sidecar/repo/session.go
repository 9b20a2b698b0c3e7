package repo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// session is what is known of a proxy while it is connected: as long as it has a
// connection, and for a grace after that.
type session struct {
	server *Server
	peer   driver.Peer
	began  time.Time
	// ctx ends with the session, or before if its files are nobody's any more.
	ctx    context.Context
	cancel context.CancelCauseFunc
	feed   mirror.Feed
	// opened is closed when it is known whether there are files; err says why not.
	opened chan struct{}
	err    error
	conn   driver.ProxyConnection
	// work is held while files are made.
	work sync.Mutex

	// Of Server.mu: the connections, the oldest first, and what ends the grace.
	conns []*conn
	last  *time.Timer

	mu sync.Mutex
	// noticed is when the first change was seen that is not taken up yet, and refreshed
	// when the View was last looked at.
	noticed, refreshed time.Time
	queued             bool
	view               *mesh.View
	// version is that of the files, and since when the change was seen that led to it.
	version string
	since   time.Time
	// acked is the version that the proxy is known to run, and good are its files.
	acked    string
	good     mirror.Set
	rejected mirror.Status
	requests *rate.Limiter
}

func newSession(server *Server, peer driver.Peer) *session {
	s := &session{
		server: server, peer: peer, began: time.Now(), opened: make(chan struct{}),
		requests: rate.NewLimiter(requestsSecond, requestsAtOnce),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.feed.Acked, s.feed.Rejected = s.ack, s.reject
	s.feed.Sent = func(version string, files, bytes int) { s.conn.Sent(version, files, bytes) }
	return s
}

// errEnding is why sessions end when the controller does.
var errEnding = errors.New("the controller ends")

// join returns the session of the peer, to which the connection belongs from then on.
func (s *Server) join(ctx context.Context, c *conn, peer driver.Peer, remote netip.AddrPort) (*session, error) {
	if session, _ := c.of(); session != nil {
		return session, context.Cause(session.ctx)
	}
	session, first := s.enter(c, peer)
	if first {
		session.open(ctx, remote)
	}
	select {
	case <-session.opened:
	case <-ctx.Done():
		s.leave(session, c)
		return nil, ctx.Err()
	}
	switch {
	case session.err != nil:
		s.leave(session, c)
		return nil, session.err
	case session.peer.Identity != peer.Identity:
		s.leave(session, c)
		return nil, denied("pod UID %q is %s, and the proxy's certificate says %s", peer.ProxyUID, session.peer.Identity, peer.Identity)
	}
	c.settle(session, peer.NotAfter)
	return session, nil
}

// enter returns the session of the peer, and whether it is new. Of too many connections
// the oldest that is not used is closed: its proxy has most likely gone away without a
// word.
func (s *Server) enter(c *conn, peer driver.Peer) (*session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session, known := s.sessions[peer.ProxyUID]
	if !known {
		session = newSession(s, peer)
		s.sessions[peer.ProxyUID] = session
	}
	if session.last != nil {
		session.last.Stop()
		session.last = nil
	}
	session.conns = append(session.conns, c)
	if len(session.conns) > connectionsPerProxy {
		i := max(slices.IndexFunc(session.conns, func(c *conn) bool { return !c.busy.Load() }), 0)
		// It does not count from now on, or the next one that comes would choose it again.
		// Close comes back to leave.
		go session.conns[i].Close()
		session.conns = slices.Delete(session.conns, i, i+1)
	}
	return session, !known
}

// leave forgets the connection, and the session after a grace if it was the last.
func (s *Server) leave(session *session, gone *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session.conns = slices.DeleteFunc(session.conns, func(c *conn) bool { return c == gone })
	if len(session.conns) > 0 || session.last != nil || s.sessions[session.peer.ProxyUID] != session {
		return
	}
	session.last = time.AfterFunc(s.grace, func() {
		s.mu.Lock()
		unused := len(session.conns) == 0
		if unused && s.sessions[session.peer.ProxyUID] == session {
			delete(s.sessions, session.peer.ProxyUID)
		}
		s.mu.Unlock()
		if unused {
			session.end(errors.New("the proxy has gone away"))
		}
	})
}

// end ends the session: whoever waits is answered, and the proxy must connect again.
func (s *session) end(cause error) {
	s.server.mu.Lock()
	if s.server.sessions[s.peer.ProxyUID] == s {
		delete(s.server.sessions, s.peer.ProxyUID)
	}
	if s.last != nil {
		s.last.Stop()
	}
	conns := slices.Clone(s.conns)
	s.server.mu.Unlock()
	s.cancel(cause)
	for _, c := range conns {
		if !c.busy.Load() {
			_ = c.Close()
		}
	}
	<-s.opened
	if s.conn != nil {
		s.conn.Close()
	}
}

// open gives the session its first files. It is called once.
func (s *session) open(ctx context.Context, remote netip.AddrPort) {
	err := s.begin(ctx, remote)
	s.mu.Lock()
	s.err = err
	again := err == nil && !s.noticed.IsZero()
	s.mu.Unlock()
	close(s.opened)
	switch {
	case err != nil:
		s.end(err)
	case again:
		s.server.stale.put(s)
	}
}

func (s *session) begin(ctx context.Context, remote netip.AddrPort) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.server.log.Error("the files of a proxy can't be made", "uid", s.peer.ProxyUID, "panic", r)
			err = errors.New("the files can't be made")
		}
	}()
	view, err := s.server.ctrl.MeshCatalog.AwaitView(ctx, s.peer)
	if err != nil {
		return err
	}
	if err := s.server.check(s.peer, view); err != nil {
		return err
	}
	conn, err := s.server.ctrl.Proxies.Connect(driver.ConnectedProxy{
		Peer: s.peer, Name: view.Proxy.Name, Class: view.Proxy.Class, Address: remote,
	})
	if err != nil {
		return err
	}
	s.conn = conn
	return s.take(view, time.Time{})
}

// take has the files of the View be served.
func (s *session) take(view *mesh.View, since time.Time) error {
	set, err := s.server.files(view)
	if err != nil {
		return err
	}
	version := mirror.Version(set)
	s.mu.Lock()
	s.view, s.refreshed = view, time.Now()
	changed := s.version != version
	if changed {
		s.version, s.since = version, since
	}
	s.mu.Unlock()
	if changed {
		s.feed.Set(set)
	}
	return nil
}

// notice notes that the View may have changed.
func (s *session) notice(now time.Time) {
	s.mu.Lock()
	if s.noticed.IsZero() {
		s.noticed = now
	}
	queued := s.queued
	s.queued = true
	s.mu.Unlock()
	if !queued {
		s.server.stale.put(s)
	}
}

// update looks at the View and takes it up if it is another one.
func (s *session) update() {
	select {
	case <-s.opened:
	default:
		// open comes back to it.
		s.mu.Lock()
		s.queued = false
		s.mu.Unlock()
		return
	}
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	since, former := s.noticed, s.view
	s.noticed, s.queued, s.refreshed = time.Time{}, false, time.Now()
	s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	view, ok := s.server.ctrl.MeshCatalog.View(s.peer.ProxyUID)
	if !ok {
		s.end(fmt.Errorf("pod UID %q: %w", s.peer.ProxyUID, driver.ErrUnknownProxy))
		return
	}
	if err := s.server.check(s.peer, view); err != nil {
		s.end(err)
		return
	}
	if view.Digest() == former.Digest() {
		return
	}
	if err := s.take(view, since); err != nil {
		s.server.log.Error("a proxy keeps its former files", "uid", s.peer.ProxyUID, "error", err)
	}
}

// ack notes that the proxy runs the version.
func (s *session) ack(version string) {
	set, current, _ := s.feed.Current()
	s.mu.Lock()
	// The files of another version are not worth telling: they will be replaced.
	if version != s.version || version == s.acked {
		s.mu.Unlock()
		return
	}
	s.acked, s.rejected = version, mirror.Status{}
	if current == version {
		s.good = set
	}
	since := s.since
	s.mu.Unlock()
	s.conn.Acked(version, since)
}

// mostResources is how many files of a refused version are told.
const mostResources = 16

// reject notes that the proxy can't use a version, and whose fault that may be.
func (s *session) reject(status mirror.Status) {
	set, current, _ := s.feed.Current()
	s.mu.Lock()
	view, good, known := s.view, s.good, s.rejected == status
	if status.Version != s.version || status.Version != current || known {
		s.mu.Unlock()
		return
	}
	// A return to the version that is in use now is to be told as well.
	s.rejected, s.acked = status, ""
	s.mu.Unlock()
	files := suspects(set, good, status.Error)
	objects := make(map[mesh.ObjectRef]struct{})
	if s.server.options.Objects != nil {
		for _, file := range files {
			for _, object := range s.server.options.Objects(view, file) {
				objects[object] = struct{}{}
			}
		}
	}
	s.conn.Rejected(driver.Rejection{
		Version: status.Version, Message: status.Error, Resources: files,
		Objects: slices.SortedFunc(maps.Keys(objects), func(a, b mesh.ObjectRef) int { return strings.Compare(a.String(), b.String()) }),
	})
}

// suspects returns the files that a proxy may have refused: of those that differ from
// what it runs the ones that it names, or all of them if it names none.
func suspects(set, good mirror.Set, message string) []string {
	var changed, named []string
	for change := range set.Diff(good) {
		if change.Delete {
			continue
		}
		changed = append(changed, change.Name)
		if strings.Contains(message, change.Name) {
			named = append(named, change.Name)
		}
	}
	if len(named) > 0 {
		changed = named
	}
	slices.Sort(changed)
	return changed[:min(len(changed), mostResources)]
}
