package pki_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"crypto/rand"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

func newCA(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	ca, _, err := pki.NewCA(name, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// newLeaf returns a certificate of a CA, made from the template.
func newLeaf(t *testing.T, template *x509.Certificate) (leaf, root *x509.Certificate) {
	t.Helper()
	root, signer, err := pki.NewCA("root", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = pki.Serial(), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, root, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	if leaf, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return leaf, root
}

func TestParse(t *testing.T) {
	a, b := newCA(t, "a"), newCA(t, "b")
	leaf, _ := newLeaf(t, &x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}})
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pki.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	both := pki.Encode(a, b)
	for name, tt := range map[string]struct {
		text  []byte
		want  int
		roots bool
	}{
		"one":                   {pki.Encode(a), 1, true},
		"two":                   {both, 2, true},
		"text before each":      {slices.Concat([]byte("# a\n"), pki.Encode(a), []byte("# b\n"), pki.Encode(b)), 2, true},
		"blank lines after":     {append(slices.Clone(both), "\n \n"...), 2, true},
		"no CA":                 {pki.Encode(a, leaf), 2, false},
		"nothing":               {nil, 0, false},
		"no PEM":                {[]byte("roots"), 0, false},
		"text after":            {append(slices.Clone(both), "more"...), 0, false},
		"the second is cut off": {both[:len(both)-30], 0, false},
		"a key":                 {append(slices.Clone(both), secret...), 0, false},
		"garbled":               {bytes.Replace(pki.EncodeRequest([]byte("x")), []byte("CERTIFICATE REQUEST"), []byte("CERTIFICATE"), 2), 0, false},
	} {
		got, err := pki.Parse(tt.text)
		if len(got) != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("%s: there are %d certificates, %v, want %d", name, len(got), err, tt.want)
		}
		if _, err := pki.ParseRoots(tt.text); (err == nil) != tt.roots {
			t.Errorf("%s: as roots: %v", name, err)
		}
	}
}

func TestBundle(t *testing.T) {
	a, b, c := newCA(t, "a"), newCA(t, "b"), newCA(t, "c")
	set := pki.NewBundle(a, b, a)
	if len(set) != 2 || !bytes.Equal(set.Encode(), pki.NewBundle(b, a).Encode()) || !set.Equal(pki.NewBundle(b, a)) {
		t.Error("the order and repetitions count")
	}
	if set.Has(c) || !set.With(pki.NewBundle(c)).Has(c) || set.Only(func(x *x509.Certificate) bool { return x != a }).Has(a) || !set.Has(a) {
		t.Error("Has, With and Only do not agree")
	}
	if again, err := pki.ParseBundle(set.Encode()); err != nil || !again.Equal(set) {
		t.Errorf("what was encoded is read as %d certificates, %v", len(again), err)
	}
	if got := pki.Readable(append([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), append(set.Encode(), "more"...)...)); !got.Equal(set) {
		t.Errorf("of a text with more in it %d certificates are read", len(got))
	}
	leaf, root := newLeaf(t, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	chain := []*x509.Certificate{leaf}
	if err := pki.NewBundle(root).Verify(chain, x509.ExtKeyUsageServerAuth); err != nil {
		t.Error(err)
	}
	if pki.NewBundle(root).Verify(chain, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth) == nil || set.Verify(chain, x509.ExtKeyUsageServerAuth) == nil {
		t.Error("a chain is verified for clients too, or by another root")
	}
}

func TestNames(t *testing.T) {
	uri := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	want := pki.Names{CommonName: "a", Unit: "b", URIs: []string{"spiffe://x/y"}, DNS: []string{"d", "e"}, IPs: []string{"10.0.0.1"}}
	template := func() *x509.Certificate {
		return &x509.Certificate{
			Subject: pkix.Name{CommonName: "a", OrganizationalUnit: []string{"b"}}, URIs: []*url.URL{uri("spiffe://x/y")},
			DNSNames: []string{"e", "d"}, IPAddresses: []net.IP{{10, 0, 0, 1}},
		}
	}
	for name, tt := range map[string]struct {
		change func(*x509.Certificate)
		want   string
	}{
		"as wanted":    {func(*x509.Certificate) {}, ""},
		"another name": {func(c *x509.Certificate) { c.Subject.CommonName = "x" }, `common name "x" instead of "a"`},
		"another unit": {func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"x"} }, "organizational unit"},
		"two units":    {func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"b", "b"} }, "unexpected attribute"},
		"organization": {func(c *x509.Certificate) { c.Subject.Organization = []string{"o"} }, "more than a common name"},
		"another URI":  {func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("spiffe://x/z")) }, "URIs"},
		"no DNS name":  {func(c *x509.Certificate) { c.DNSNames = nil }, "DNS names"},
		"no address":   {func(c *x509.Certificate) { c.IPAddresses = nil }, "IP addresses"},
		"an e-mail":    {func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b"} }, `alternative names besides URIs, DNS names and IP addresses: "a@b" of kind 1`},
	} {
		changed := template()
		tt.change(changed)
		leaf, _ := newLeaf(t, changed)
		got, err := pki.NamesOf(leaf)
		text := got.Differ(want)
		if err != nil {
			text = err.Error()
		}
		if (tt.want == "") != (text == "") || !strings.Contains(text, tt.want) {
			t.Errorf("%s: it differs by %q, want %q", name, text, tt.want)
		}
	}
}

func TestRenewal(t *testing.T) {
	now := time.Now()
	least, most := 24*time.Hour, time.Duration(0)
	for range 1000 {
		due := pki.Renewal(now, now.Add(24*time.Hour)).Sub(now)
		least, most = min(least, due), max(most, due)
	}
	if least < 14*time.Hour || most > 16*time.Hour || most-least < time.Hour {
		t.Errorf("certificates of 24 h are renewed after %v to %v", least, most)
	}
	if due := pki.Renewal(now, now.Add(-time.Second)); due.After(now) {
		t.Errorf("a certificate that has ended is renewed after %v", due.Sub(now))
	}
}

func TestRequest(t *testing.T) {
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	names := pki.Names{CommonName: "cart.shop", Unit: "uid", URIs: []string{"spiffe://td/ns/shop/sa/cart"}, DNS: []string{"cart.shop.sa.td"}}
	der, err := names.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(request.CheckSignature(), pki.CheckRequest(request, names)); err != nil {
		t.Error(err)
	}
	names.URIs = []string{"%"}
	if _, err := names.Request(key); err == nil || !strings.Contains(err.Error(), "cart.shop") {
		t.Errorf("a URI that is none: %v", err)
	}
}
