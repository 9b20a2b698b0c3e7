package identity

import (
	"bytes"
	"crypto/x509"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// bundle is an immutable set of roots.
type bundle struct {
	pem   []byte
	roots pki.Bundle
	pool  *x509.CertPool
}

func newBundle(certificates []*x509.Certificate) *bundle {
	roots := pki.NewBundle(certificates...)
	return &bundle{roots.Encode(), roots, roots.Pool()}
}

// verify returns an error unless one of the roots verifies a chain, given leaf first.
func (b *bundle) verify(chain []*x509.Certificate) error {
	return pki.Verify(b.pool, chain, x509.ExtKeyUsageServerAuth)
}

// knows reports whether one of the roots has signed a chain, comparing key identifiers. It
// is for chains that the issuer has just verified, where only the root may be untrusted;
// verifying another signature would cost more than the rest of the request. Chains without
// identifiers are verified completely.
func (b *bundle) knows(chain []*x509.Certificate) bool {
	last, now := chain[len(chain)-1], time.Now()
	for _, root := range b.roots {
		if len(last.AuthorityKeyId) > 0 && bytes.Equal(last.AuthorityKeyId, root.SubjectKeyId) &&
			bytes.Equal(last.RawIssuer, root.RawSubject) && now.After(root.NotBefore) && now.Before(root.NotAfter) {
			return true
		}
	}
	return b.verify(chain) == nil
}

// Root is one root of the trust bundle.
type Root struct {
	Subject     string    `json:"subject"`
	Fingerprint string    `json:"sha256"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
}

func describeRoot(root *x509.Certificate) Root {
	return Root{
		Subject: root.Subject.String(), Fingerprint: pki.Fingerprint(root),
		NotBefore: root.NotBefore, NotAfter: root.NotAfter,
	}
}
