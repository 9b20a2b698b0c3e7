package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

var (
	oidCommonName         = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganizationalUnit = asn1.ObjectIdentifier{2, 5, 4, 11}
	oidSubjectAltName     = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidExtensionRequest   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
)

// Tags of a GeneralName (RFC 5280).
const (
	tagDNS = 2
	tagURI = 6
	tagIP  = 7
)

// Names are all names in a certificate, in a comparable form: lists are sorted, and IP
// addresses are texts.
type Names struct {
	CommonName, Unit string
	URIs, DNS, IPs   []string
}

// Request returns a certificate request for the names, except IPs, as DER. It is signed with
// the key, whose certificate it asks for.
func (n Names) Request(key crypto.Signer) ([]byte, error) {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: n.CommonName}, DNSNames: n.DNS}
	if n.Unit != "" {
		template.Subject.OrganizationalUnit = []string{n.Unit}
	}
	for _, text := range n.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("a certificate request for %s: %w", n.CommonName, err)
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("a certificate request for %s: %w", n.CommonName, err)
	}
	return der, nil
}

// NamesOf returns the names of a certificate. It is an error if the certificate contains
// other kinds of names than Names has.
func NamesOf(c *x509.Certificate) (Names, error) {
	return readNames(c.Subject, c.Extensions)
}

// CheckRequest returns an error unless a certificate request asks for exactly the names and
// for nothing else.
func CheckRequest(r *x509.CertificateRequest, want Names) error {
	for _, e := range r.Extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			return fmt.Errorf("it asks for the extension %s, want only the subject alternative names", e.Id)
		}
	}
	names, err := readNames(r.Subject, r.Extensions)
	if err != nil {
		return err
	}
	if d := names.Differ(want); d != "" {
		return fmt.Errorf("it asks for %s", d)
	}
	return checkAttributes(r)
}

// checkAttributes allows only the attribute with the extensions: others, such as a password,
// must not be passed on to an issuer.
func checkAttributes(r *x509.CertificateRequest) error {
	var info struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []struct {
			ID     asn1.ObjectIdentifier
			Values asn1.RawValue
		} `asn1:"tag:0,set"`
	}
	if rest, err := asn1.Unmarshal(r.RawTBSCertificateRequest, &info); err != nil || len(rest) > 0 {
		return errors.New("its attributes are not well formed")
	}
	for _, attribute := range info.Attributes {
		if !attribute.ID.Equal(oidExtensionRequest) {
			return fmt.Errorf("it has the attribute %s, want only the extensions", attribute.ID)
		}
	}
	if len(info.Attributes) != 1 {
		return fmt.Errorf("it has %d attributes, want one", len(info.Attributes))
	}
	return nil
}

func readNames(subject pkix.Name, extensions []pkix.Extension) (Names, error) {
	var n Names
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
	// Package crypto/x509 ignores uncommon kinds of names, but other verifiers may not. It
	// also rewrites URIs.
	for _, e := range extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			continue
		}
		var all []asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &all); err != nil || len(rest) > 0 {
			return n, errors.New("its alternative names are unreadable")
		}
		for _, name := range all {
			addr, isAddr := netip.AddrFromSlice(name.Bytes)
			switch {
			case name.Class != asn1.ClassContextSpecific:
				return n, errors.New("its alternative names are unreadable")
			case name.Tag == tagURI:
				n.URIs = append(n.URIs, string(name.Bytes))
			case name.Tag == tagDNS:
				n.DNS = append(n.DNS, string(name.Bytes))
			case name.Tag == tagIP && isAddr:
				n.IPs = append(n.IPs, addr.Unmap().String())
			default:
				return n, fmt.Errorf("it has alternative names besides URIs, DNS names and IP addresses: %q of kind %d", name.Bytes, name.Tag)
			}
		}
	}
	slices.Sort(n.URIs)
	slices.Sort(n.DNS)
	slices.Sort(n.IPs)
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
