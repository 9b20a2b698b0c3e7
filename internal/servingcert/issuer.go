package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// Issuer is a source of serving certificates. The Manager calls Issue repeatedly from one
// goroutine, while Watch runs in another.
type Issuer interface {
	// Issue returns the source's current certificate, its key and the CAs to trust, which
	// may be the same as before. An error names the object or file and how to fix it, and
	// contains no PEM. The Manager then retries later and keeps serving the last
	// certificate.
	Issue(ctx context.Context) (Material, error)

	// Watch calls changed whenever the source has changed since the last Issue, until ctx
	// ends. It may call changed too often, but must not miss a change. changed does not
	// block.
	Watch(ctx context.Context, changed func())
}

// Material is a serving certificate and the CAs that clients must trust. It is immutable.
type Material struct {
	// Certificate is the chain, leaf first, with its private key. Leaf is set.
	Certificate tls.Certificate
	// CABundle are the CAs to trust. It may contain more than the CA of Certificate.
	CABundle pki.Bundle
}

// Format describes the certificate. It keeps the private key out of formatted text.
func (m Material) Format(state fmt.State, _ rune) {
	fmt.Fprint(state, m.describe())
}

// LogValue keeps the private key out of logs.
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

// newMaterial returns the Material for the PEM of a chain, its key and the CAs.
func newMaterial(chain, key, ca []byte) (Material, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return Material{}, fmt.Errorf("certificate and key: %w", err)
	}
	roots, err := pki.ParseBundle(ca)
	if err != nil {
		return Material{}, fmt.Errorf("CA bundle: %w", err)
	}
	return Material{Certificate: pair, CABundle: roots}, nil
}

// credential is Material that a client of serverName would accept.
type credential struct {
	Material
	// anchors are the CAs of the bundle that the certificate chains to.
	anchors pki.Bundle
	// expiry is when the last valid chain to an anchor expires.
	expiry time.Time
	// since is when the credential was obtained.
	since time.Time
}

// check verifies the material as the API server would.
func (m Material) check(serverName string) (*credential, error) {
	leaf := m.Certificate.Leaf
	if leaf == nil {
		return nil, errors.New("the issuer returned no certificate")
	}
	intermediates, err := x509.ParseCertificates(slices.Concat(m.Certificate.Certificate[1:]...))
	if err != nil {
		return nil, fmt.Errorf("the chain of the serving certificate: %w", err)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		DNSName:       serverName,
		Roots:         m.CABundle.Pool(),
		Intermediates: pki.NewBundle(intermediates...).Pool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("the API server would reject the serving certificate for %s: %w", serverName, err)
	}
	checked := &credential{Material: m, since: time.Now()}
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
