package servingcert

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// authority is a CA that can sign.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// trusted are all CAs whose certificates may still be in use, cert included.
	trusted pki.Bundle
}

// newAuthority makes a CA that lives for life from now on.
func newAuthority(life time.Duration) (*authority, error) {
	cert, key, err := pki.NewCA("outrigger-injector-ca", life)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, trusted: pki.NewBundle(cert)}, nil
}

// parseAuthority reads a CA as encode wrote it.
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
		return nil, errors.New("ca.crt does not hold the CA of tls.crt")
	}
	// X509KeyPair has matched the key with the certificate, so it can sign.
	return &authority{cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer), trusted: roots}, nil
}

func (a *authority) encode() (cert, key, trusted []byte, err error) {
	key, err = pki.EncodeKey(a.key)
	return pki.Encode(a.cert), key, a.trusted.Encode(), err
}

// renewed returns the authority that is due now: a itself, a without the CAs that
// have expired, or a new CA that trusts the old one too when less than a third of
// a's life is left.
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

// issue makes a key and a serving certificate for it.
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
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Material{}, fmt.Errorf("signing a serving certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return Material{}, fmt.Errorf("signing a serving certificate: %w", err)
	}
	return Material{
		Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf},
		CABundle:    a.trusted.Encode(),
	}, nil
}
