package root

import (
	"bytes"
	"crypto/x509"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// candidate is the usable CA of one object or Secret.
type candidate struct {
	signer
	issuer issuer.Issuer
	// key identifies the issuer.
	key   string
	roots []*x509.Certificate
}

// desired is what objects and Secrets ask for.
type desired struct {
	// signing is nil if no CA that should sign is usable.
	signing *candidate
	// trusted are all usable CAs, including signing.
	trusted []*candidate
	// unresolved are the sources without a usable CA. Their roots stay trusted.
	unresolved []string
}

// desiredOf chooses the signer: the oldest active source that is usable. If the current
// signer's source has become unusable, the signer stays as it is.
func desiredOf(roots []*rootSource, s state) desired {
	var want desired
	decided := false
	for _, found := range roots {
		if found.candidate == nil {
			want.unresolved = append(want.unresolved, found.source)
			decided = decided || found.active && s.Signer.Source == found.source && want.signing == nil
			continue
		}
		want.trusted = append(want.trusted, found.candidate)
		if !found.active || decided {
			continue
		}
		if want.signing == nil {
			want.signing = found.candidate
		} else if found.object != nil {
			found.fail(source.ReasonConflict, "spec.intent", "%s is also active and older, so it signs; this one is only trusted; make one of them passive", want.signing.Source)
		}
	}
	return want
}

// advance returns the next state, and when it would change again without new inputs; zero
// means never. The rules:
//
//   - A root signs once it has been trusted for the propagation time. Until then the
//     previous root continues to sign, unless it cannot or there was none.
//   - A root that has signed is trusted until the last certificate that it signed has
//     expired, whether or not it is still desired.
//   - An expired root is not trusted.
func (s state) advance(w desired, now time.Time, life, propagation time.Duration) (state, time.Time) {
	first := s.Signer.ID == ""
	next := state{Signer: s.Signer, Gateway: s.Gateway, Roots: slices.Clone(s.Roots)}
	for _, c := range w.trusted {
		next.trust(c, now, first, propagation)
	}
	var wake time.Time
	if c := w.signing; c != nil {
		due := next.signableFrom(c, propagation)
		switch {
		case first, c.ID == next.Signer.ID, !now.Before(due), !next.Signer.usable(now):
			next.setSigner(c, now)
		default:
			wake = earliest(wake, due)
		}
	}
	if life != next.Signer.Life && next.Signer.ID != "" {
		if life < next.Signer.Life {
			next.Signer.Longer = latest(next.Signer.Longer, now.Add(next.Signer.Life+pki.Skew).UTC().Truncate(time.Second))
		}
		next.Signer.Life = life
	}
	next.Roots = slices.DeleteFunc(next.Roots, func(t trusted) bool {
		keep := next.trusts(t, w, now)
		for _, then := range []time.Time{t.Needed, t.Since.Add(propagation)} {
			if keep && then.After(now) {
				wake = earliest(wake, then)
			}
		}
		return !keep
	})
	slices.SortFunc(next.Roots, func(a, b trusted) int { return bytes.Compare(a.root.Raw, b.root.Raw) })
	return next, wake
}

// trust adds the roots of a candidate. In a new mesh they need no propagation time.
func (s *state) trust(c *candidate, now time.Time, first bool, propagation time.Duration) {
	for _, root := range c.roots {
		at := s.find(pki.Fingerprint(root))
		if at < 0 {
			since := now
			if first {
				since = now.Add(-propagation)
			}
			s.Roots = append(s.Roots, trusted{Certificate: string(pki.Encode(root)), Since: since.UTC().Truncate(time.Second), root: root})
			at = len(s.Roots) - 1
		}
		s.Roots[at].Source = c.Source
	}
}

// signableFrom returns when all roots of a candidate will have been trusted for the
// propagation time.
func (s *state) signableFrom(c *candidate, propagation time.Duration) time.Time {
	var due time.Time
	for _, root := range c.roots {
		due = latest(due, s.Roots[s.find(pki.Fingerprint(root))].Since.Add(propagation))
	}
	return due
}

// setSigner makes a candidate, whose roots are trusted, the signer.
func (s *state) setSigner(c *candidate, now time.Time) {
	was := s.Signer
	s.Signer = c.signer
	s.Signer.Life, s.Signer.Longer = was.Life, time.Time{}
	if was.ID == c.ID {
		s.Signer.Longer = was.Longer
	}
	for _, print := range was.Roots {
		if at := s.find(print); at >= 0 && !slices.Contains(c.Roots, print) {
			s.Roots[at].Needed = latest(now.Add(was.Life+pki.Skew), was.Longer).UTC().Truncate(time.Second)
		}
	}
	for _, print := range c.Roots {
		// Certificates from when it signed before may outlive its new ones.
		at := s.find(print)
		s.Signer.Longer = latest(s.Signer.Longer, s.Roots[at].Needed)
		s.Roots[at].Needed = time.Time{}
	}
}

// trusts reports whether a root is still trusted.
func (s *state) trusts(t trusted, w desired, now time.Time) bool {
	print := pki.Fingerprint(t.root)
	switch {
	case now.After(t.root.NotAfter):
		return false
	case slices.Contains(s.Signer.Roots, print), now.Before(t.Needed), slices.Contains(w.unresolved, t.Source):
		return true
	}
	return slices.ContainsFunc(w.trusted, func(c *candidate) bool { return slices.Contains(c.signer.Roots, print) })
}

// usable reports whether a signer can still sign; an own CA cannot after it has expired.
func (s signer) usable(now time.Time) bool {
	if s.Provider != nil {
		return true
	}
	roots, err := pki.ParseRoots([]byte(s.Certificate))
	return err == nil && !slices.ContainsFunc(roots, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// earliest treats the zero time as never.
func earliest(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}
