package issuer

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// RootLife is the lifetime of roots that Outrigger creates: ten years, as in OSM.
const RootLife = 87600 * time.Hour

// DefaultLife is the lifetime of certificates for which none is configured.
const DefaultLife = 24 * time.Hour

// Life returns the lifetime of certificates that a function returns. DefaultLife replaces results
// of 0 or less, and a nil function means DefaultLife.
func Life(configured func() time.Duration) time.Duration {
	if configured != nil {
		if life := configured(); life > 0 {
			return life
		}
	}
	return DefaultLife
}

// minRSA is the minimum key size, in bits, that current TLS stacks accept.
const minRSA = 2048

// CA is Outrigger's own certificate authority: a certificate and its key in memory.
type CA struct {
	certificate *x509.Certificate
	key         crypto.Signer
	// intermediates is the chain from certificate to below the root; it is empty if
	// certificate is the root.
	intermediates []*x509.Certificate
	root          *x509.Certificate
	roots         *x509.CertPool
	// constrained is set if a certificate of the chain limits the names below it.
	constrained bool
	// notAfter is the earliest expiry in the chain.
	notAfter time.Time
}

var (
	_ Issuer    = (*CA)(nil)
	_ KeySigner = (*CA)(nil)
)

// String describes the CA for logs and errors.
func (c *CA) String() string { return "the CA " + c.certificate.Subject.String() }

// NewRoot creates a self-signed root with an ECDSA P-256 key. It expires after life and is
// valid from a little before now. NewRoot returns the certificate and the key (PKCS #8) as
// PEM, in the format of FromPEM.
func NewRoot(commonName string, life time.Duration) (certPEM, keyPEM []byte, err error) {
	if commonName == "" || life <= 0 {
		return nil, nil, fmt.Errorf("a root needs a common name and a positive lifetime, not %q and %s", commonName, life)
	}
	certificate, key, err := pki.NewCA(commonName, life)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = pki.EncodeKey(key)
	return pki.Encode(certificate), keyPEM, err
}

// FromPEM returns the CA of a certificate and its key. certPEM is a root, or an
// intermediate with its complete chain including the root, in any order. The key is ECDSA,
// RSA of at least 2048 bits, or Ed25519, in PKCS #8, PKCS #1 or SEC 1. It is an error if the
// key does not match, or if a certificate may not sign, has expired or is not part of the
// chain. Errors contain nothing of the key.
func FromPEM(certPEM, keyPEM []byte) (*CA, error) {
	ca, err := fromPEM(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("own CA: %w", err)
	}
	return ca, nil
}

func fromPEM(certPEM, keyPEM []byte) (*CA, error) {
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	all, err := pki.Parse(certPEM)
	if err != nil {
		return nil, fmt.Errorf("reading its certificates: %w", err)
	}
	at := slices.IndexFunc(all, func(c *x509.Certificate) bool { return pki.SameKey(c.PublicKey, key.Public()) })
	if at < 0 {
		return nil, fmt.Errorf("the key matches none of its %d certificates", len(all))
	}
	ca := &CA{certificate: all[at], key: key, roots: x509.NewCertPool()}
	now := time.Now()
	intermediates := x509.NewCertPool()
	for _, c := range all {
		if name := c.Subject.String(); !c.IsCA || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
			return nil, fmt.Errorf("the certificate %q is not a CA certificate that may sign others", name)
		} else if now.After(c.NotAfter) {
			return nil, fmt.Errorf("the certificate %q expired at %s", name, c.NotAfter.UTC().Format(time.RFC3339))
		} else if now.Before(c.NotBefore) {
			return nil, fmt.Errorf("the certificate %q is not valid before %s", name, c.NotBefore.UTC().Format(time.RFC3339))
		} else if forbidsTLS(c) {
			return nil, fmt.Errorf("the certificate %q has extended key usages without those for TLS servers and clients", name)
		}
		if pki.SelfSigned(c) {
			ca.roots.AddCert(c)
		} else {
			intermediates.AddCert(c)
		}
	}
	chains, err := ca.certificate.Verify(x509.VerifyOptions{
		Roots: ca.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, fmt.Errorf("the certificate %q has no chain to a root; add the intermediates and the root: %w", ca.certificate.Subject, err)
	}
	chain := slices.MinFunc(chains, func(a, b []*x509.Certificate) int { return len(a) - len(b) })
	for _, c := range all {
		if !slices.ContainsFunc(chain, c.Equal) {
			return nil, fmt.Errorf("the certificate %q is not part of the CA's chain; remove it", c.Subject)
		}
	}
	ca.root, ca.intermediates = chain[len(chain)-1], chain[:len(chain)-1]
	ca.notAfter = pki.End(chain)
	ca.constrained = slices.ContainsFunc(chain, hasNameConstraints)
	return ca, ca.tryOut()
}

// hasNameConstraints reports whether a certificate has the extension of RFC 5280, section
// 4.2.1.10.
func hasNameConstraints(c *x509.Certificate) bool {
	return slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oidNameConstraints) })
}

var oidNameConstraints = asn1.ObjectIdentifier{2, 5, 29, 30}

// tryOut signs a certificate that is never used, and verifies it. Without name constraints
// the CA's other certificates then verify too as long as its chain is valid, because package
// x509 checks each new signature.
func (ca *CA) tryOut() error {
	if ca.constrained {
		return nil
	}
	leaf, err := pki.Sign(&x509.Certificate{
		SerialNumber: pki.Serial(), Subject: pkix.Name{CommonName: "trial"}, NotBefore: time.Now(), NotAfter: ca.notAfter,
	}, ca.certificate, ca.key.Public(), ca.key)
	if err != nil {
		return fmt.Errorf("signing a certificate: %w", err)
	}
	if _, err := verifyChain(append([]*x509.Certificate{leaf}, ca.intermediates...), ca.roots, time.Now()); err != nil {
		return fmt.Errorf("certificates that it signs do not verify: %w", err)
	}
	return nil
}

func parseKey(keyPEM []byte) (crypto.Signer, error) {
	var block *pem.Block
	for rest := keyPEM; ; {
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("its key is not a private key in PEM")
		}
		// openssl writes the parameters of the curve before the key.
		if block.Type != "EC PARAMETERS" {
			break
		}
	}
	var key any
	// The parsers' errors are dropped, since they may reveal parts of the key.
	switch block.Type {
	case "PRIVATE KEY":
		key, _ = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, _ = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, _ = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("its key is in a PEM block %q, want PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY", block.Type)
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case ed25519.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		if key.N.BitLen() < minRSA {
			return nil, fmt.Errorf("its RSA key of %d bits is too short; the minimum is %d", key.N.BitLen(), minRSA)
		}
		return key, nil
	}
	return nil, errors.New("its key is unreadable, or not ECDSA, RSA or Ed25519")
}

// NotAfter returns when the CA expires. No certificate that it signs is valid for longer.
func (ca *CA) NotAfter() time.Time { return ca.notAfter }

// Roots returns the CA's only root. It never fails.
func (ca *CA) Roots(context.Context) ([]*x509.Certificate, error) {
	return []*x509.Certificate{ca.root}, nil
}

// SignsKeys is for KeySigner.
func (ca *CA) SignsKeys() bool { return true }

// Issue signs in this process and keeps no record.
func (ca *CA) Issue(ctx context.Context, req Request) ([]*x509.Certificate, error) {
	chain, err := ca.issue(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("own CA %q: %w", ca.certificate.Subject.CommonName, err)
	}
	return chain, nil
}

func (ca *CA) issue(ctx context.Context, req Request) ([]*x509.Certificate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	want, err := req.names()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if !now.Before(ca.notAfter) {
		return nil, fmt.Errorf("it expired at %s; give it a new certificate", ca.notAfter.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		SerialNumber:          pki.Serial(),
		Subject:               pkix.Name{CommonName: want.CommonName},
		NotBefore:             now.Add(-cmp.Or(req.Backdate, pki.Skew)),
		NotAfter:              now.Add(req.Life),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		DNSNames:              req.DNSNames,
	}
	if want.Unit != "" {
		template.Subject.OrganizationalUnit = []string{want.Unit}
	}
	if _, ok := req.CSR.PublicKey.(*rsa.PublicKey); ok {
		template.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	if template.NotAfter.After(ca.notAfter) {
		template.NotAfter = ca.notAfter
	}
	for _, text := range want.URIs {
		// req.names has validated it.
		if u, err := url.Parse(text); err == nil {
			template.URIs = append(template.URIs, u)
		}
	}
	for _, text := range want.IPs {
		template.IPAddresses = append(template.IPAddresses, net.IP(netip.MustParseAddr(text).AsSlice()))
	}
	leaf, err := pki.Sign(template, ca.certificate, req.CSR.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %q: %w", req.CommonName, err)
	}
	chain := append([]*x509.Certificate{leaf}, ca.intermediates...)
	if ca.constrained {
		v, err := verify(req, want, chain, ca.roots)
		return v.chain, err
	}
	return chain, checkLeaf(req, want, leaf, now)
}
