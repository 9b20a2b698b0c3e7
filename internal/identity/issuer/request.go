package issuer

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// names returns the names that are wanted. A request that could not be signed as it
// says is an error.
func (r Request) names() (pki.Names, error) {
	n := pki.Names{CommonName: r.CommonName, Unit: r.OrganizationalUnit, DNS: slices.Sorted(slices.Values(r.DNSNames))}
	if r.CSR == nil || r.CSR.PublicKey == nil {
		return n, errors.New("the request has no CSR with a public key")
	}
	if r.Life <= 0 {
		return n, fmt.Errorf("the request's life of %s is not above zero", r.Life)
	}
	if r.URI != "" {
		// Go reads names of a certificate back through url.URL, and so must we.
		u, err := url.Parse(r.URI)
		if err != nil || u.Scheme == "" {
			return n, fmt.Errorf("the URI name %q is not an absolute URI", r.URI)
		}
		n.URIs = []string{u.String()}
	}
	if slices.Contains(r.DNSNames, "") {
		return n, errors.New("one of the DNS names is empty")
	}
	for _, text := range r.IPAddresses {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return n, fmt.Errorf("%q is not an IP address that a certificate can hold", text)
		}
		n.IPs = append(n.IPs, ip.Unmap().String())
	}
	slices.Sort(n.IPs)
	if len(n.URIs)+len(n.DNS)+len(n.IPs) == 0 {
		return n, errors.New("the request has no URI, DNS name or IP address, and a certificate without any verifies nobody")
	}
	return n, nil
}

// wantExactCSR is for issuers that sign what a CSR asks for: the CSR must ask for
// what is wanted and nothing else.
func wantExactCSR(csr *x509.CertificateRequest, want pki.Names) error {
	got, err := pki.NamesOfRequest(csr)
	if err != nil {
		return fmt.Errorf("the CSR is not for the names that are due, and this issuer signs a CSR as it is: %w", err)
	}
	if d := got.Differ(want); d != "" {
		return fmt.Errorf("the CSR asks for other names than are due, and this issuer signs a CSR as it is: %s", d)
	}
	for _, e := range csr.Extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			return fmt.Errorf("the CSR asks for the extension %s, and this issuer signs a CSR as it is; leave it out", e.Id)
		}
	}
	return nil
}
