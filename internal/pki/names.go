package pki

import (
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

// Names are all names in a certificate, in a comparable form: lists are sorted, and IP
// addresses are texts.
type Names struct {
	CommonName, Unit string
	URIs, DNS, IPs   []string
}

// NamesOf returns the names of a certificate. It is an error if the certificate contains
// other kinds of names than Names has.
func NamesOf(c *x509.Certificate) (Names, error) {
	return readNames(c.Subject, c.Extensions, len(c.EmailAddresses), c.URIs, c.DNSNames, c.IPAddresses)
}

// NamesOfRequest returns the names that a certificate request asks for, as NamesOf does.
func NamesOfRequest(r *x509.CertificateRequest) (Names, error) {
	return readNames(r.Subject, r.Extensions, len(r.EmailAddresses), r.URIs, r.DNSNames, r.IPAddresses)
}

func readNames(subject pkix.Name, extensions []pkix.Extension, emails int, uris []*url.URL, dns []string, ips []net.IP) (Names, error) {
	n := Names{DNS: slices.Sorted(slices.Values(dns))}
	seen := make(map[string]bool)
	for _, attribute := range subject.Names {
		value, text := attribute.Value.(string)
		id := attribute.Type.String()
		if !text || seen[id] {
			return n, fmt.Errorf("its subject %q has an unexpected attribute", subject)
		}
		seen[id] = true
		switch {
		case attribute.Type.Equal(oidCommonName):
			n.CommonName = value
		case attribute.Type.Equal(oidOrganizationalUnit):
			n.Unit = value
		default:
			return n, fmt.Errorf("its subject %q contains more than a common name and a unit", subject)
		}
	}
	for _, u := range uris {
		n.URIs = append(n.URIs, u.String())
	}
	for _, ip := range ips {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			n.IPs = append(n.IPs, addr.Unmap().String())
		}
	}
	slices.Sort(n.URIs)
	slices.Sort(n.IPs)
	// Package crypto/x509 ignores uncommon kinds of names, but other verifiers may not.
	inside := 0
	for _, e := range extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			continue
		}
		var all []asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &all); err != nil || len(rest) > 0 {
			return n, errors.New("its alternative names are unreadable")
		}
		inside += len(all)
	}
	if known := len(n.URIs) + len(n.DNS) + len(n.IPs); emails > 0 || inside != known {
		return n, fmt.Errorf("it has %d alternative names besides URIs, DNS names and IP addresses", inside-known)
	}
	return n, nil
}

// Differ describes the differences to the wanted names for messages. It returns "" if there
// are none.
func (n Names) Differ(want Names) string {
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
	text("common name", n.CommonName, want.CommonName)
	text("organizational unit", n.Unit, want.Unit)
	list("URIs", n.URIs, want.URIs)
	list("DNS names", n.DNS, want.DNS)
	list("IP addresses", n.IPs, want.IPs)
	return strings.Join(d, ", ")
}
