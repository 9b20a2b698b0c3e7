package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"fmt"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// maxCSR limits the length of a certificate request in DER, in bytes. One with the longest
// names has less than 2 KiB.
const maxCSR = 8 << 10

var (
	oidCommonName         = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganizationalUnit = asn1.ObjectIdentifier{2, 5, 4, 11}
	oidSubjectAltName     = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidExtensionRequest   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
)

// CheckCSR parses a PKCS #10 certificate request in DER. It must ask for exactly the names
// of a workload: its URI, its DNS name, and a subject with its common name and the pod's UID
// as organizational unit. It must be signed with its own key, which must be ECDSA on P-256
// or P-384: other keys are not supported by every proxy or are too expensive. The error
// wraps ErrRequest and names the problem.
func CheckCSR(der []byte, identity mesh.Identity, podUID string) (*x509.CertificateRequest, error) {
	if len(der) > maxCSR {
		return nil, fmt.Errorf("%w: it is %d bytes long, want at most %d", ErrRequest, len(der), maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("%w: it is not a PKCS #10 request in DER: %w", ErrRequest, err)
	}
	for _, check := range []func() error{
		func() error { return checkKey(csr) },
		func() error { return checkSubject(csr, identity.CommonName(), podUID) },
		func() error { return checkExtensions(csr, identity) },
		func() error { return checkAttributes(csr) },
		csr.CheckSignature,
	} {
		if err := check(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRequest, err)
		}
	}
	return csr, nil
}

func checkKey(csr *x509.CertificateRequest) error {
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return fmt.Errorf("its key is of type %s, want ECDSA", csr.PublicKeyAlgorithm)
	}
	if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
		return fmt.Errorf("its key is on the curve %s, want P-256 or P-384", key.Curve.Params().Name)
	}
	switch csr.SignatureAlgorithm {
	case x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512:
		return nil
	}
	return fmt.Errorf("it is signed with %s, want ECDSA with SHA-256, SHA-384 or SHA-512", csr.SignatureAlgorithm)
}

func checkSubject(csr *x509.CertificateRequest, commonName, unit string) error {
	var names, units int
	for _, attribute := range csr.Subject.Names {
		switch {
		case attribute.Type.Equal(oidCommonName):
			names++
			if attribute.Value != commonName {
				return fmt.Errorf("its common name is %q, want %q", attribute.Value, commonName)
			}
		case attribute.Type.Equal(oidOrganizationalUnit):
			units++
			if attribute.Value != unit {
				return fmt.Errorf("its organizational unit is %q, want the pod's UID %q", attribute.Value, unit)
			}
		default:
			return fmt.Errorf("its subject %q contains more than a common name and an organizational unit", csr.Subject)
		}
	}
	if names != 1 || units != 1 {
		return fmt.Errorf("its subject %q must contain one common name, %q, and one organizational unit, %q", csr.Subject, commonName, unit)
	}
	return nil
}

func checkExtensions(csr *x509.CertificateRequest, identity mesh.Identity) error {
	for _, extension := range csr.Extensions {
		if !extension.Id.Equal(oidSubjectAltName) {
			return fmt.Errorf("it asks for the extension %s, want only the subject alternative names", extension.Id)
		}
	}
	if len(csr.Extensions) != 1 {
		return fmt.Errorf("it has %d lists of subject alternative names, want one", len(csr.Extensions))
	}
	return checkNames(csr.Extensions[0].Value, identity)
}

// Tags of a GeneralName (RFC 5280).
const (
	tagEmail = 1
	tagDNS   = 2
	tagURI   = 6
	tagIP    = 7
)

// checkNames parses the names itself, since package x509 ignores unknown kinds.
func checkNames(extension []byte, identity mesh.Identity) error {
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(extension, &names); err != nil || len(rest) > 0 {
		return fmt.Errorf("its subject alternative names are not well formed")
	}
	var uris, dns int
	for _, name := range names {
		if name.Class != asn1.ClassContextSpecific {
			return fmt.Errorf("its subject alternative names are not well formed")
		}
		switch name.Tag {
		case tagURI:
			uris++
			if string(name.Bytes) != identity.String() {
				return fmt.Errorf("it asks for the URI %q, want %q", name.Bytes, identity.String())
			}
		case tagDNS:
			dns++
			if string(name.Bytes) != identity.DNSName() {
				return fmt.Errorf("it asks for the DNS name %q, want %q", name.Bytes, identity.DNSName())
			}
		case tagEmail:
			return fmt.Errorf("it asks for the e-mail address %q, want none", name.Bytes)
		case tagIP:
			return fmt.Errorf("it asks for an IP address, want none")
		default:
			return fmt.Errorf("it asks for a name of kind %d, want one URI and one DNS name", name.Tag)
		}
	}
	if uris != 1 || dns != 1 {
		return fmt.Errorf("it asks for %d URIs and %d DNS names, want one URI, %q, and one DNS name, %q",
			uris, dns, identity.String(), identity.DNSName())
	}
	return nil
}

// checkAttributes allows only the attribute with the extensions: others, such as a password,
// must not be passed on to an issuer.
func checkAttributes(csr *x509.CertificateRequest) error {
	var info struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []struct {
			ID     asn1.ObjectIdentifier
			Values asn1.RawValue
		} `asn1:"tag:0,set"`
	}
	if rest, err := asn1.Unmarshal(csr.RawTBSCertificateRequest, &info); err != nil || len(rest) > 0 {
		return fmt.Errorf("its attributes are not well formed")
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
