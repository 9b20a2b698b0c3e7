package drivertest

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Authority is a CA for tests: its certificate, with Leaf set, and its key. It is safe
// for concurrent use.
type Authority struct{ tls.Certificate }

// NewAuthority returns a new CA, valid for a day.
func NewAuthority() (*Authority, error) {
	a := new(Authority)
	var err error
	a.Certificate, err = a.Issue(&x509.Certificate{
		// Verifiers distinguish several CAs by their names.
		Subject: pkix.Name{CommonName: "root " + rand.Text()}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, 24*time.Hour)
	return a, err
}

// Issue returns a certificate with a new key, valid from an hour ago until life from
// now; life may be negative. It sets the template's validity.
func (a *Authority) Issue(template *x509.Certificate, life time.Duration) (tls.Certificate, error) {
	key, err := pki.NewKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(life)
	parent, signer := template, crypto.Signer(key)
	if a.Leaf != nil {
		parent, signer = a.Leaf, a.PrivateKey.(crypto.Signer)
	}
	leaf, err := pki.Sign(template, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// IssueTo returns the certificate of a proxy's pod, as the mesh's signing service would
// issue it.
func (a *Authority) IssueTo(proxy *mesh.Proxy, life time.Duration) (tls.Certificate, error) {
	uri, err := url.Parse(proxy.Identity.String())
	if err != nil {
		return tls.Certificate{}, err
	}
	return a.Issue(&x509.Certificate{
		Subject:  pkix.Name{CommonName: proxy.Identity.CommonName(), OrganizationalUnit: []string{proxy.UID}},
		DNSNames: []string{proxy.Identity.DNSName()}, URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, life)
}

// Pool returns a pool with the CA's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Leaf)
	return pool
}

// PEM returns the CA's certificate.
func (a *Authority) PEM() []byte {
	return pki.Encode(a.Leaf)
}

// TestAuthority is an Authority whose failures end the test.
type TestAuthority struct {
	*Authority
	T testing.TB
}

// NewTestAuthority returns a new CA.
func NewTestAuthority(t testing.TB) TestAuthority {
	t.Helper()
	a, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return TestAuthority{a, t}
}

// Sign is Issue.
func (a TestAuthority) Sign(template *x509.Certificate, life time.Duration) tls.Certificate {
	a.T.Helper()
	issued, err := a.Issue(template, life)
	if err != nil {
		a.T.Fatal(err)
	}
	return issued
}

// SignFor is IssueTo.
func (a TestAuthority) SignFor(proxy *mesh.Proxy, life time.Duration) tls.Certificate {
	a.T.Helper()
	issued, err := a.IssueTo(proxy, life)
	if err != nil {
		a.T.Fatal(err)
	}
	return issued
}
