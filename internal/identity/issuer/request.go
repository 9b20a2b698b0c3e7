package issuer

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// NewServerRequest returns a request for a server's certificate, which has neither unit nor
// URI, and a new key. The addresses must be valid.
func NewServerRequest(commonName string, dns, ips []string, life time.Duration) (Request, *ecdsa.PrivateKey, error) {
	key, err := pki.NewKey()
	if err != nil {
		return Request{}, nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName}, DNSNames: dns}
	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return Request{}, nil, fmt.Errorf("creating a certificate request: %w", err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	return Request{CSR: csr, CommonName: commonName, DNSNames: dns, IPAddresses: ips, Life: life}, key, err
}

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
