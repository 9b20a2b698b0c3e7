package identity

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// own is the controller's own certificate. Its key is in memory only.
type own struct {
	tls.Certificate
	chain  []*x509.Certificate
	issuer issuer.Issuer
	// due is when it must be renewed.
	due time.Time
}

// isDue reports whether the controller needs a new certificate: there is none yet, another
// issuer signs, the renewal is due, or its root is no longer trusted.
func (o *own) isDue(signing issuer.Issuer, trusted *bundle) bool {
	return o == nil || o.issuer != signing || !time.Now().Before(o.due) || trusted.verify(o.chain) != nil
}

func (m *Manager) issueOwn(ctx context.Context, signing issuer.Issuer, trusted *bundle) (*own, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	commonName := m.options.DNSNames[0]
	if len(commonName) > pki.MaxCommonName {
		commonName = "outrigger-controller"
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: commonName}, DNSNames: m.options.DNSNames,
	}, key)
	if err != nil {
		return nil, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	since := time.Now()
	text, err := signing.Issue(ctx, issuer.Request{CSR: csr, CommonName: commonName, DNSNames: m.options.DNSNames, Life: m.life()})
	if err != nil {
		return nil, err
	}
	chain, err := pki.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the certificate from %s: %w", name(signing), err)
	}
	next := &own{Certificate: tls.Certificate{PrivateKey: key, Leaf: chain[0]}, chain: chain, issuer: signing}
	for _, certificate := range chain {
		next.Certificate.Certificate = append(next.Certificate.Certificate, certificate.Raw)
	}
	// Certificates are valid from a little before now; that time does not count.
	next.due = pki.Renewal(since, pki.End(chain))
	if err := trusted.verify(chain); err != nil {
		return nil, fmt.Errorf("the certificate from %s: %w", name(signing), err)
	}
	return next, nil
}
