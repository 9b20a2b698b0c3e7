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

// session is the state of a connected proxy. It lives as long as the proxy has a
// connection, and for a grace period after that.
type session struct {
	server *Server
	peer   driver.Peer
	began  time.Time
	// ctx is done when the session ends.
	ctx    context.Context
	cancel context.CancelCauseFunc
	feed   mirror.Feed
	// opened is closed when the first files are there, or err says why there are none.
	opened chan struct{}
	err    error
	conn   driver.ProxyConnection
	// work is held while the files are generated.
	work sync.Mutex

	// Guarded by Server.mu: the connections, oldest first, and the timer of the grace
	// period.
	conns []*conn
	last  *time.Timer

	mu sync.Mutex
	// noticed is the time of the first change that is not applied yet, and refreshed that
	// of the last look at the View.
	noticed, refreshed time.Time
	queued             bool
	view               *mesh.View
	// version is the version of the files, and since the time of the change that led to it.
	version string
	since   time.Time
	// acked is the last version that the proxy has acknowledged, and good are its files.
	acked    string
	good     mirror.Set
	rejected mirror.Status
	requests *rate.Limiter
}

func newSession(server *Server, peer driver.Peer) *session {
	s := &session{
		server: server, peer: peer, began: time.Now(), opened: make(chan struct{}),
		requests: rate.NewLimiter(requestsPerSecond, requestBurst),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.feed.Acked, s.feed.Rejected = s.ack, s.reject
	s.feed.Sent = func(version string, files, bytes int) { s.conn.Sent(version, files, bytes) }
	return s
}

// errShutdown ends the sessions when the controller shuts down.
var errShutdown = errors.New("the controller is shutting down")

// join returns the session of the peer and assigns the connection to it.
func (s *Server) join(ctx context.Context, c *conn, peer driver.Peer, remote netip.AddrPort) (*session, error) {
	if session, _ := c.assigned(); session != nil {
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

// enter adds the connection to the session of the peer, and returns the session and whether
// it is new. If there are too many connections, it closes the oldest idle one, whose client
// has most likely vanished.
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
		// Remove it here, or the next connection would choose it again. Close calls leave.
		go session.conns[i].Close()
		session.conns = slices.Delete(session.conns, i, i+1)
	}
	return session, !known
}

// leave removes the connection, and if it was the last one, the session after a grace
// period.
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
			session.end(errors.New("the proxy has disconnected"))
		}
	})
}

// end ends the session: waiting requests are answered, and the proxy must reconnect.
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

// open provides the first files of the session. It is called once.
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
			s.server.log.Error("generating the files of a proxy panicked", "uid", s.peer.ProxyUID, "panic", r)
			err = errors.New("the controller can't generate the files")
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
	return s.serveView(view, time.Time{})
}

// serveView starts serving the files of the View.
func (s *session) serveView(view *mesh.View, since time.Time) error {
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

// notice queues the session, because its View may have changed.
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

// update serves the current View if it differs from the last one.
func (s *session) update() {
	select {
	case <-s.opened:
	default:
		// open queues the session again.
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
	if err := s.serveView(view, since); err != nil {
		s.server.log.Error("the files of a proxy are not updated", "uid", s.peer.ProxyUID, "error", err)
	}
}

// ack records that the proxy runs the version.
func (s *session) ack(version string) {
	set, current, _ := s.feed.Current()
	s.mu.Lock()
	// Other versions need no report: they will be replaced.
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

// maxResources bounds the files of a refused version that are reported.
const maxResources = 16

// reject records that the proxy can't use a version, and reports the files and objects
// that may be the cause.
func (s *session) reject(status mirror.Status) {
	set, current, _ := s.feed.Current()
	s.mu.Lock()
	view, good, known := s.view, s.good, s.rejected == status
	if status.Version != s.version || status.Version != current || known {
		s.mu.Unlock()
		return
	}
	// Clear acked, so that a return to the version in use is reported as well.
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

// suspects returns the files that may have caused a refusal: of those that differ from the
// files in use the ones that the message names, or all of them if it names none.
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
	return changed[:min(len(changed), maxResources)]
}
