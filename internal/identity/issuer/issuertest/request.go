package issuertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Workload returns a request as the signing service creates it for a pod, with a new key and
// a CSR with exactly its names.
func Workload(t testing.TB) issuer.Request {
	t.Helper()
	return Fill(t, newKey(t), issuer.Request{
		CommonName: "bookbuyer.shop", OrganizationalUnit: "2f1c8d1e-7a30-4a5f-9df0-2f6f9c1d7e11",
		URI:      "spiffe://cluster.local/ns/shop/sa/bookbuyer",
		DNSNames: []string{"bookbuyer.shop.sa.cluster.local"}, Life: life,
	})
}

// Controller returns a request for a server's certificate, without unit and URI but with
// several names and addresses.
func Controller(t testing.TB) issuer.Request {
	t.Helper()
	return Fill(t, newKey(t), issuer.Request{
		CommonName:  "outrigger-controller.mesh.svc",
		DNSNames:    []string{"outrigger-controller.mesh.svc", "outrigger-controller.mesh"},
		IPAddresses: []string{"127.0.0.1", "2001:db8::7"}, Life: life,
	})
}

// Fill sets a request's CSR to one of the key with exactly its names, and returns the
// request.
func Fill(t testing.TB, key crypto.Signer, req issuer.Request) issuer.Request {
	t.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: req.CommonName}, DNSNames: req.DNSNames}
	if req.OrganizationalUnit != "" {
		template.Subject.OrganizationalUnit = []string{req.OrganizationalUnit}
	}
	if u, err := url.Parse(req.URI); err == nil && req.URI != "" {
		template.URIs = []*url.URL{u}
	}
	for _, ip := range req.IPAddresses {
		if parsed := net.ParseIP(ip); parsed != nil {
			template.IPAddresses = append(template.IPAddresses, parsed)
		}
	}
	req.CSR = Sign(t, key, template)
	return req
}

// Sign creates a CSR.
func Sign(t testing.TB, key crypto.Signer, template *x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
