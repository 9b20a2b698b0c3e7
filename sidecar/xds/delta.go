package xds

import (
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits on the subscriptions of a client. Proxies of a mesh with thousands of services
// stay well below.
const (
	maxTypes = 32
	// maxNames limits the names in one request, and those stored for one type.
	maxNames     = 50_000
	maxNameBytes = 1024
	// maxUnknownBytes limits the total length of the names stored for one stream.
	maxUnknownBytes = 4 << 20
	// maxMessageBytes truncates the error message of a rejected response.
	maxMessageBytes = 4096
)

// receiveDelta updates the subscription of a delta client.
func (s *stream) receiveDelta(t *typeState, r request, first bool) error {
	if err := s.checkNames(r.subscribe, r.unsubscribe); err != nil {
		return err
	}
	if len(r.initial) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "%d versions in one request, more than the limit of %d", len(r.initial), maxNames)
	}
	if first {
		if !t.Named && (len(r.subscribe) == 0 || slices.Contains(r.subscribe, "*")) {
			s.subscribeAll(t, len(r.initial) == 0, r.initial)
		}
		// Of other types nothing is ever sent, nor removed.
		removes := t.wildcard && slices.Contains(s.types, t)
		for name, version := range r.initial {
			if _, ok := t.table.Get(name); !ok && removes && len(name) <= maxNameBytes {
				t.exceptionFor(strings.Clone(name)).has = digestOf(version)
			}
		}
	}
	for _, name := range r.unsubscribe {
		s.unsubscribe(t, name)
	}
	t.reserve(len(r.subscribe) - len(r.initial))
	t.subscription.reserve(len(r.subscribe))
	for _, name := range r.subscribe {
		name = t.keep(name)
		switch version, ok := r.initial[name]; {
		case name == "*" && !t.Named:
			if !t.wildcard {
				s.subscribeAll(t, true, nil)
			}
		case first && ok:
			s.subscribe(t, name, false)
			resource, exists := t.table.Get(name)
			has := digestOf(version)
			if !exists && t.Quiet || exists && has == resource.digest && t.exceptions[name] == nil {
				// The client has the version of the table, or keeps the resource for something
				// that is draining.
				continue
			}
			e := t.exceptionFor(name)
			e.has, e.awaited = has, !exists
			t.prune(name, e)
		default:
			s.subscribe(t, name, true)
		}
	}
	return s.limitNames(t)
}

// keep returns the name of a resource in a request, in memory of its own: it may be stored for
// longer than the request.
func (t *typeState) keep(name string) string {
	if resource, ok := t.table.Get(name); ok {
		return resource.Name
	}
	return strings.Clone(name)
}

// subscribeAll starts a wildcard subscription of a client that already has some versions.
func (s *stream) subscribeAll(t *typeState, mustRespond bool, versions map[string]string) {
	t.wildcard, t.mustRespond = true, mustRespond
	t.reserve(t.table.Len() - len(versions))
	for name, resource := range t.table.All() {
		version, known := versions[name]
		if known && t.exceptions[name] == nil && digestOf(version) == resource.digest {
			continue
		}
		if !known && t.exceptions[name] == nil {
			t.except(name, unsent)
			continue
		}
		e := t.exceptionFor(name)
		if known {
			e.has = digestOf(version)
		}
		t.prune(name, e)
	}
}

// subscribe adds the name to the subscription. With wait the client expects an answer,
// even if it already has the resource or the resource does not exist.
func (s *stream) subscribe(t *typeState, name string, wait bool) {
	if !t.named(t.table, name) {
		t.toggle(name)
		s.unknownBytes += len(name)
	}
	t.unexpect(name)
	if wait {
		t.await(name)
	}
}

func (s *stream) unsubscribe(t *typeState, name string) {
	if name == "*" && !t.Named {
		t.wildcard, t.mustRespond = false, false
		for name := range t.exceptions {
			if !t.named(t.table, name) {
				t.forget(name)
			}
		}
		return
	}
	if t.named(t.table, name) {
		t.toggle(t.keep(name))
	}
	if e := t.exceptions[name]; e != nil {
		if t.wildcard {
			e = t.exceptionFor(name)
			e.awaited = false
			t.prune(name, e)
		} else {
			t.forget(name)
		}
	}
}

func (s *stream) checkNames(lists ...[]string) error {
	for _, names := range lists {
		if len(names) > maxNames {
			return status.Errorf(codes.ResourceExhausted, "%d resource names in one request, more than the limit of %d", len(names), maxNames)
		}
		for _, name := range names {
			if len(name) > maxNameBytes {
				return status.Errorf(codes.InvalidArgument, "a resource name has %d bytes, more than the limit of %d", len(name), maxNameBytes)
			}
		}
	}
	return nil
}

// limitNames bounds the memory for the names that the client subscribes to.
func (s *stream) limitNames(t *typeState) error {
	t.subscription.compact(t.table)
	if s.unknownBytes > maxUnknownBytes {
		s.unknownBytes = 0
		for t := range s.all {
			for name := range t.diff {
				s.unknownBytes += len(name)
			}
		}
	}
	if len(t.diff) > maxNames || s.unknownBytes > maxUnknownBytes {
		return status.Errorf(codes.ResourceExhausted, "too many subscriptions to nonexistent resources of type %s", truncate(shortType(t.URL)))
	}
	return nil
}
