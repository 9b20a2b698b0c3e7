package identity

import (
	"crypto/x509"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// trust holds the roots that the pod knows, from two sources.
//
// answered is from the signing service's latest answer. Peers are verified against it only.
// Each answer arrives over a connection verified by the previous one, so users of the pod's
// namespace cannot influence it.
//
// mounted is from the mounted file, which anyone who may change the namespace's ConfigMaps
// can change. It verifies the signing service for the first request, and whenever answered
// no longer does, such as after an outage longer than a root's lifetime. A change of the
// file is also a hint to request another answer.
type trust struct{ answered, mounted pki.Bundle }

// pools returns the root pools that may verify the signing service. A pool must be used
// only if the ones before it do not verify the service. There are none while no root is
// known.
func (t *trust) pools() []*x509.CertPool {
	var pools []*x509.CertPool
	if len(t.answered) > 0 {
		pools = append(pools, t.answered.Pool())
	}
	if len(t.mounted) > 0 && t.differ() {
		pools = append(pools, t.mounted.Pool())
	}
	return pools
}

// differ reports whether the mounted file and the latest answer have different roots.
func (t *trust) differ() bool { return !t.answered.Equal(t.mounted) }

// parseRoots parses a bundle. It must contain at least one CA certificate and nothing else.
func parseRoots(text []byte) (pki.Bundle, error) {
	roots, err := pki.ParseRoots(text)
	return pki.NewBundle(roots...), err
}
