package issuer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
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

// RootLife is how long a root that Outrigger makes is valid, as OSM's is: ten years.
const RootLife = 87600 * time.Hour

// minRSA is below which a TLS peer of today refuses a key.
const minRSA = 2048

// CA is Outrigger's own certificate authority: a certificate and its key in memory.
type CA struct {
	certificate *x509.Certificate
	key         crypto.Signer
	// intermediates are those between certificate and root; certificate is the first,
	// if it is not the root itself.
	intermediates []*x509.Certificate
	root          *x509.Certificate
	roots         *x509.CertPool
	// notAfter is when the first certificate of the chain ends.
	notAfter time.Time
}

var _ Issuer = (*CA)(nil)

// String says which CA it is, for logs and errors.
func (c *CA) String() string { return "the CA " + c.certificate.Subject.String() }

// NewRoot makes a self-signed root with an ECDSA P-256 key, valid for life from a
// little before now on. It returns certificate and key (PKCS #8) as PEM, as FromPEM
// reads them.
func NewRoot(commonName string, life time.Duration) (certPEM, keyPEM []byte, err error) {
	if commonName == "" || life <= 0 {
		return nil, nil, fmt.Errorf("a root needs a common name and a life above zero, not %q and %s", commonName, life)
	}
	certificate, key, err := pki.NewCA(commonName, life)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = pki.EncodeKey(key)
	return pki.Encode(certificate), keyPEM, err
}

// FromPEM returns the CA that a certificate and its key make. The certificates are a
// root alone, or an intermediate and what leads from it to its root, which must be
// there too, in any order. The key is ECDSA, RSA of 2048 bits or more, or Ed25519, in
// PKCS #8, PKCS #1 or SEC 1. A key that does not fit, a certificate that may not sign,
// that is expired or that does not belong to the chain is an error; no error shows
// anything of the key.
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
		return nil, fmt.Errorf("the key fits none of its %d certificates", len(all))
	}
	ca := &CA{certificate: all[at], key: key, roots: x509.NewCertPool()}
	now := time.Now()
	intermediates := x509.NewCertPool()
	for _, c := range all {
		if name := c.Subject.String(); !c.IsCA || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
			return nil, fmt.Errorf("the certificate %q is not a CA's, which may sign others", name)
		} else if now.After(c.NotAfter) {
			return nil, fmt.Errorf("the certificate %q is expired since %s", name, c.NotAfter.UTC().Format(time.RFC3339))
		} else if now.Before(c.NotBefore) {
			return nil, fmt.Errorf("the certificate %q is not valid before %s", name, c.NotBefore.UTC().Format(time.RFC3339))
		} else if forbidsTLS(c) {
			return nil, fmt.Errorf("the certificate %q has extended key usages, and not those of TLS servers and clients", name)
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
		return nil, fmt.Errorf("the certificate %q does not lead to a root; put the intermediates and the root beside it: %w", ca.certificate.Subject, err)
	}
	chain := slices.MinFunc(chains, func(a, b []*x509.Certificate) int { return len(a) - len(b) })
	for _, c := range all {
		if !slices.ContainsFunc(chain, c.Equal) {
			return nil, fmt.Errorf("the certificate %q is beside those of the CA and no part of its chain; take it out", c.Subject)
		}
	}
	ca.root, ca.intermediates = chain[len(chain)-1], chain[:len(chain)-1]
	ca.notAfter = pki.End(chain)
	return ca, nil
}

func parseKey(keyPEM []byte) (crypto.Signer, error) {
	var block *pem.Block
	for rest := keyPEM; ; {
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("its key is not PEM of a private key")
		}
		// openssl writes the parameters of the curve before the key.
		if block.Type != "EC PARAMETERS" {
			break
		}
	}
	var key any
	// What the parsers say of a key that they can't read is kept back.
	switch block.Type {
	case "PRIVATE KEY":
		key, _ = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, _ = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, _ = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("its key is in a PEM block %q, and PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY is wanted", block.Type)
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case ed25519.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		if key.N.BitLen() < minRSA {
			return nil, fmt.Errorf("its RSA key of %d bits is too short; %d are the least", key.N.BitLen(), minRSA)
		}
		return key, nil
	}
	return nil, errors.New("its key can't be read, or is neither ECDSA, RSA nor Ed25519")
}

// NotAfter returns when the CA ends: nothing that it signs is valid longer.
func (ca *CA) NotAfter() time.Time { return ca.notAfter }

// Roots returns the one root. It never fails.
func (ca *CA) Roots(context.Context) ([]byte, error) {
	return pki.Encode(ca.root), nil
}

// Issue signs in this process; nothing is kept of it.
func (ca *CA) Issue(ctx context.Context, req Request) ([]byte, error) {
	chain, err := ca.issue(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("own CA %q: %w", ca.certificate.Subject.CommonName, err)
	}
	return chain, nil
}

func (ca *CA) issue(ctx context.Context, req Request) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	want, err := req.names()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if !now.Before(ca.notAfter) {
		return nil, fmt.Errorf("it is expired since %s; give it a new certificate", ca.notAfter.UTC().Format(time.RFC3339))
	}
	template := &x509.Certificate{
		SerialNumber:          pki.Serial(),
		Subject:               pkix.Name{CommonName: want.CommonName},
		NotBefore:             now.Add(-pki.Skew),
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
		// names has read it before.
		if u, err := url.Parse(text); err == nil {
			template.URIs = append(template.URIs, u)
		}
	}
	for _, text := range want.IPs {
		template.IPAddresses = append(template.IPAddresses, net.IP(netip.MustParseAddr(text).AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, req.CSR.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %q: %w", req.CommonName, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %q that it signed: %w", req.CommonName, err)
	}
	// Name constraints of a company's CA are only seen by verifying.
	v, err := verify(req, want, append([]*x509.Certificate{leaf}, ca.intermediates...), ca.roots)
	if err != nil {
		return nil, err
	}
	return v.chain, nil
}
