package agent

import (
	"crypto/x509"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// trust is the roots that the pod knows of, from two sides.
//
// The latest answer of the signing service is all that peers are verified against. Such
// an answer came over a connection that was verified by the answer before it, so nobody
// else in the pod's namespace has a say in it.
//
// The mounted file can be changed by whoever may change ConfigMaps of the namespace. It
// verifies the signing service for the first contact, and when the service can't be
// verified by what it has answered before, as after an outage that was longer than a
// root's life. And it is a hint: when it changes, it is time to ask for another answer.
type trust struct{ answered, mounted pki.Bundle }

// contacts returns by what the signing service is verified: the first of these, and each
// other one if those before it do not verify it. There is none as long as no root is known.
func (t *trust) contacts() []*x509.CertPool {
	var pools []*x509.CertPool
	if len(t.answered) > 0 {
		pools = append(pools, t.answered.Pool())
	}
	if len(t.mounted) > 0 && t.differ() {
		pools = append(pools, t.mounted.Pool())
	}
	return pools
}

// differ reports whether the file and the latest answer do not have the same roots.
func (t *trust) differ() bool { return !t.answered.Equal(t.mounted) }

// parseRoots reads a bundle, in which there is at least one certificate of a CA and
// nothing that is not one.
func parseRoots(text []byte) (pki.Bundle, error) {
	roots, err := pki.ParseRoots(text)
	return pki.NewBundle(roots...), err
}
