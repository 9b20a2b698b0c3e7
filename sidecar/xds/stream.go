package xds

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// stream is the state of one connected proxy. One goroutine works on it; mu lets others
// read it.
type stream struct {
	server *Server
	sotw   bool
	peer   driver.Peer
	began  time.Time
	conn   driver.ProxyConnection

	wake bell.Bell // rings when there may be notices
	// end takes the first error that ends the stream.
	end chan error

	// notifyMu guards the notices that other goroutines leave for the stream.
	notifyMu sync.Mutex
	// stale is set if the View may have changed; since is the time of the first change.
	stale  bool
	since  time.Time
	resync bool

	mu sync.Mutex
	// build is the client's version, empty before its first request.
	build  string
	view   *mesh.View
	config Config
	quarantined
	// changed is the time at which the View replaced the one before; zero for the first.
	changed time.Time
	// sent is the digest of the last View of which something was sent, and acked of the last
	// one that the proxy was known to run.
	sent, acked mesh.Digest
	// types are the states of Options.Types, and unknown those of other types that the
	// client requests.
	types   []*typeState
	unknown map[string]*typeState
	// nonces counts the responses. unknownBytes is an upper bound of the length of names
	// that are stored but not in a table.
	nonces       uint64
	unknownBytes int
	// lastActivity is the time of the last request or response. timedOut is set once the
	// stream no longer waits for the client.
	lastActivity time.Time
	timedOut     bool
	// refusals are the client's error messages by rejected resource.
	refusals map[reference]string
	// lastSync is when the last full sync was started.
	lastSync time.Time
}

// reference identifies a resource.
type reference struct{ typeURL, name string }

func (r reference) String() string { return shortType(r.typeURL) + " " + r.name }

func newStream(server *Server, sotw bool, peer driver.Peer, now time.Time) *stream {
	s := &stream{
		server: server, sotw: sotw, peer: peer, began: now,
		wake: bell.New(), end: make(chan error, 1), lastActivity: now, lastSync: now,
	}
	if server.options.Parts != nil {
		s.quarantine = delivery.NewQuarantine(server.convictions)
	}
	limits := deltaLimits
	if sotw {
		limits = sotwLimits
	}
	for _, t := range server.options.Types {
		// SotW has no way to remove resources that are subscribed to by name.
		t.Quiet = t.Quiet || sotw && t.Named
		s.types = append(s.types, &typeState{Type: t, limits: limits})
	}
	return s
}

func (s *stream) setBuild(build string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.build = build
}

// notify asks the stream to check for a new View or, with resync, to send everything
// again.
func (s *stream) notify(resync bool, now time.Time) {
	s.notifyMu.Lock()
	if resync {
		s.resync = true
	} else if !s.stale {
		s.stale, s.since = true, now
	}
	s.notifyMu.Unlock()
	s.wake.Ring()
}

// stop ends the stream with the error.
func (s *stream) stop(err error) {
	select {
	case s.end <- err:
	default:
	}
}

// takeNotices returns the notices, and clears them if clear is set.
func (s *stream) takeNotices(clear bool) (stale, resync bool, since time.Time) {
	s.notifyMu.Lock()
	defer s.notifyMu.Unlock()
	stale, resync, since = s.stale, s.resync, s.since
	if clear {
		s.stale, s.resync = false, false
	}
	return stale, resync, since
}

// retarget makes the Config of the View the desired state of the client.
func (s *stream) retarget(view *mesh.View, config Config, since time.Time) {
	s.view, s.changed, s.trials = view, since, 0
	s.serveConfig(config)
}

// serveConfig makes the Config the desired state of the client.
func (s *stream) serveConfig(config Config) {
	s.config, s.unjudged = config, true
	for i, t := range s.types {
		var next mesh.Table[*Resource]
		if i < len(config) {
			next = config[i]
		}
		t.retarget(next)
	}
	s.timedOut = false
}

// hasRefusals drops obsolete refusals and reports whether any are left.
func (s *stream) hasRefusals() bool {
	maps.DeleteFunc(s.refusals, func(ref reference, _ string) bool {
		e := s.state(ref.typeURL).exceptions[ref.name]
		return e == nil || e.refused.IsZero()
	})
	return len(s.refusals) > 0
}

// resendAll marks everything that the client subscribes to for sending again, except
// for rejected resources.
func (s *stream) resendAll() {
	for _, t := range s.types {
		if !t.active {
			continue
		}
		for name := range t.table.All() {
			if t.asksFor(name) {
				t.exceptionFor(name).resend = true
			}
		}
	}
}

// state returns the state of the type, or nil if the client requests too many types.
func (s *stream) state(typeURL string) *typeState {
	for _, t := range s.types {
		if t.URL == typeURL {
			return t
		}
	}
	if t := s.unknown[typeURL]; t != nil || len(s.unknown) >= maxTypes || len(typeURL) > maxNameBytes {
		return t
	}
	if s.unknown == nil {
		s.unknown = make(map[string]*typeState)
	}
	s.unknown[typeURL] = &typeState{Type: Type{URL: typeURL}}
	return s.unknown[typeURL]
}

// all yields the states in sending order.
func (s *stream) all(yield func(*typeState) bool) {
	for _, t := range s.types {
		if !yield(t) {
			return
		}
	}
	for _, t := range s.unknown {
		if !yield(t) {
			return
		}
	}
}

// batch is the content of the next response.
type batch struct {
	state *typeState
	nonce string
	items []item
}

// next returns what can be sent now, or nil. Held types are not sent before all types
// before them are acknowledged. Nothing is removed before everything is acknowledged,
// which requires that the client has subscribed to all types.
func (s *stream) next() *batch {
	settled := true
	for t := range s.all {
		if t.Held && !settled {
			continue
		}
		if b := s.takeBatch(t, (*typeState).additions); b != nil {
			return b
		}
		settled = settled && (s.timedOut || !t.pending(false))
	}
	if !settled || !s.subscribedToAll() && !s.timedOut {
		return nil
	}
	for _, named := range []bool{false, true} {
		for _, t := range slices.Backward(s.types) {
			if t.Named != named {
				continue
			}
			if b := s.takeBatch(t, (*typeState).removals); b != nil {
				return b
			}
		}
	}
	return nil
}

func (s *stream) takeBatch(t *typeState, items func(*typeState) []item) *batch {
	if !t.active || t.flight != nil {
		return nil
	}
	taken := items(t)
	if len(taken) == 0 && !t.mustRespond {
		return nil
	}
	s.nonces++
	b := &batch{state: t, nonce: strconv.FormatUint(s.nonces, 10), items: taken}
	t.markSent(b.nonce, taken)
	return b
}

// encode returns the batch as a response, and the number of resources in it.
func (s *stream) encode(b *batch) (*response, int) {
	if !s.sotw {
		return deltaResponse(b.state.URL, b.nonce, b.items), len(b.items)
	}
	var resources []*Resource
	for _, i := range b.items {
		if i.resource != nil {
			resources = append(resources, i.resource)
		}
	}
	return s.encodeSotW(b, resources)
}

// finished reports whether the client has everything that it should have, except for
// what it rejected.
func (s *stream) finished() bool {
	for t := range s.all {
		if t.active && t.pending(true) {
			return false
		}
	}
	return true
}

// subscribedToAll reports whether the client has subscribed to every type that is neither
// Named nor Optional.
func (s *stream) subscribedToAll() bool {
	return !slices.ContainsFunc(s.types, func(t *typeState) bool { return !t.Named && !t.Optional && !t.active })
}

// receive processes a request. An error ends the stream.
func (s *stream) receive(r request, now time.Time) error {
	s.lastActivity = now
	t := s.state(r.typeURL)
	if t == nil {
		return status.Errorf(codes.InvalidArgument, "too many resource types on one stream: %q", truncate(r.typeURL))
	}
	if r.nonce != "" && t.flight != nil && t.flight.nonce == r.nonce {
		s.handleAnswer(t, r)
	}
	first := !t.active
	t.active = true
	if s.sotw {
		return s.receiveSotW(t, r, first)
	}
	return s.receiveDelta(t, r, first)
}

// handleAnswer records whether the client accepted the response in flight.
func (s *stream) handleAnswer(t *typeState, r request) {
	if r.refusal == nil {
		var asked []string
		for _, i := range t.ack() {
			delete(s.refusals, reference{t.URL, i.name})
			if i.resource != nil && i.resource.Asks != "" {
				asked = append(asked, i.resource.Asks)
			}
		}
		s.expectRequests(t.Asks, asked)
		return
	}
	message := beginning(r.refusal.GetMessage(), maxMessageBytes)
	items := t.flight.items
	t.nack(message)
	reported := false
	for _, i := range items {
		if e := t.exceptions[i.name]; e != nil && i.resource != nil && e.refused == i.resource.digest {
			if s.refusals == nil {
				s.refusals = make(map[reference]string)
			}
			s.refusals[reference{t.URL, i.name}] = message
			reported = true
		}
	}
	s.server.log.Warn("proxy rejected part of its configuration", "proxy", s.view.Proxy.Name.String(), "uid", s.peer.ProxyUID,
		"type", shortType(t.URL), "resources", len(items), "message", message)
	if reported {
		s.unjudged = true
		s.reportRejection(message)
	}
}

// expectRequests delays held types until the client has subscribed to the resources.
func (s *stream) expectRequests(typeURL string, names []string) {
	for _, t := range s.types {
		if t.URL != typeURL {
			continue
		}
		for _, name := range names {
			if t.asksFor(name) || t.resource(name) == nil {
				continue
			}
			if t.expected == nil {
				t.expected = make(map[string]struct{}, len(names))
			}
			t.expected[name] = struct{}{}
		}
	}
}

// reportRejection reports all resources that the client rejects.
func (s *stream) reportRejection(message string) {
	s.hasRefusals()
	rejection := driver.Rejection{Version: s.view.Digest().String(), Message: message}
	seen := make(map[mesh.ObjectRef]bool)
	for _, ref := range s.sortedRefusals() {
		rejection.Resources = append(rejection.Resources, ref.String())
		if s.server.options.Objects == nil {
			continue
		}
		for _, object := range s.server.options.Objects(s.view, ref.typeURL, ref.name) {
			if !seen[object] {
				seen[object] = true
				rejection.Objects = append(rejection.Objects, object)
			}
		}
	}
	// The former View now runs only in part. It is reported again once it runs
	// completely.
	s.acked = mesh.Digest{}
	s.conn.Rejected(rejection)
}

// sortedRefusals returns the rejected resources.
func (s *stream) sortedRefusals() []reference {
	return slices.SortedFunc(maps.Keys(s.refusals), func(a, b reference) int {
		return cmp.Or(strings.Compare(a.typeURL, b.typeURL), strings.Compare(a.name, b.name))
	})
}
