package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	commonName := m.options.DNSNames[0]
	if len(commonName) > pki.MaxCommonName {
		commonName = "outrigger-controller"
	}
	request, key, err := issuer.NewServerRequest(commonName, m.options.DNSNames, nil, m.life())
	if err != nil {
		return nil, err
	}
	since := time.Now()
	chain, err := signing.Issue(ctx, request)
	if err != nil {
		return nil, err
	}
	next := &own{Certificate: tls.Certificate{PrivateKey: key, Leaf: chain[0]}, chain: chain, issuer: signing}
	for _, certificate := range chain {
		next.Certificate.Certificate = append(next.Certificate.Certificate, certificate.Raw)
	}
	// Certificates are valid from a little before now; that time does not count.
	next.due = pki.Renewal(since, pki.End(chain))
	if err := trusted.verify(chain); err != nil {
		return nil, fmt.Errorf("the certificate from %s: %w", signing, err)
	}
	return next, nil
}
