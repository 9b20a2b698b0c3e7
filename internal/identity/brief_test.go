package identity_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// brief is an issuer whose signing intermediate expires soon.
type brief struct {
	root         *issuer.CA
	intermediate *x509.Certificate
	signing      *issuer.CA
}

func newBrief(t *testing.T, life time.Duration) *brief {
	t.Helper()
	rootCert, rootKey, err := issuer.NewRoot("root", issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	root, err := issuer.FromPEM(rootCert, rootKey)
	if err != nil {
		t.Fatal(err)
	}
	above, err := tls.X509KeyPair(rootCert, rootKey)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "intermediate"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, above.Leaf, key.Public(), above.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	// The signing certificate has a long lifetime, so leaves outlive the one in the chain.
	template.NotAfter = time.Now().Add(issuer.RootLife)
	long, err := x509.CreateCertificate(rand.Reader, template, above.Leaf, key.Public(), above.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	signing, err := issuer.FromPEM(slices.Concat(encode(long), rootCert), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	if err != nil {
		t.Fatal(err)
	}
	intermediate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &brief{root, intermediate, signing}
}

func (b *brief) String() string { return "brief" }

func (b *brief) Issue(ctx context.Context, r issuer.Request) ([]*x509.Certificate, error) {
	chain, err := b.signing.Issue(ctx, r)
	if err != nil {
		return nil, err
	}
	return []*x509.Certificate{chain[0], b.intermediate}, nil
}

func (b *brief) Roots(ctx context.Context) ([]*x509.Certificate, error) { return b.root.Roots(ctx) }

// TestOwnCertificateOfABriefIntermediate checks that the earliest expiry of the chain counts.
func TestOwnCertificateOfABriefIntermediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := run(t, identity.Options{Life: func() time.Duration { return 24 * time.Hour }}, newBrief(t, time.Hour))
		first := own(t, m)
		time.Sleep(50 * time.Minute)
		if own(t, m).Equal(first) {
			t.Error("the controller's certificate was not renewed before the intermediate's end")
		}
	})
}
