package servingcert

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// authority is a CA with its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// trusted are all CAs whose certificates may still be in use, cert included.
	trusted pki.Bundle
}

// newAuthority creates a CA that expires after life.
func newAuthority(life time.Duration) (*authority, error) {
	cert, key, err := pki.NewCA("outrigger-injector-ca", life)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, trusted: pki.NewBundle(cert)}, nil
}

// parseAuthority parses a CA in the format of encode.
func parseAuthority(cert, key, trusted []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls.crt and tls.key: %w", err)
	}
	if !pair.Leaf.IsCA || pair.Leaf.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("tls.crt is not a CA certificate")
	}
	roots, err := pki.ParseBundle(trusted)
	if err != nil {
		return nil, fmt.Errorf("ca.crt: %w", err)
	}
	if !roots.Has(pair.Leaf) {
		return nil, errors.New("ca.crt does not contain the CA in tls.crt")
	}
	// X509KeyPair only returns keys that implement crypto.Signer.
	return &authority{cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer), trusted: roots}, nil
}

func (a *authority) encode() (cert, key, trusted []byte, err error) {
	key, err = pki.EncodeKey(a.key)
	return pki.Encode(a.cert), key, a.trusted.Encode(), err
}

// renewed returns the authority to use now: a itself, a without expired CAs, or, if less
// than a third of a's lifetime is left, a new CA that also trusts the old one.
func (a *authority) renewed(now time.Time, life time.Duration) (*authority, error) {
	alive := a.trusted.Only(func(cert *x509.Certificate) bool { return now.Before(cert.NotAfter) })
	if a.cert.NotAfter.Sub(now) < a.cert.NotAfter.Sub(a.cert.NotBefore)/3 {
		next, err := newAuthority(life)
		if err != nil {
			return nil, err
		}
		next.trusted = next.trusted.With(alive)
		return next, nil
	}
	if len(alive) == len(a.trusted) {
		return a, nil
	}
	return &authority{cert: a.cert, key: a.key, trusted: alive}, nil
}

// issue creates a key and a serving certificate for it.
func (a *authority) issue(now time.Time, life time.Duration, names Names) (Material, error) {
	key, err := pki.NewKey()
	if err != nil {
		return Material{}, err
	}
	dns, ips := names.sans()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names.commonName()},
		DNSNames:    dns,
		IPAddresses: ips,
		NotBefore:   pki.Backdated(now, life),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	leaf, err := pki.Sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		return Material{}, fmt.Errorf("signing a serving certificate: %w", err)
	}
	return Material{
		Certificate: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		CABundle:    a.trusted,
	}, nil
}
