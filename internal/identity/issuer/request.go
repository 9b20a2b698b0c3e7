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

// names returns the request's names. It is an error if the request is invalid.
func (r Request) names() (pki.Names, error) {
	n := pki.Names{CommonName: r.CommonName, Unit: r.OrganizationalUnit, DNS: slices.Sorted(slices.Values(r.DNSNames))}
	if r.CSR == nil || r.CSR.PublicKey == nil {
		return n, errors.New("the request has no CSR with a public key")
	}
	if r.Life <= 0 {
		return n, fmt.Errorf("the request's lifetime of %s is not positive", r.Life)
	}
	if r.URI != "" {
		// Normalize it like names that are read from certificates.
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
		return n, errors.New("the request has no URI, DNS name or IP address, so its certificate would identify nobody")
	}
	return n, nil
}

// checkExactCSR checks, for issuers that sign a CSR unchanged, that the CSR asks for exactly
// the names.
func checkExactCSR(csr *x509.CertificateRequest, want pki.Names) error {
	got, err := pki.NamesOfRequest(csr)
	if err != nil {
		return fmt.Errorf("the CSR does not match the request, and this issuer signs CSRs unchanged: %w", err)
	}
	if d := got.Differ(want); d != "" {
		return fmt.Errorf("the CSR does not match the request, and this issuer signs CSRs unchanged: %s", d)
	}
	for _, e := range csr.Extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			return fmt.Errorf("the CSR asks for the extension %s, and this issuer signs CSRs unchanged; remove it", e.Id)
		}
	}
	return nil
}
