package issuer_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer/issuertest"
)

// authority is a CA for tests.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a authority) keyPEM(t testing.TB) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func ecKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newAuthority creates a CA signed by parent, or self-signed if that is nil.
func newAuthority(t testing.TB, name string, key crypto.Signer, parent *authority, change func(*x509.Certificate)) authority {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	if change != nil {
		change(template)
	}
	if parent == nil {
		parent = &authority{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func TestCA(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	newRoot, newRootKey, err := issuer.NewRoot("cluster.local", issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	rsaRoot := newAuthority(t, "rsa", rsaKey, nil, nil)
	edRoot := newAuthority(t, "ed25519", edwards, nil, nil)
	middle := newAuthority(t, "middle", ecKey(t), &rsaRoot, nil)
	lower := newAuthority(t, "lower", ecKey(t), &middle, nil)
	pkcs1 := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)})
	sec1DER, err := x509.MarshalECPrivateKey(lower.key.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	// As `openssl ecparam -genkey` writes it.
	sec1 := append([]byte("-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1DER})...)

	for name, tt := range map[string]struct{ certs, key []byte }{
		"NewRoot":  {newRoot, newRootKey},
		"RSA":      {rsaRoot.pem(), pkcs1},
		"Ed25519":  {edRoot.pem(), edRoot.keyPEM(t)},
		"chain":    {bytes.Join([][]byte{lower.pem(), middle.pem(), rsaRoot.pem()}, nil), lower.keyPEM(t)},
		"anyOrder": {bytes.Join([][]byte{rsaRoot.pem(), lower.pem(), middle.pem()}, nil), sec1},
	} {
		t.Run(name, func(t *testing.T) {
			ca, err := issuer.FromPEM(tt.certs, tt.key)
			if err != nil {
				t.Fatal(err)
			}
			issuertest.Run(t, issuertest.Suite{
				Issuer: ca, Prefix: `own CA "`, Secrets: strings.Split(strings.TrimSpace(string(tt.key)), "\n"),
			})
		})
	}
}

// TestCAEnds checks that no certificate is valid for longer than its chain.
func TestCAEnds(t *testing.T) {
	end := time.Now().Add(10 * time.Minute).Truncate(time.Second)
	root := newAuthority(t, "root", ecKey(t), nil, func(c *x509.Certificate) { c.NotAfter = end })
	middle := newAuthority(t, "middle", ecKey(t), &root, nil)
	ca, err := issuer.FromPEM(append(middle.pem(), root.pem()...), middle.keyPEM(t))
	if err != nil {
		t.Fatal(err)
	}
	if !ca.NotAfter().Equal(end) {
		t.Errorf("the CA ends at %s, want %s", ca.NotAfter(), end)
	}
	req := issuertest.Workload(t)
	chain, err := ca.Issue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if leaf := issuertest.Check(t, req, chain, []*x509.Certificate{root.cert}); !leaf.NotAfter.Equal(end) {
		t.Errorf("the certificate ends at %s, want %s", leaf.NotAfter, end)
	}
}

func TestNewRoot(t *testing.T) {
	cert, key, err := issuer.NewRoot("cluster.local", issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(cert)
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	pub, ok := root.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() || !root.IsCA || root.Subject.CommonName != "cluster.local" {
		t.Errorf("the root is %q with a key %T, want cluster.local with ECDSA P-256", root.Subject, root.PublicKey)
	}
	if years := time.Until(root.NotAfter).Hours() / 24 / 365; years < 9.99 || years > 10.01 {
		t.Errorf("the root is valid for %.2f years, want 10", years)
	}
	if _, other, err := issuer.NewRoot("cluster.local", time.Hour); err != nil || bytes.Equal(key, other) {
		t.Errorf("two roots have one key (%v)", err)
	}
	for _, bad := range []struct {
		name string
		life time.Duration
	}{{"", time.Hour}, {"a", 0}, {"a", -time.Hour}} {
		if _, _, err := issuer.NewRoot(bad.name, bad.life); err == nil {
			t.Errorf("a root for %q and %s was made", bad.name, bad.life)
		}
	}
}

func TestFromPEMRefuses(t *testing.T) {
	root := newAuthority(t, "root", ecKey(t), nil, nil)
	other := newAuthority(t, "other", ecKey(t), nil, nil)
	middle := newAuthority(t, "middle", ecKey(t), &root, nil)
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weak := newAuthority(t, "weak", short, nil, nil)
	noCA := newAuthority(t, "leaf", ecKey(t), nil, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	noSign := newAuthority(t, "no sign", ecKey(t), nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })
	expired := newAuthority(t, "expired", ecKey(t), nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	early := newAuthority(t, "early", ecKey(t), nil, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	shallow := newAuthority(t, "shallow", ecKey(t), nil, func(c *x509.Certificate) { c.MaxPathLenZero = true })
	tooDeep := newAuthority(t, "too deep", ecKey(t), &shallow, nil)
	email := newAuthority(t, "email", ecKey(t), nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} })

	for name, tt := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"otherKey":      {root.pem(), other.keyPEM(t), "the key matches none of its 1 certificates"},
		"noKey":         {root.pem(), nil, "not a private key in PEM"},
		"certAsKey":     {root.pem(), root.pem(), `PEM block "CERTIFICATE"`},
		"garbledKey":    {root.pem(), []byte("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"), "is unreadable"},
		"noCertificate": {nil, root.keyPEM(t), "there is no PEM certificate"},
		"keyAsCert":     {root.keyPEM(t), root.keyPEM(t), `PEM block of type "PRIVATE KEY"`},
		"garbage":       {[]byte("hello"), root.keyPEM(t), "there is no PEM certificate"},
		"weakKey":       {weak.pem(), weak.keyPEM(t), "1024 bits is too short"},
		"noCA":          {noCA.pem(), noCA.keyPEM(t), `"CN=leaf" is not a CA certificate`},
		"noSign":        {noSign.pem(), noSign.keyPEM(t), `"CN=no sign" is not a CA certificate`},
		"expired":       {expired.pem(), expired.keyPEM(t), `"CN=expired" expired at`},
		"early":         {early.pem(), early.keyPEM(t), `"CN=early" is not valid before`},
		"email":         {email.pem(), email.keyPEM(t), "without those for TLS servers and clients"},
		"noRoot":        {middle.pem(), middle.keyPEM(t), "has no chain to a root; add the intermediates and the root"},
		"wrongRoot":     {append(middle.pem(), other.pem()...), middle.keyPEM(t), "has no chain to a root"},
		"tooDeep":       {append(tooDeep.pem(), shallow.pem()...), tooDeep.keyPEM(t), "certificates that it signs do not verify: its certificate does not verify: x509: too many intermediates"},
		"unrelated":     {append(root.pem(), other.pem()...), root.keyPEM(t), `"CN=other" is not part of the CA's chain`},
	} {
		t.Run(name, func(t *testing.T) {
			ca, err := issuer.FromPEM(tt.cert, tt.key)
			if err == nil || ca != nil || !strings.HasPrefix(err.Error(), "own CA: ") || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("the error is %v, want own CA: ... %s", err, tt.want)
			}
			for line := range strings.Lines(string(tt.key)) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") && line != "" && strings.Contains(err.Error(), line) {
					t.Error("the error shows the key")
				}
			}
		})
	}
}

// TestCAConstraints checks that a certificate is not returned if the CA's name constraints
// do not allow it.
func TestCAConstraints(t *testing.T) {
	root := newAuthority(t, "root", ecKey(t), nil, nil)
	middle := newAuthority(t, "middle", ecKey(t), &root, func(c *x509.Certificate) {
		c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"example.com"}
	})
	ca, err := issuer.FromPEM(append(middle.pem(), root.pem()...), middle.keyPEM(t))
	if err != nil {
		t.Fatal(err)
	}
	if chain, err := ca.Issue(t.Context(), issuertest.Workload(t)); err == nil || chain != nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("a name that the CA may not sign: %d certificates, %v", len(chain), err)
	}
}

// TestCAConstraintsOfRoot is the same for the constraints of the root.
func TestCAConstraintsOfRoot(t *testing.T) {
	root := newAuthority(t, "root", ecKey(t), nil, func(c *x509.Certificate) { c.ExcludedURIDomains = []string{"cluster.local"} })
	middle := newAuthority(t, "middle", ecKey(t), &root, nil)
	ca, err := issuer.FromPEM(append(middle.pem(), root.pem()...), middle.keyPEM(t))
	if err != nil {
		t.Fatal(err)
	}
	if chain, err := ca.Issue(t.Context(), issuertest.Workload(t)); err == nil || chain != nil || !strings.Contains(err.Error(), "excluded") {
		t.Errorf("a name that the root excludes: %d certificates, %v", len(chain), err)
	}
}

func TestCADeadline(t *testing.T) {
	certs, key, err := issuer.NewRoot("cluster.local", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := issuer.FromPEM(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := ca.Issue(ctx, issuertest.Workload(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
}

func BenchmarkCA(b *testing.B) {
	certs, key, err := issuer.NewRoot("cluster.local", issuer.RootLife)
	if err != nil {
		b.Fatal(err)
	}
	ca, err := issuer.FromPEM(certs, key)
	if err != nil {
		b.Fatal(err)
	}
	req := issuertest.Workload(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ca.Issue(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

// signCA signs the CSR of a CA.
func signCA(t testing.TB, csr *x509.CertificateRequest, parent authority) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: csr.Subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}, parent.cert, csr.PublicKey, parent.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
