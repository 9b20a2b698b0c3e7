package root

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// state is what is in use, which replicas and restarts share. Objects and Secrets say
// what is wanted, and advance brings the state there without haste.
type state struct {
	Signer signer `json:"signer"`
	// Roots are all that are trusted, sorted by their certificates.
	Roots []trusted `json:"roots"`
	// Gateway is the Secret with the certificate of the ingress gateway, if it was made.
	Gateway *secretRef `json:"gateway,omitempty"`
}

// signer is what signs, with all that is needed to go on signing when the object or
// the Secret that it came from is gone or broken.
type signer struct {
	// Source says in words where it came from.
	Source string `json:"source"`
	// ID is the same for the same CA.
	ID string `json:"id"`
	// Certificate and Key are PEM of an own CA.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	// Provider is another kind of CA.
	Provider *v1alpha2.ProviderSpec `json:"provider,omitempty"`
	// Roots are the fingerprints of its roots.
	Roots []string `json:"roots"`
	// Life is how long its certificates are valid, and Longer is when the last one of
	// those ends that it signed when that was more.
	Life   time.Duration `json:"life"`
	Longer time.Time     `json:"longer,omitzero"`
}

// trusted is a root that is trusted.
type trusted struct {
	Certificate string `json:"certificate"`
	// Source says in words who wanted it last.
	Source string `json:"source"`
	// Since is when it was first trusted.
	Since time.Time `json:"since"`
	// Needed is when the last certificate ends that it signed; zero if it signs, or
	// never did.
	Needed time.Time `json:"needed,omitzero"`

	root *x509.Certificate
}

type secretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// candidate is a CA that could be used, from one object or Secret.
type candidate struct {
	signer
	issuer issuer.Issuer
	// key is another one for another issuer.
	key   string
	roots []*x509.Certificate
}

// wish is what objects and Secrets ask for.
type wish struct {
	// signing is nil where nothing can be used that should sign.
	signing *candidate
	// trusted are all that can be used, signing among them.
	trusted []*candidate
	// unknown are the sources of which is not known what they ask for. What they last
	// did goes on.
	unknown []string
}

func parseState(secret Secret) (state, error) {
	var s state
	if err := json.Unmarshal(secret.Data[keyState], &s); err != nil {
		// The error of the decoder may quote what is in it, and a key may be.
		return state{}, errors.New(keyState + " in it is not JSON as the controller writes it; empty it to go on with what is in the other Secrets only")
	}
	for i := range s.Roots {
		roots, err := pki.ParseRoots([]byte(s.Roots[i].Certificate))
		if err != nil || len(roots) != 1 {
			return state{}, errors.New(keyState + " in it holds a root that is not the certificate of a CA; empty it to go on with what is in the other Secrets only")
		}
		s.Roots[i].root = roots[0]
	}
	return s, nil
}

func (s state) encode() (map[string][]byte, error) {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing down what is in use: %w", err)
	}
	return map[string][]byte{keyState: append(text, '\n')}, nil
}

func (s state) find(print string) int {
	return slices.IndexFunc(s.Roots, func(t trusted) bool { return fingerprint(t.root) == print })
}

// advance returns the state that follows now, and when another one would follow if
// nothing else happens; zero for never. The laws are these:
//
//   - A root signs once it has been trusted for the time of propagation. Until then the
//     former one goes on, unless it cannot or there was none.
//   - A root that has signed is trusted until the last certificate that it signed has
//     ended, be it wanted or not.
//   - A root that is expired is not trusted.
func (s state) advance(w wish, now time.Time, life, propagation time.Duration) (state, time.Time) {
	first := s.Signer.ID == ""
	next := state{Signer: s.Signer, Gateway: s.Gateway, Roots: slices.Clone(s.Roots)}
	for _, c := range w.trusted {
		next.trust(c, now, first, propagation)
	}
	var wake time.Time
	if c := w.signing; c != nil {
		due := next.due(c, propagation)
		switch {
		case first, c.ID == next.Signer.ID, !now.Before(due), !next.Signer.usable(now):
			next.sign(c, now)
		default:
			wake = earliest(wake, due)
		}
	}
	if life != next.Signer.Life && next.Signer.ID != "" {
		if life < next.Signer.Life {
			next.Signer.Longer = latest(next.Signer.Longer, now.Add(next.Signer.Life+skew).UTC().Truncate(time.Second))
		}
		next.Signer.Life = life
	}
	next.Roots = slices.DeleteFunc(next.Roots, func(t trusted) bool {
		keep := next.keeps(t, w, now)
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

// trust adds the roots of a candidate. Where there was no mesh before, nobody has to
// learn of them first.
func (s *state) trust(c *candidate, now time.Time, first bool, propagation time.Duration) {
	for _, root := range c.roots {
		at := s.find(fingerprint(root))
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

// due is when all roots of a candidate have been trusted for long enough.
func (s *state) due(c *candidate, propagation time.Duration) time.Time {
	var due time.Time
	for _, root := range c.roots {
		due = latest(due, s.Roots[s.find(fingerprint(root))].Since.Add(propagation))
	}
	return due
}

// sign has a candidate sign from now on. It is among the trusted.
func (s *state) sign(c *candidate, now time.Time) {
	was := s.Signer
	s.Signer = c.signer
	s.Signer.Life, s.Signer.Longer = was.Life, time.Time{}
	if was.ID == c.ID {
		s.Signer.Longer = was.Longer
	}
	for _, print := range was.Roots {
		if at := s.find(print); at >= 0 && !slices.Contains(c.Roots, print) {
			s.Roots[at].Needed = latest(now.Add(was.Life+skew), was.Longer).UTC().Truncate(time.Second)
		}
	}
	for _, print := range c.Roots {
		// Its former certificates are no longer alive than its new ones, if these are
		// not shorter.
		at := s.find(print)
		s.Signer.Longer = latest(s.Signer.Longer, s.Roots[at].Needed)
		s.Roots[at].Needed = time.Time{}
	}
}

// keeps reports whether a root is still trusted.
func (s *state) keeps(t trusted, w wish, now time.Time) bool {
	print := fingerprint(t.root)
	switch {
	case now.After(t.root.NotAfter):
		return false
	case slices.Contains(s.Signer.Roots, print), now.Before(t.Needed), slices.Contains(w.unknown, t.Source):
		return true
	}
	return slices.ContainsFunc(w.trusted, func(c *candidate) bool { return slices.Contains(c.signer.Roots, print) })
}

// usable is false for an own CA that cannot sign any more.
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

// fingerprint is the SHA-256 of a certificate.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

func fingerprints(roots []*x509.Certificate) []string {
	all := make([]string, 0, len(roots))
	for _, root := range roots {
		all = append(all, fingerprint(root))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
