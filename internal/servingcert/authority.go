package servingcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// authority is a CA that can sign.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// trusted are all CAs whose certificates may still be in use, cert included.
	trusted bundle
}

// newAuthority makes a CA that lives for life from now on.
func newAuthority(now time.Time, life time.Duration) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "outrigger-injector-ca"},
		NotBefore:             backdated(now, life),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making a CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making a CA: %w", err)
	}
	return &authority{cert: cert, key: key, trusted: newBundle(cert)}, nil
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
	roots, err := parseBundle(trusted)
	if err != nil {
		return nil, fmt.Errorf("ca.crt: %w", err)
	}
	if !roots.has(pair.Leaf) {
		return nil, errors.New("ca.crt does not hold the CA of tls.crt")
	}
	// X509KeyPair has matched the key with the certificate, so it can sign.
	return &authority{cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer), trusted: roots}, nil
}

func (a *authority) encode() (cert, key, trusted []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encoding the key of a CA: %w", err)
	}
	key = pem.EncodeToMemory(&pem.Block{Type: blockPrivateKey, Bytes: der})
	return encodeCertificate(a.cert.Raw), key, a.trusted.encode(), nil
}

// renewed returns the authority that is due now: a itself, a without the CAs that
// have expired, or a new CA that trusts the old one too when less than a third of
// a's life is left.
func (a *authority) renewed(now time.Time, life time.Duration) (*authority, error) {
	alive := a.trusted.only(func(cert *x509.Certificate) bool { return now.Before(cert.NotAfter) })
	if a.cert.NotAfter.Sub(now) < a.cert.NotAfter.Sub(a.cert.NotBefore)/3 {
		next, err := newAuthority(now, life)
		if err != nil {
			return nil, err
		}
		next.trusted = next.trusted.with(alive)
		return next, nil
	}
	if len(alive) == len(a.trusted) {
		return a, nil
	}
	return &authority{cert: a.cert, key: a.key, trusted: alive}, nil
}

// issue makes a key and a serving certificate for it.
func (a *authority) issue(now time.Time, life time.Duration, names Names) (Material, error) {
	key, err := newKey()
	if err != nil {
		return Material{}, err
	}
	dns, ips := names.sans()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: names.commonName()},
		DNSNames:    dns,
		IPAddresses: ips,
		NotBefore:   backdated(now, life),
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
		CABundle:    a.trusted.encode(),
	}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

// backdated returns a begin of validity that a client whose clock is a little
// behind ours accepts too.
func backdated(now time.Time, life time.Duration) time.Time {
	return now.Add(-min(life/10, 5*time.Minute))
}
