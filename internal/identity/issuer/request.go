package issuer

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

var (
	oidCommonName         = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganizationalUnit = asn1.ObjectIdentifier{2, 5, 4, 11}
	oidSubjectAltName     = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// names is all that a certificate says about whose it is, in a form that can be
// compared.
type names struct {
	commonName, unit string
	uris, dns, ips   []string
}

// names returns the names that are wanted. A request that could not be signed as it
// says is an error.
func (r Request) names() (names, error) {
	n := names{commonName: r.CommonName, unit: r.OrganizationalUnit, dns: slices.Sorted(slices.Values(r.DNSNames))}
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
		n.uris = []string{u.String()}
	}
	if slices.Contains(r.DNSNames, "") {
		return n, errors.New("one of the DNS names is empty")
	}
	for _, text := range r.IPAddresses {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return n, fmt.Errorf("%q is not an IP address that a certificate can hold", text)
		}
		n.ips = append(n.ips, ip.Unmap().String())
	}
	slices.Sort(n.ips)
	if len(n.uris)+len(n.dns)+len(n.ips) == 0 {
		return n, errors.New("the request has no URI, DNS name or IP address, and a certificate without any verifies nobody")
	}
	return n, nil
}

// readNames reads the names of a certificate or CSR. One that holds a kind of name
// that no request has is an error.
func readNames(subject pkix.Name, extensions []pkix.Extension, emails int, uris []*url.URL, dns []string, ips []net.IP) (names, error) {
	n := names{dns: slices.Sorted(slices.Values(dns))}
	seen := make(map[string]bool)
	for _, attribute := range subject.Names {
		value, text := attribute.Value.(string)
		id := attribute.Type.String()
		if !text || seen[id] {
			return n, fmt.Errorf("its subject %q holds an attribute that is not wanted", subject)
		}
		seen[id] = true
		switch {
		case attribute.Type.Equal(oidCommonName):
			n.commonName = value
		case attribute.Type.Equal(oidOrganizationalUnit):
			n.unit = value
		default:
			return n, fmt.Errorf("its subject %q holds more than a common name and a unit", subject)
		}
	}
	for _, u := range uris {
		n.uris = append(n.uris, u.String())
	}
	for _, ip := range ips {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			n.ips = append(n.ips, addr.Unmap().String())
		}
	}
	slices.Sort(n.uris)
	slices.Sort(n.ips)
	// crypto/x509 reads the common kinds of names and passes over all others, which
	// another verifier may heed.
	inside := 0
	for _, e := range extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			continue
		}
		var all []asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &all); err != nil || len(rest) > 0 {
			return n, errors.New("its alternative names can not be read")
		}
		inside += len(all)
	}
	if known := len(n.uris) + len(n.dns) + len(n.ips); emails > 0 || inside != known {
		return n, fmt.Errorf("it has %d alternative names besides URIs, DNS names and IP addresses", inside-known)
	}
	return n, nil
}

// differ returns what is not as wanted, or "".
func (n names) differ(want names) string {
	var d []string
	text := func(what, got, want string) {
		if got != want {
			d = append(d, fmt.Sprintf("%s %q instead of %q", what, got, want))
		}
	}
	list := func(what string, got, want []string) {
		if !slices.Equal(got, want) {
			d = append(d, fmt.Sprintf("%s %q instead of %q", what, got, want))
		}
	}
	text("common name", n.commonName, want.commonName)
	text("organizational unit", n.unit, want.unit)
	list("URIs", n.uris, want.uris)
	list("DNS names", n.dns, want.dns)
	list("IP addresses", n.ips, want.ips)
	return strings.Join(d, ", ")
}

// wantExactCSR is for issuers that sign what a CSR asks for: the CSR must ask for
// what is wanted and nothing else.
func wantExactCSR(csr *x509.CertificateRequest, want names) error {
	got, err := readNames(csr.Subject, csr.Extensions, len(csr.EmailAddresses), csr.URIs, csr.DNSNames, csr.IPAddresses)
	if err != nil {
		return fmt.Errorf("the CSR is not for the names that are due, and this issuer signs a CSR as it is: %w", err)
	}
	if d := got.differ(want); d != "" {
		return fmt.Errorf("the CSR asks for other names than are due, and this issuer signs a CSR as it is: %s", d)
	}
	for _, e := range csr.Extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			return fmt.Errorf("the CSR asks for the extension %s, and this issuer signs a CSR as it is; leave it out", e.Id)
		}
	}
	return nil
}

// samePublicKey compares keys of any kind that crypto/x509 reads.
func samePublicKey(a, b any) bool {
	x, err1 := x509.MarshalPKIXPublicKey(a)
	y, err2 := x509.MarshalPKIXPublicKey(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
