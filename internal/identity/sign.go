package identity

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Sign checks a certificate request in DER and issues the certificate. The caller must have
// authenticated the workload and checked that it is in the mesh. Sign returns the chain,
// leaf first, and the trust bundle, both as PEM, for the wire. The error wraps ErrRequest, or
// issuer.ErrUnavailable if a retry may help.
func (m *Manager) Sign(ctx context.Context, csr []byte, w Workload) (chain, trusted []byte, err error) {
	certificates, now, err := m.sign(ctx, w, issuer.Request{Life: m.life()}, func(id mesh.Identity) (*x509.CertificateRequest, error) {
		return CheckCSR(csr, id, w.PodUID)
	})
	if err != nil {
		return nil, nil, err
	}
	return pki.Encode(certificates...), now.pem, nil
}

// SignKey issues a certificate for a key of a workload, valid from backdate before now until
// life after now. The caller must have checked all that Sign's caller must, and that the
// workload has the private key. It returns the chain, leaf first. The error wraps
// issuer.ErrUnchanged if the issuer cannot sign for a key alone, ErrRequest if the key is of
// the wrong kind, or issuer.ErrUnavailable if a retry may help.
func (m *Manager) SignKey(ctx context.Context, key crypto.PublicKey, w Workload, backdate, life time.Duration) ([]*x509.Certificate, error) {
	chain, _, err := m.sign(ctx, w, issuer.Request{Life: life, Backdate: backdate}, func(mesh.Identity) (*x509.CertificateRequest, error) {
		if err := CheckKey(key); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRequest, err)
		}
		return &x509.CertificateRequest{PublicKey: key}, nil
	})
	return chain, err
}

// SignsKeys reports whether SignKey can succeed with the current issuer.
func (m *Manager) SignsKeys() bool {
	now := m.current.Load()
	if now == nil {
		return false
	}
	signer, ok := now.signing.(issuer.KeySigner)
	return ok && signer.SignsKeys()
}

// Life returns the lifetime of certificates.
func (m *Manager) Life() time.Duration { return m.life() }

// sign issues a certificate for a workload. The request lacks the names and the CSR, which
// check returns.
func (m *Manager) sign(ctx context.Context, w Workload, request issuer.Request, check func(mesh.Identity) (*x509.CertificateRequest, error)) ([]*x509.Certificate, *snapshot, error) {
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
	csr, err := check(id)
	if err != nil {
		return nil, nil, err
	}
	request.CSR = csr
	request.CommonName, request.OrganizationalUnit = id.CommonName(), w.PodUID
	request.URI, request.DNSNames = id.String(), []string{id.DNSName()}
	certificates, err := now.signing.Issue(ctx, request)
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
	return certificates, now, nil
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
