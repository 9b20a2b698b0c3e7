package identity_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/identity"
)

// generate creates a key on a curve.
func generate(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestCheckCSR(t *testing.T) {
	for name, curve := range map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384()} {
		csr, err := identity.CheckCSR(csrOf(t, template(shopper), generate(t, curve)), identityOf(shopper), shopper.PodUID)
		if err != nil || csr == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A name that is too long for DNS, and one that is too long for a common name.
	for _, account := range []string{strings.Repeat("a", 64), strings.Repeat("a.", 100) + "a"} {
		w := shopper
		w.ServiceAccount = account
		csr, _ := request(t, w)
		if _, err := identity.CheckCSR(csr, identityOf(w), w.PodUID); err != nil {
			t.Errorf("service account %s: %v", account, err)
		}
	}
}

func TestCheckCSRRefuses(t *testing.T) {
	other := shopper
	other.ServiceAccount = "bank"
	parse := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	// names encodes subject alternative names, including kinds that package x509 cannot write.
	names := func(values ...asn1.RawValue) pkix.Extension {
		text, err := asn1.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: text}
	}
	general := func(tag int, text string) asn1.RawValue {
		return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(text)}
	}
	uri, dns := general(6, identityOf(shopper).String()), general(2, identityOf(shopper).DNSName())

	for _, tt := range []struct {
		name   string
		change func(*x509.CertificateRequest)
		want   string
	}{
		{"the identity of another", func(r *x509.CertificateRequest) { *r = *template(other) }, "bank"},
		{"another URI", func(r *x509.CertificateRequest) { r.URIs = template(other).URIs }, `URIs ["spiffe://cluster.local/ns/shop/sa/bank"`},
		{"another URI beside", func(r *x509.CertificateRequest) { r.URIs = append(r.URIs, template(other).URIs...) }, `URIs ["spiffe://cluster.local/ns/shop/sa/bank"`},
		{"the URI in other letters", func(r *x509.CertificateRequest) {
			r.URIs = []*url.URL{parse("spiffe://cluster.local/ns/shop/sa/web%2Ev1")}
		}, "URIs"},
		{"the URI twice", func(r *x509.CertificateRequest) { r.URIs = append(r.URIs, r.URIs[0]) }, `web.v1" "spiffe://`},
		{"another trust domain", func(r *x509.CertificateRequest) { r.URIs = []*url.URL{parse("spiffe://other/ns/shop/sa/web.v1")} }, "spiffe://other"},
		{"no URI", func(r *x509.CertificateRequest) { r.URIs = nil }, "URIs [] instead of"},
		{"no DNS name", func(r *x509.CertificateRequest) { r.DNSNames = nil }, "DNS names [] instead of"},
		{"no names", func(r *x509.CertificateRequest) { r.URIs, r.DNSNames = nil, nil }, "URIs [] instead of"},
		{"the DNS name of another", func(r *x509.CertificateRequest) { r.DNSNames = template(other).DNSNames }, "bank.shop.sa.cluster.local"},
		{"a wildcard", func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, "*.sa.cluster.local") }, "*.sa.cluster.local"},
		{"the controller's name", func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, serverName) }, serverName},
		{"an e-mail address", func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@example.com"} }, "a@example.com"},
		{"an IP address", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{10, 0, 0, 1}} }, `IP addresses ["10.0.0.1"]`},
		{"a name of a kind that is rare", func(r *x509.CertificateRequest) {
			r.URIs, r.DNSNames = nil, nil
			r.ExtraExtensions = []pkix.Extension{names(uri, dns, general(8, "\x2a\x03"))}
		}, "of kind 8"},
		{"names that are none", func(r *x509.CertificateRequest) {
			r.URIs, r.DNSNames = nil, nil
			r.ExtraExtensions = []pkix.Extension{names(uri, dns, asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte("x")})}
		}, "unreadable"},
		{"another common name", func(r *x509.CertificateRequest) { r.Subject.CommonName = "bank.shop" }, `"bank.shop"`},
		{"no common name", func(r *x509.CertificateRequest) { r.Subject.CommonName = "" }, `common name "" instead of`},
		{"another pod", func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"0000"} }, `organizational unit "0000" instead of "7d8a3c"`},
		{"another pod beside", func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"7d8a3c", "0000"} }, "0000"},
		{"the pod twice", func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"7d8a3c", "7d8a3c"} }, "unexpected attribute"},
		{"no pod", func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = nil }, `organizational unit "" instead of`},
		{"an organization", func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }, "more than a common name"},
		{"a CA", func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}, "the extension 2.5.29.19"},
		{"a usage", func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Value: []byte{3, 2, 1, 6}}}
		}, "the extension 2.5.29.15"},
		{"a password", func(r *x509.CertificateRequest) {
			//lint:ignore SA1019 There is no other way to write an attribute.
			r.Attributes = []pkix.AttributeTypeAndValueSET{{
				Type:  asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7},
				Value: [][]pkix.AttributeTypeAndValue{{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "secret"}}},
			}}
		}, "the attribute 1.2.840.113549.1.9.7"},
		{"SHA-1", func(r *x509.CertificateRequest) { r.SignatureAlgorithm = x509.ECDSAWithSHA1 }, "SHA1"},
		{"a very long one", func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, strings.Repeat("a", 9000)) }, "want at most 8192"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := template(shopper)
			tt.change(r)
			der, err := x509.CreateCertificateRequest(rand.Reader, r, generate(t, elliptic.P256()))
			if err != nil {
				t.Skip("package x509 does not write it:", err)
			}
			refused(t, der, tt.want)
		})
	}
	for name, key := range keys(t) {
		t.Run(name, func(t *testing.T) { refused(t, csrOf(t, template(shopper), key), "its key is ") })
	}
	good, _ := request(t, shopper)
	for name, tt := range map[string]struct {
		der  []byte
		want string
	}{
		"nothing":           {nil, "it is not a PKCS #10 request"},
		"rubbish":           {[]byte("rubbish"), "it is not a PKCS #10 request"},
		"more after it":     {append(bytes.Clone(good), 0), "it is not a PKCS #10 request"},
		"half of it":        {good[:len(good)/2], "it is not a PKCS #10 request"},
		"another signature": {append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1), "verification"},
		"a name that was changed after it was signed": {bytes.ReplaceAll(good, []byte("web.v1"), []byte("web.v2")), "web.v2"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, tt.der, tt.want) })
	}
}

// keys returns keys of unsupported kinds.
func keys(t *testing.T) map[string]crypto.Signer {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]crypto.Signer{
		"Ed25519": ed, "RSA": long, "P-224": generate(t, elliptic.P224()), "P-521": generate(t, elliptic.P521()),
	}
}

func refused(t *testing.T, der []byte, want string) {
	t.Helper()
	csr, err := identity.CheckCSR(der, identityOf(shopper), shopper.PodUID)
	switch {
	case err == nil:
		t.Errorf("it was taken: %v", csr.Subject)
	case !errors.Is(err, identity.ErrRequest) || !strings.Contains(err.Error(), want):
		t.Errorf("the error is %q, want ErrRequest with %q", err, want)
	}
}

func FuzzCheckCSR(f *testing.F) {
	good, _ := request(f, shopper)
	f.Add(good)
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		csr, err := identity.CheckCSR(der, identityOf(shopper), shopper.PodUID)
		if err != nil {
			if !errors.Is(err, identity.ErrRequest) {
				t.Errorf("the error is %v, want ErrRequest", err)
			}
			return
		}
		want := template(shopper)
		if csr.URIs[0].String() != want.URIs[0].String() || csr.DNSNames[0] != want.DNSNames[0] || csr.Subject.CommonName != want.Subject.CommonName ||
			len(csr.URIs)+len(csr.DNSNames) != 2 || len(csr.EmailAddresses)+len(csr.IPAddresses) > 0 {
			t.Errorf("a request for %v, %q, %v was taken", csr.Subject, csr.DNSNames, csr.URIs)
		}
	})
}
