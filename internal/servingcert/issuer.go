package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// Issuer is a source of serving certificates. The Manager calls Issue from one
// goroutine, again and again over the life of the process, while Watch runs in
// another.
type Issuer interface {
	// Issue returns a certificate, its key and the CAs to trust as the source has
	// them now. What it returns need not differ from the last time. An error names
	// the object or the file that is wrong and the way out, and holds no PEM; the
	// Manager calls again later and serves the last certificate meanwhile.
	Issue(ctx context.Context) (Material, error)

	// Watch calls changed whenever the source has changed since the last Issue,
	// and returns when ctx ends. It may call changed once too often, never once
	// too little. changed does not block.
	Watch(ctx context.Context, changed func())
}

// Material is what a TLS server serves with and what its clients have to trust.
// It is not changed once it is made.
type Material struct {
	// Certificate is the chain, leaf first, with its private key. Leaf is set.
	Certificate tls.Certificate
	// CABundle is PEM of the CAs to trust, sorted, each once. It may hold more
	// than the CA of Certificate.
	CABundle []byte
}

// Format describes the certificate and keeps the private key out of any text,
// whatever the verb.
func (m Material) Format(state fmt.State, _ rune) {
	fmt.Fprint(state, m.describe())
}

// LogValue keeps the private key out of any log.
func (m Material) LogValue() slog.Value {
	return slog.StringValue(m.describe())
}

func (m Material) describe() string {
	leaf := m.Certificate.Leaf
	if leaf == nil {
		return "no certificate"
	}
	return fmt.Sprintf("certificate %x until %s", leaf.SerialNumber, leaf.NotAfter.UTC().Format(time.RFC3339))
}

// newMaterial makes Material of PEM: a chain with its key, and the CAs.
func newMaterial(chain, key, ca []byte) (Material, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return Material{}, fmt.Errorf("certificate and key: %w", err)
	}
	roots, err := pki.ParseBundle(ca)
	if err != nil {
		return Material{}, fmt.Errorf("CA bundle: %w", err)
	}
	return Material{Certificate: pair, CABundle: roots.Encode()}, nil
}

// credential is Material that a client of serverName would accept.
type credential struct {
	Material
	roots pki.Bundle
	// anchors are the roots that the certificate chains to.
	anchors pki.Bundle
	// expiry is when the last of the chains to an anchor ends.
	expiry time.Time
	// since is when the credential was obtained.
	since time.Time
}

// check verifies the material as the API server would.
func (m Material) check(serverName string) (*credential, error) {
	leaf := m.Certificate.Leaf
	if leaf == nil {
		return nil, errors.New("the issuer gave no certificate")
	}
	roots, err := pki.ParseBundle(m.CABundle)
	if err != nil {
		return nil, fmt.Errorf("the CA bundle of the serving certificate: %w", err)
	}
	intermediates := x509.NewCertPool()
	for _, der := range m.Certificate.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the chain of the serving certificate: %w", err)
		}
		intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		DNSName:       serverName,
		Roots:         roots.Pool(),
		Intermediates: intermediates,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("the API server would refuse the serving certificate for %s: %w", serverName, err)
	}
	checked := &credential{Material: m, roots: roots, since: time.Now()}
	var anchors []*x509.Certificate
	for _, chain := range chains {
		if end := pki.End(chain); end.After(checked.expiry) {
			checked.expiry = end
		}
		anchors = append(anchors, chain[len(chain)-1])
	}
	checked.anchors = pki.NewBundle(anchors...)
	return checked, nil
}
