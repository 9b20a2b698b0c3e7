package xds

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// stream is what one connected proxy has and asks for. One goroutine works on it; mu is
// for those who look.
type stream struct {
	server *Server
	world  bool
	peer   driver.Peer
	build  string
	began  time.Time
	conn   driver.ProxyConnection

	// wake has room for one token: the View may have changed.
	wake chan struct{}
	// end takes the first reason to end the stream.
	end chan error

	// noticeMu guards what others leave for the stream to find.
	noticeMu sync.Mutex
	// stale says that there may be another View, and since when.
	stale  bool
	since  time.Time
	resync bool

	mu     sync.Mutex
	view   *mesh.View
	config Config
	// changed is since when the View is other than the one before; zero for the first.
	changed time.Time
	// acked is the View that the proxy was last known to run.
	acked mesh.Digest
	// types are the states of Options.Types, and others those of types that nobody has.
	types  []*typeState
	others map[string]*typeState
	// nonces counts the responses, and oddBytes the bytes of names that are kept and
	// may be the client's own.
	nonces   uint64
	oddBytes int
	// moved is when something last happened, and hurried says that what waits for the
	// client does not wait any more.
	moved   time.Time
	hurried bool
	// refusals are what the client said of what it refused, by type and name.
	refusals map[reference]string
	// lastSync is when the whole state was last sent, or begun with.
	lastSync time.Time
}

// reference names a resource.
type reference struct{ typeURL, name string }

func (r reference) String() string { return kindOf(r.typeURL) + " " + r.name }

func newStream(server *Server, world bool, peer driver.Peer, build string, now time.Time) *stream {
	s := &stream{
		server: server, world: world, peer: peer, build: build, began: now,
		wake: make(chan struct{}, 1), end: make(chan error, 1), moved: now, lastSync: now,
	}
	for _, t := range server.options.Types {
		// That protocol has no words for the end of what is asked for by name.
		t.Quiet = t.Quiet || world && t.Named
		s.types = append(s.types, &typeState{Type: t})
	}
	return s
}

// notice has the stream look for another View, or send its whole state again.
func (s *stream) notice(resync bool, now time.Time) {
	s.noticeMu.Lock()
	if resync {
		s.resync = true
	} else if !s.stale {
		s.stale, s.since = true, now
	}
	s.noticeMu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// stop ends the stream with the error.
func (s *stream) stop(err error) {
	select {
	case s.end <- err:
	default:
	}
}

// noticed returns what was left for the stream, and forgets it if it is taken.
func (s *stream) noticed(taken bool) (stale, resync bool, since time.Time) {
	s.noticeMu.Lock()
	defer s.noticeMu.Unlock()
	stale, resync, since = s.stale, s.resync, s.since
	if taken {
		s.stale, s.resync = false, false
	}
	return stale, resync, since
}

// retarget makes the Config of the View what the client should have.
func (s *stream) retarget(view *mesh.View, config Config, since time.Time) {
	s.view, s.config, s.changed = view, config, since
	for i, t := range s.types {
		var next mesh.Table[*Resource]
		if i < len(config) {
			next = config[i]
		}
		t.retarget(next)
	}
	s.hurried = false
}

// refuses reports whether the client goes on refusing something.
func (s *stream) refuses() bool {
	for ref := range s.refusals {
		if e := s.state(ref.typeURL).exceptions[ref.name]; e == nil || e.refused.IsZero() {
			delete(s.refusals, ref)
		}
	}
	return len(s.refusals) > 0
}

// again has all that the client has sent again, but for what it refuses.
func (s *stream) again() {
	for _, t := range s.types {
		if !t.active {
			continue
		}
		for name := range t.table.All() {
			if t.asksFor(name) {
				t.except(name).again = true
			}
		}
	}
}

// state returns the state of the type, or nil if there are too many types.
func (s *stream) state(typeURL string) *typeState {
	for _, t := range s.types {
		if t.URL == typeURL {
			return t
		}
	}
	if t := s.others[typeURL]; t != nil || len(s.others) >= mostTypes || len(typeURL) > longestName {
		return t
	}
	if s.others == nil {
		s.others = make(map[string]*typeState)
	}
	s.others[typeURL] = &typeState{Type: Type{URL: typeURL}}
	return s.others[typeURL]
}

// all yields the states in the order in which they are sent.
func (s *stream) all(yield func(*typeState) bool) {
	for _, t := range s.types {
		if !yield(t) {
			return
		}
	}
	for _, t := range s.others {
		if !yield(t) {
			return
		}
	}
}

// batch is what is sent next.
type batch struct {
	state *typeState
	nonce string
	items []item
}

// next takes what can be sent now, or returns nil. Nothing that is held is sent before
// all that comes first has arrived, and nothing is removed before everything has, which
// is not known before the client has asked for everything.
func (s *stream) next() *batch {
	settled := true
	for t := range s.all {
		if t.Held && !settled {
			continue
		}
		if b := s.take(t, (*typeState).nextAdditions); b != nil {
			return b
		}
		settled = settled && (!t.waits() || s.hurried)
	}
	if !settled || !s.complete() && !s.hurried {
		return nil
	}
	for _, named := range []bool{false, true} {
		for _, t := range slices.Backward(s.types) {
			if t.Named != named {
				continue
			}
			if b := s.take(t, (*typeState).removals); b != nil {
				return b
			}
		}
	}
	return nil
}

func (t *typeState) nextAdditions() []item { return t.additions(most) }

func (s *stream) take(t *typeState, items func(*typeState) []item) *batch {
	if !t.active || t.flight != nil {
		return nil
	}
	taken := items(t)
	if len(taken) == 0 && !t.greet {
		return nil
	}
	s.nonces++
	b := &batch{state: t, nonce: strconv.FormatUint(s.nonces, 10), items: taken}
	t.take(b.nonce, taken)
	return b
}

// encode returns the batch as a response, and how many resources are in it.
func (s *stream) encode(b *batch) (*response, int) {
	var resources []*Resource
	var removed []string
	for _, i := range b.items {
		if i.resource != nil {
			resources = append(resources, i.resource)
		} else {
			removed = append(removed, i.name)
		}
	}
	if !s.world {
		return deltaResponse(b.state.URL, b.nonce, resources, removed), len(b.items)
	}
	return s.encodeWorld(b, resources)
}

// finished reports whether the client has all that it should have, but for what it
// refuses.
func (s *stream) finished() bool {
	for t := range s.all {
		if t.active && t.unfinished() {
			return false
		}
	}
	return true
}

// complete reports whether the client has asked for all that there is to ask for
// without knowing names.
func (s *stream) complete() bool {
	return !slices.ContainsFunc(s.types, func(t *typeState) bool { return !t.Named && !t.active })
}

// receive works in what the client says. The error ends the stream.
func (s *stream) receive(r request, now time.Time) error {
	s.moved = now
	t := s.state(r.typeURL)
	if t == nil {
		return status.Errorf(codes.InvalidArgument, "no more types are served on one stream; %q is one too many", shortened(r.typeURL))
	}
	if r.nonce != "" && t.flight != nil && t.flight.nonce == r.nonce {
		s.answered(t, r)
	}
	first := !t.active
	t.active = true
	if s.world {
		return s.receiveWorld(t, r, first)
	}
	return s.receiveDelta(t, r, first)
}

// answered notes whether the client took the response in flight.
func (s *stream) answered(t *typeState, r request) {
	if r.refusal == nil {
		for _, i := range t.ack() {
			delete(s.refusals, reference{t.URL, i.name})
			if i.resource != nil && i.resource.Asks != "" {
				s.expect(t.Asks, i.resource.Asks)
			}
		}
		return
	}
	message := r.refusal.GetMessage()
	if len(message) > longestMessage {
		message = message[:longestMessage]
	}
	items := t.flight.items
	t.nack(message)
	told := false
	for _, i := range items {
		if e := t.exceptions[i.name]; e != nil && i.resource != nil && e.refused == i.resource.digest {
			if s.refusals == nil {
				s.refusals = make(map[reference]string)
			}
			s.refusals[reference{t.URL, i.name}] = message
			told = true
		}
	}
	s.server.log.Warn("a proxy refuses a part of its configuration", "proxy", s.view.Proxy.Name.String(), "uid", s.peer.ProxyUID,
		"type", kindOf(t.URL), "resources", len(items), "message", message)
	if told {
		s.reject(message)
	}
}

// expect has what is held wait until the client has asked for the resource.
func (s *stream) expect(typeURL, name string) {
	for _, t := range s.types {
		if t.URL != typeURL || t.asksFor(name) {
			continue
		}
		if _, ok := t.table.Get(name); ok {
			if t.expected == nil {
				t.expected = make(map[string]struct{})
			}
			t.expected[name] = struct{}{}
		}
	}
}

// reject tells of all that the client refuses.
func (s *stream) reject(message string) {
	s.refuses()
	rejection := driver.Rejection{Version: s.view.Digest().String(), Message: message}
	refs := make([]reference, 0, len(s.refusals))
	for ref := range s.refusals {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b reference) int {
		return slices.Compare([]string{a.typeURL, a.name}, []string{b.typeURL, b.name})
	})
	seen := make(map[mesh.ObjectRef]bool)
	for _, ref := range refs {
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
	// The View that ran before runs only in part now, and is told again when all of it
	// does.
	s.acked = mesh.Digest{}
	s.conn.Rejected(rejection)
}
