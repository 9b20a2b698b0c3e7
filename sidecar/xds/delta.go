package xds

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits on what a client may ask for. A proxy of a mesh of thousands of services is
// well below.
const (
	mostTypes      = 32
	mostNames      = 50_000
	longestName    = 1024
	mostOddBytes   = 4 << 20
	longestMessage = 4096
)

// receiveDelta works in which resources the client asks for.
func (s *stream) receiveDelta(t *typeState, r request, first bool) error {
	if err := s.checkNames(r.subscribe, r.unsubscribe); err != nil {
		return err
	}
	if first {
		if !t.Named && (len(r.subscribe) == 0 || slices.Contains(r.subscribe, "*")) {
			s.everything(t, len(r.initial) == 0, func(name string, e *exception) {
				if version, ok := r.initial[name]; ok {
					e.has = digestOf(version)
				}
			})
		}
		for name, version := range r.initial {
			if _, ok := t.table.Get(name); !ok && t.wildcard {
				t.except(name).has = digestOf(version)
			}
		}
	}
	for _, name := range r.unsubscribe {
		s.unsubscribe(t, name)
	}
	for _, name := range r.subscribe {
		switch version, ok := r.initial[name]; {
		case name == "*" && !t.Named:
			if !t.wildcard {
				s.everything(t, true, nil)
			}
		case first && ok:
			s.subscribe(t, name, false)
			_, there := t.table.Get(name)
			if !there && t.Quiet {
				// It keeps this for something that is ending, and that is its own matter.
				continue
			}
			e := t.except(name)
			e.has, e.asked = digestOf(version), !there
			t.settle(name, e)
		default:
			s.subscribe(t, name, true)
		}
	}
	return s.weigh(t)
}

// everything has the client get all there are. The function says what it has already.
func (s *stream) everything(t *typeState, greet bool, has func(string, *exception)) {
	t.wildcard, t.greet = true, greet
	for name := range t.table.All() {
		e := t.except(name)
		if has != nil {
			has(name, e)
		}
		t.settle(name, e)
	}
}

// subscribe has the client get the resource, if it waits for it even though it has it,
// or even to hear that there is none.
func (s *stream) subscribe(t *typeState, name string, waits bool) {
	if !t.named(t.table, name) {
		t.toggle(name)
		s.oddBytes += len(name)
	}
	delete(t.expected, name)
	if !waits {
		return
	}
	t.except(name).asked = true
}

func (s *stream) unsubscribe(t *typeState, name string) {
	if name == "*" && !t.Named {
		t.wildcard, t.greet = false, false
		for name := range t.exceptions {
			if !t.named(t.table, name) {
				t.forget(name)
			}
		}
		return
	}
	if t.named(t.table, name) {
		t.toggle(name)
	}
	if e := t.exceptions[name]; e != nil {
		if t.wildcard {
			e.asked = false
			t.settle(name, e)
		} else {
			t.forget(name)
		}
	}
}

func (s *stream) checkNames(lists ...[]string) error {
	for _, names := range lists {
		if len(names) > mostNames {
			return status.Errorf(codes.ResourceExhausted, "%d names at once are more than the %d that are served", len(names), mostNames)
		}
		for _, name := range names {
			if len(name) > longestName {
				return status.Errorf(codes.InvalidArgument, "a name of a resource has %d bytes, and at most %d are served", len(name), longestName)
			}
		}
	}
	return nil
}

// weigh bounds what is kept of the names that the client asks for.
func (s *stream) weigh(t *typeState) error {
	t.subscription.weigh(t.table)
	if s.oddBytes > mostOddBytes {
		s.oddBytes = 0
		for t := range s.all {
			for name := range t.odd {
				s.oddBytes += len(name)
			}
		}
	}
	if len(t.odd) > mostNames || s.oddBytes > mostOddBytes {
		return status.Error(codes.ResourceExhausted, fmt.Sprintf("too many resources of type %s are asked for that there are not", shortened(kindOf(t.URL))))
	}
	return nil
}
