package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// Sign checks a certificate request in DER and issues the certificate. The caller must have
// authenticated the workload and checked that it is in the mesh. Sign returns the chain,
// leaf first, and the trust bundle, both as PEM, for the wire. The error wraps ErrRequest, or
// issuer.ErrUnavailable if a retry may help.
func (m *Manager) Sign(ctx context.Context, csr []byte, w Workload) (chain, trusted []byte, err error) {
	begin := time.Now()
	now := m.current.Load()
	if now == nil {
		return nil, nil, errNoIssuer
	}
	id := w.identity(m.options.TrustDomain())
	if err := id.Validate(); err != nil {
		return nil, nil, err
	}
	if w.PodUID == "" {
		return nil, nil, errors.New("the pod's UID is unknown")
	}
	request, err := CheckCSR(csr, id, w.PodUID)
	if err != nil {
		return nil, nil, err
	}
	certificates, err := now.signing.Issue(ctx, issuer.Request{
		CSR:                request,
		CommonName:         id.CommonName(),
		OrganizationalUnit: w.PodUID,
		URI:                id.String(),
		DNSNames:           []string{id.DNSName()},
		Life:               m.life(),
	})
	if err != nil {
		return nil, nil, err
	}
	now, err = m.trusted(ctx, certificates, now)
	if err != nil {
		return nil, nil, err
	}
	issued := describe(certificates[0])
	issued.Identity, issued.Pod, issued.PodUID = id.String(), w.Namespace+"/"+w.Pod, w.PodUID
	m.issued.add(issued)
	m.metrics.signed(begin)
	return pki.Encode(certificates...), now.pem, nil
}

// trusted checks that the bundle has the root of a chain, which a pod may use only then. If
// not, the issuer's roots may have changed, so they are evaluated again first. It returns
// the current snapshot.
func (m *Manager) trusted(ctx context.Context, chain []*x509.Certificate, now *snapshot) (*snapshot, error) {
	if now.knows(chain) {
		return now, nil
	}
	var fault error
	if m.options.Refresh != nil {
		fault = m.options.Refresh(ctx)
	}
	now = m.current.Load()
	if err := now.verify(chain); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: no trusted root verifies certificates from %s: %w", issuer.ErrUnavailable, now.signing, err), fault)
	}
	return now, nil
}
