package xds

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// transport connects a stream to its client.
type transport struct {
	first    request
	requests <-chan request
	failed   <-chan error
	// expiry fires shortly before the client's certificate expires.
	expiry <-chan time.Time
	send   func(*response) error
}

// run serves the stream until it ends.
//
// It reacts to four kinds of events: a request arrives; the View may have changed or a
// resync is due; the client has been inactive for so long that held resources are sent
// anyway; and the stream ends with the client, its certificate, its pod or the
// controller.
func (s *stream) run(ctx context.Context, turn *turn, r transport) error {
	missing := s.missing(r.first)
	if err := s.handle(r.first); err != nil {
		return err
	}
	// It is not needed any longer, and may be large.
	r.first = request{}
	turn.extend()
	turn.shrink(missing)
	patience := time.NewTimer(time.Hour)
	defer patience.Stop()
	for {
		waiting, err := s.sendPending(r.send)
		if err != nil {
			return err
		}
		if waiting > 0 {
			patience.Reset(waiting)
		} else {
			patience.Stop()
			if s.subscribedToAll() {
				turn.end()
			}
		}
		turn.extend()
		select {
		case request := <-r.requests:
			err = s.handle(request)
		case <-s.wake:
		case now := <-patience.C:
			s.stopWaiting(now)
		case <-r.expiry:
			err = errExpires
		case err = <-s.end:
		case <-s.server.stopping:
			err = errStopping
		case err = <-r.failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
		case <-ctx.Done():
			err = status.FromContextError(ctx.Err()).Err()
		}
		if err != nil {
			return err
		}
	}
}

var errExpires = status.Error(codes.Unavailable, "the client's certificate expires soon; reconnect with a renewed one")

// turn lets a stream read what a proxy that has just connected has, and send it everything
// else. It ends by itself when nothing happens for the time of Server.catchUpTime, because the
// proxy is slow or gone. Its methods are for one goroutine.
type turn struct {
	// late is nil when the turn has ended.
	late  *time.Timer
	time  time.Duration
	turns *semaphore.Weighted
	// weight is how many resources it keeps others from being sent.
	weight atomic.Int64
}

// extend lets the turn go on.
func (t *turn) extend() {
	if t.late != nil && !t.late.Reset(t.time) {
		t.end()
	}
}

// end ends the turn, unless it has ended.
func (t *turn) end() {
	if t.late == nil {
		return
	}
	t.late.Stop()
	t.late = nil
	t.shrink(0)
}

// shrink reduces the turn's weight to the number of resources.
func (t *turn) shrink(size int64) {
	for {
		weight := t.weight.Load()
		if weight <= size {
			return
		}
		if t.weight.CompareAndSwap(weight, size) {
			t.turns.Release(weight - size)
			return
		}
	}
}

// size returns how many resources the client should have.
func (s *stream) size() int {
	all := 0
	for _, t := range s.types {
		all += t.table.Len()
	}
	return all
}

// missing estimates from its first request how many resources a client lacks. One that comes
// back has most of them.
func (s *stream) missing(first request) int64 {
	known := 0
	for _, t := range s.types {
		if t.URL == first.typeURL && t.table.Len() > 0 {
			known = min(100*len(first.initial)/t.table.Len(), 100)
		}
	}
	return int64(s.size() * (100 - known) / 100)
}

// awaitTurn waits until the stream may send all its resources.
func (s *stream) awaitTurn(ctx context.Context) (*turn, error) {
	t := &turn{time: s.server.catchUpTime, turns: s.server.catchingUp}
	weight := int64(min(s.size(), maxCatchingUp))
	if !t.turns.TryAcquire(weight) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-s.server.stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
		if t.turns.Acquire(ctx, weight) != nil {
			return nil, errStopping
		}
	}
	t.weight.Store(weight)
	t.late = time.AfterFunc(t.time, func() { t.shrink(0) })
	return t, nil
}

func (s *stream) handle(r request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receive(r, time.Now())
}

// stopWaiting releases what is held once the client has been inactive for
// Options.Patience.
func (s *stream) stopWaiting(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished() || now.Sub(s.lastActivity) < s.server.options.Patience {
		return
	}
	s.timedOut = true
	for t := range s.all {
		t.expected = nil
	}
}

// sendPending sends everything that may be sent now. It returns how long to wait for
// the client; 0 means that there is nothing to wait for.
func (s *stream) sendPending(send func(*response) error) (time.Duration, error) {
	for {
		if err := s.refresh(); err != nil {
			return 0, err
		}
		s.mu.Lock()
		b := s.next()
		if b == nil {
			defer s.mu.Unlock()
			return s.reportAcked(), nil
		}
		encoded, resources := s.encode(b)
		s.sent = s.view.Digest()
		version := s.sent.String()
		s.lastActivity = time.Now()
		s.mu.Unlock()
		if err := send(encoded); err != nil {
			return 0, err
		}
		s.conn.Sent(version, resources, encoded.size)
	}
}

// reportAcked reports the View as acknowledged once the client runs all of it. It
// returns how long to wait for the client.
func (s *stream) reportAcked() time.Duration {
	if !s.finished() {
		if s.timedOut {
			return 0
		}
		return max(s.server.options.Patience-time.Since(s.lastActivity), time.Millisecond)
	}
	if digest := s.view.Digest(); digest != s.acked && s.subscribedToAll() && !s.hasRefusals() && s.settled() {
		if digest != s.sent && !s.sent.IsZero() {
			// Nothing of the View differs for the proxy, which must not look as if it
			// still ran the former one.
			s.sent = digest
			s.conn.Sent(digest.String(), 0, 0)
		}
		s.acked = digest
		s.conn.Acked(digest.String(), s.changed)
		s.reportLeftOut()
	}
	return 0
}

// refresh adopts the latest View, or goes on with it without the parts that the client rejects,
// or starts a resync, unless the client is still busy: changes in the meantime are coalesced.
func (s *stream) refresh() error {
	s.mu.Lock()
	busy := !s.finished() && !s.timedOut
	s.mu.Unlock()
	stale, resync, since := s.takeNotices(!busy)
	var view *mesh.View
	if stale {
		var ok bool
		if view, ok = s.server.ctrl.MeshCatalog.View(s.peer.ProxyUID); !ok {
			return status.Error(codes.PermissionDenied, "the proxy's pod is not in the mesh any more")
		}
		if err := s.server.check(s.peer, view); err != nil {
			return err
		}
	}
	if busy {
		return nil
	}
	s.mu.Lock()
	made := s.nextTrial()
	changed := stale && view.Digest() != s.view.Digest()
	if changed {
		made = s.offer(view)
	}
	s.mu.Unlock()
	var config Config
	if made != nil {
		config = s.server.options.Translate(made)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case changed:
		s.retarget(view, config, since)
	case made != nil:
		s.serveConfig(config)
	}
	if resync {
		s.lastSync = time.Now()
		s.resendAll()
	}
	return nil
}
