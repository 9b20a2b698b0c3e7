package xds

import (
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// quarantined is what a stream knows of the parts that its client is not given.
type quarantined struct {
	// quarantine is nil if the driver does not say which parts resources are made of.
	quarantine *delivery.Quarantine
	// made is the View without what is left out, of which the Config was made.
	made *mesh.View
	// unjudged is set until the quarantine knows whether the client took the Config.
	unjudged bool
	// trials counts the Configs that were made since the View changed last.
	trials int
	// hopeless are the rejected versions of resources against which nothing helped.
	hopeless map[reference]mesh.Digest
}

// maxTrials bounds the Configs of one View. A search takes about two for each halving.
const maxTrials = 512

// offer returns the View without what is left out. The caller retargets the stream to it.
func (s *stream) offer(view *mesh.View) *mesh.View {
	if s.quarantine == nil {
		return view
	}
	s.made = s.quarantine.Offer(view)
	return s.made
}

// nextTrial tells the quarantine what the client said about its Config, once it has answered all of
// it. It returns the View of which to make the next Config, or nil to keep it.
func (s *stream) nextTrial() *mesh.View {
	if s.quarantine == nil || !s.unjudged || !s.finished() || !s.subscribedToAll() {
		return nil
	}
	s.unjudged = false
	if s.trials >= maxTrials {
		return nil
	}
	s.trials++
	former := s.made
	if refs := s.newRefusals(); len(refs) > 0 {
		refusals := make([]delivery.Refusal, len(refs))
		for i, ref := range refs {
			refusals[i] = delivery.Refusal{Message: s.refusals[ref], Of: func(part mesh.Part) bool {
				return s.server.options.Parts(ref.typeURL, ref.name, part)
			}}
		}
		s.made = s.quarantine.Refused(refusals...)
		if s.made.Digest() != former.Digest() {
			return s.made
		}
		// The client keeps its last good version, and the rest goes on.
		for _, ref := range refs {
			if s.hopeless == nil {
				s.hopeless = make(map[reference]mesh.Digest)
			}
			s.hopeless[ref] = s.state(ref.typeURL).exceptions[ref.name].refused
		}
	}
	if s.made = s.quarantine.Accepted(); s.made.Digest() != former.Digest() {
		return s.made
	}
	return nil
}

// newRefusals returns the rejected resources, sorted, without hopeless ones.
func (s *stream) newRefusals() []reference {
	s.hasRefusals()
	refused := func(ref reference) mesh.Digest {
		if _, is := s.refusals[ref]; !is {
			return mesh.Digest{}
		}
		return s.state(ref.typeURL).exceptions[ref.name].refused
	}
	maps.DeleteFunc(s.hopeless, func(ref reference, version mesh.Digest) bool { return refused(ref) != version })
	return slices.DeleteFunc(s.sortedRefusals(), func(ref reference) bool { _, is := s.hopeless[ref]; return is })
}

// settled reports whether the client has everything that it will get of its View.
func (s *stream) settled() bool { return s.quarantine == nil || s.quarantine.Settled() }

// reportLeftOut reports the parts that the client's configuration lacks.
func (s *stream) reportLeftOut() {
	if s.quarantine == nil {
		return
	}
	for _, rejection := range delivery.Rejections(s.view.Digest().String(), s.view, s.quarantine.LeftOut()) {
		s.conn.Rejected(rejection)
	}
}
