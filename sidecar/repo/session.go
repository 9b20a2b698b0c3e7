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
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
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
	// work is held while the files are generated, and guards quarantine and made, the View
	// without what is left out.
	work       sync.Mutex
	quarantine *delivery.Quarantine
	made       *mesh.View

	// Guarded by Server.mu: the connections, oldest first, and the timer of the grace
	// period.
	conns []*conn
	last  *time.Timer

	mu sync.Mutex
	// noticed is the time of the first change that is not applied yet, and refreshed that
	// of the last look at the View.
	noticed, refreshed time.Time
	queued             bool
	// verdict is what the proxy said about the version last, until it is handled.
	verdict *verdict
	view    *mesh.View
	// version is the version of the files, and since the time of the change that led to it.
	// served counts the versions.
	version string
	since   time.Time
	served  int
	// acked is the last version that the proxy has acknowledged, and good are its files. The
	// first is empty while the proxy refuses the version; runs then still has it.
	acked    string
	runs     string
	good     mirror.Set
	rejected mirror.Status
	// program is the version of the proxy, as its requests say.
	program  string
	requests *rate.Limiter
}

// verdict says whether the proxy accepted a version, and why not.
type verdict struct {
	version, refusal string
	accepted         bool
}

func newSession(server *Server, peer driver.Peer) *session {
	s := &session{
		server: server, peer: peer, began: time.Now(), opened: make(chan struct{}),
		requests:   rate.NewLimiter(requestsPerSecond, requestBurst),
		quarantine: delivery.NewQuarantine(server.convictions),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.feed.Acked, s.feed.Rejected, s.feed.Unwanted = s.ack, s.reject, s.unwanted
	s.feed.Sent = func(version string, files, bytes int) { s.conn.Sent(version, files, bytes) }
	return s
}

// setProgram notes the version of the proxy, if a request has one.
func (s *session) setProgram(version string) {
	s.mu.Lock()
	known := version == "" || version == s.program
	if !known {
		s.program = version
	}
	s.mu.Unlock()
	if !known {
		s.conn.SetVersion(version)
	}
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
	s.work.Lock()
	defer s.work.Unlock()
	s.mu.Lock()
	s.view = view
	s.mu.Unlock()
	return s.serveView(s.quarantine.Offer(view), time.Time{})
}

// serveView starts serving the files of a View from the quarantine. If the proxy has
// already said what it thinks of them, it goes on with the next one. The caller holds work.
func (s *session) serveView(made *mesh.View, since time.Time) error {
	for {
		s.made = made
		set, err := s.server.served(made)
		if err != nil {
			return err
		}
		version := mirror.Version(set)
		s.mu.Lock()
		s.refreshed = time.Now()
		changed := s.version != version
		if changed {
			s.version, s.since, s.served = version, since, s.served+1
		}
		runs, rejected := s.runs, s.rejected
		s.mu.Unlock()
		if changed {
			s.feed.Set(set)
		}
		next := made
		switch version {
		case runs:
			next = s.quarantine.Accepted()
		case rejected.Version:
			next = s.quarantine.Refused(delivery.Refusal{Message: rejected.Error})
		}
		if next.Digest() == made.Digest() {
			return nil
		}
		made = next
	}
}

// judge tells the quarantine what the proxy said about the version, and returns the View to
// serve next. The caller holds work.
func (s *session) judge(v *verdict) *mesh.View {
	s.mu.Lock()
	current := s.version
	s.mu.Unlock()
	switch {
	case v == nil || v.version != current:
		return s.made
	case v.accepted:
		next := s.quarantine.Accepted()
		if s.quarantine.Settled() {
			s.reportLeftOut(v.version)
		}
		return next
	default:
		return s.quarantine.Refused(delivery.Refusal{Message: v.refusal})
	}
}

// reportLeftOut reports the parts that the version lacks. The caller holds work.
func (s *session) reportLeftOut(version string) {
	s.mu.Lock()
	view := s.view
	s.mu.Unlock()
	leftOut := s.quarantine.LeftOut()
	if s.server.options.LeftOut != nil {
		leftOut = append(slices.Clip(leftOut), s.server.options.LeftOut(s.made)...)
	}
	for _, rejection := range delivery.Rejections(version, view, leftOut) {
		s.conn.Rejected(rejection)
	}
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
	since, former, verdict := s.noticed, s.view, s.verdict
	s.noticed, s.queued, s.refreshed, s.verdict = time.Time{}, false, time.Now(), nil
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
	next := s.judge(verdict)
	if view.Digest() != former.Digest() {
		s.mu.Lock()
		s.view = view
		s.mu.Unlock()
		next = s.quarantine.Offer(view)
	}
	if next.Digest() == s.made.Digest() {
		return
	}
	if err := s.serveView(next, since); err != nil {
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
	s.acked, s.runs, s.rejected = version, version, mirror.Status{}
	if current == version {
		s.good = set
	}
	since := s.since
	s.mu.Unlock()
	s.conn.Acked(version, since)
	v := verdict{version: version, accepted: true}
	if s.work.TryLock() {
		idle := s.quarantine.Idle()
		if idle {
			s.judge(&v)
		}
		s.work.Unlock()
		if idle {
			return
		}
	}
	s.heard(v)
}

// heard queues the session, because the proxy has accepted or refused a version.
func (s *session) heard(v verdict) {
	s.mu.Lock()
	s.verdict = &v
	queued := s.queued
	s.queued = true
	s.mu.Unlock()
	if !queued {
		s.server.stale.put(s)
	}
}

// unwanted is called when the proxy waits for another version than the current one. An
// agent reports a refusal once, so a controller that starts later hears only this.
func (s *session) unwanted(version string) {
	s.mu.Lock()
	served, known := s.served, s.version != version || s.rejected.Version == version
	s.mu.Unlock()
	if known {
		return
	}
	time.AfterFunc(s.server.patience, func() {
		s.mu.Lock()
		// The same version may be served again, which is another question.
		silent := s.ctx.Err() == nil && s.served == served && s.acked != version && s.rejected.Version != version
		s.mu.Unlock()
		if silent {
			s.reject(mirror.Status{Version: version, Error: "the proxy has refused this version before"})
		}
	})
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
	s.heard(verdict{version: status.Version, refusal: status.Error})
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
