package issuertest

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Check checks an issuer's answer to a request by every rule about a certificate, and
// returns the leaf.
func Check(t testing.TB, req issuer.Request, chain, roots []*x509.Certificate) *x509.Certificate {
	t.Helper()
	if len(chain) == 0 || len(roots) == 0 {
		t.Fatalf("%d certificates in the chain and %d roots", len(chain), len(roots))
	}
	leaf := chain[0]
	checkNames(t, leaf, req)
	if pub, ok := req.CSR.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(leaf.PublicKey) {
		t.Error("the certificate's key is not the CSR's")
	}
	if leaf.IsCA || leaf.KeyUsage&x509.KeyUsageCertSign != 0 {
		t.Error("the certificate is a CA's")
	}
	if leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		t.Errorf("the key usage %b is without digital signature, which TLS 1.3 needs", leaf.KeyUsage)
	}
	slices.Sort(leaf.ExtKeyUsage)
	if want := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}; !slices.Equal(leaf.ExtKeyUsage, want) || len(leaf.UnknownExtKeyUsage) > 0 {
		t.Errorf("the extended key usages are %v and %v, want servers and clients", leaf.ExtKeyUsage, leaf.UnknownExtKeyUsage)
	}
	if bits := leaf.SerialNumber.BitLen(); leaf.SerialNumber.Sign() <= 0 || bits < 64 || bits > 159 {
		t.Errorf("the serial number has %d bits, want one that nobody can guess", bits)
	}
	if now := time.Now(); leaf.NotBefore.After(now) {
		t.Errorf("the certificate begins at %s, and it is %s", leaf.NotBefore, now)
	}

	// Servers present the chain unchanged, so its order matters.
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	for i, c := range chain {
		if bytes.Equal(c.RawSubject, c.RawIssuer) {
			t.Errorf("certificate %d of the chain, %q, is a root", i, c.Subject)
		}
		if i > 0 {
			between.AddCert(c)
			if err := chain[i-1].CheckSignatureFrom(c); err != nil {
				t.Errorf("certificate %d of the chain is not signed by the next: %v", i-1, err)
			}
		}
	}
	for _, root := range roots {
		if !root.IsCA || root.CheckSignatureFrom(root) != nil {
			t.Errorf("%q is among the roots and no root", root.Subject)
		}
		pool.AddCert(root)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		verified, err := leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			t.Errorf("verifying the chain: %v", err)
			continue
		}
		if root := verified[0][len(verified[0])-1]; leaf.NotAfter.After(root.NotAfter) {
			t.Errorf("the certificate ends at %s, after its root at %s", leaf.NotAfter, root.NotAfter)
		}
	}
	return leaf
}

// checkNames checks that the leaf has exactly the request's names.
func checkNames(t testing.TB, leaf *x509.Certificate, req issuer.Request) {
	t.Helper()
	var uris, ips, wantURIs, wantIPs []string
	for _, u := range leaf.URIs {
		uris = append(uris, u.String())
	}
	for _, ip := range leaf.IPAddresses {
		ips = append(ips, ip.String())
	}
	if req.URI != "" {
		wantURIs = []string{req.URI}
	}
	for _, ip := range req.IPAddresses {
		wantIPs = append(wantIPs, net.ParseIP(ip).String())
	}
	same := func(what string, got, want []string) {
		got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	same("URIs", uris, wantURIs)
	same("DNS names", leaf.DNSNames, req.DNSNames)
	same("IP addresses", ips, wantIPs)
	same("e-mail addresses", leaf.EmailAddresses, nil)
	var units []string
	if req.OrganizationalUnit != "" {
		units = []string{req.OrganizationalUnit}
	}
	same("units", leaf.Subject.OrganizationalUnit, units)
	if leaf.Subject.CommonName != req.CommonName {
		t.Errorf("common name: got %q, want %q", leaf.Subject.CommonName, req.CommonName)
	}
	attributes := len(units)
	if req.CommonName != "" {
		attributes++
	}
	if len(leaf.Subject.Names) != attributes {
		t.Errorf("the subject %q has %d attributes, want %d", leaf.Subject, len(leaf.Subject.Names), attributes)
	}
}
