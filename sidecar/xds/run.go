package xds

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// means is what a stream is worked on with.
type means struct {
	first    request
	requests <-chan request
	failed   <-chan error
	// expiry tells that the certificate ends soon.
	expiry <-chan time.Time
	send   func(*response) error
}

// run serves the stream until it ends.
//
// These things can happen: the client says something; its View may have changed, or all
// is to be sent again; it has done nothing for so long that what is held is sent; and
// the stream ends, because the client, its certificate, its pod or the controller does.
func (s *stream) run(ctx context.Context, r means) error {
	if err := s.hear(r.first); err != nil {
		return err
	}
	patience := time.NewTimer(time.Hour)
	defer patience.Stop()
	for {
		waiting, err := s.work(r.send)
		if err != nil {
			return err
		}
		if waiting > 0 {
			patience.Reset(waiting)
		} else {
			patience.Stop()
		}
		select {
		case request := <-r.requests:
			err = s.hear(request)
		case <-s.wake:
		case now := <-patience.C:
			s.hurry(now)
		case <-r.expiry:
			err = status.Error(codes.Unavailable, "the client's certificate ends soon; connect again with its successor")
		case err = <-s.end:
		case <-s.server.ending:
			err = errEnding
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

func (s *stream) hear(r request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receive(r, time.Now())
}

// hurry has what is held wait no longer if nothing happens.
func (s *stream) hurry(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished() || now.Sub(s.moved) < s.server.options.Patience {
		return
	}
	s.hurried = true
	for t := range s.all {
		t.expected = nil
	}
}

// work sends what can be sent. It returns how long to wait for the client; 0 means that
// there is nothing to wait for.
func (s *stream) work(send func(*response) error) (time.Duration, error) {
	for {
		if err := s.look(); err != nil {
			return 0, err
		}
		s.mu.Lock()
		b := s.next()
		if b == nil {
			defer s.mu.Unlock()
			return s.rest(), nil
		}
		encoded, resources := s.encode(b)
		version := s.view.Digest().String()
		s.moved = time.Now()
		s.mu.Unlock()
		if err := send(encoded); err != nil {
			return 0, err
		}
		s.conn.Sent(version, resources, encoded.size)
	}
}

// rest tells of a View that the client runs. It returns how long to wait for the client.
func (s *stream) rest() time.Duration {
	if !s.finished() {
		if s.hurried {
			return 0
		}
		return max(s.server.options.Patience-time.Since(s.moved), time.Millisecond)
	}
	if digest := s.view.Digest(); digest != s.acked && s.complete() && !s.refuses() {
		s.acked = digest
		s.conn.Acked(digest.String(), s.changed)
	}
	return 0
}

// look takes up another View, or begins to send all again, unless the client is still
// busy with the one it has: what comes in the meantime is taken as one.
func (s *stream) look() error {
	s.mu.Lock()
	busy := !s.finished() && !s.hurried
	s.mu.Unlock()
	stale, resync, since := s.noticed(!busy)
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
	if busy || !stale && !resync {
		return nil
	}
	changed := stale && view.Digest() != s.view.Digest()
	var config Config
	if changed {
		config = s.server.options.Translate(view)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if changed {
		s.retarget(view, config, since)
	}
	if resync {
		s.lastSync = time.Now()
		s.again()
	}
	return nil
}
