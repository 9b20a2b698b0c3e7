// Package pki holds the X.509 functions that the controller, the injector and the agent
// share: PEM encoding, bundles of roots, keys, CAs, the names in a certificate, and renewal
// times. It does not decide who may have which certificate.
//
// It must import only the standard library, since it is linked into the agent in every pod.
package pki

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"time"
)

// Types of PEM blocks.
const (
	blockCertificate = "CERTIFICATE"
	blockRequest     = "CERTIFICATE REQUEST"
	blockKey         = "PRIVATE KEY"
)

// Skew is the maximum difference between the clocks of a mesh.
const Skew = 5 * time.Minute

// MaxCommonName is the limit of X.520 for a common name, in bytes.
const MaxCommonName = 64

// Parse parses PEM with at least one certificate and no other blocks. Text before a block is
// ignored, as in the bundles of distributions. Text after the last block is an error, since
// it may be a truncated certificate.
func Parse(text []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != blockCertificate {
			return nil, fmt.Errorf("there is a PEM block of type %q among the certificates", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certificates)+1, err)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("there is no PEM certificate")
	}
	if len(bytes.TrimSpace(text)) > 0 {
		return nil, errors.New("there is text after the last certificate")
	}
	return certificates, nil
}

// ParseRoots is Parse, but all certificates must be CA certificates.
func ParseRoots(text []byte) ([]*x509.Certificate, error) {
	roots, err := Parse(text)
	return roots, cmp.Or(err, CheckRoots(roots))
}

// CheckRoots returns an error unless all certificates are CA certificates.
func CheckRoots(roots []*x509.Certificate) error {
	for _, root := range roots {
		if !root.BasicConstraintsValid || !root.IsCA {
			return fmt.Errorf("%q is not a CA certificate", root.Subject)
		}
	}
	return nil
}

// Encode returns certificates as PEM, in their order.
func Encode(certificates ...*x509.Certificate) []byte {
	var text []byte
	for _, certificate := range certificates {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: certificate.Raw})...)
	}
	return text
}

// EncodeRequest returns a certificate request in DER as PEM.
func EncodeRequest(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockRequest, Bytes: der})
}

// NewKey returns an ECDSA P-256 key.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating a key: %w", err)
	}
	return key, nil
}

// EncodeKey returns a private key as PKCS #8 in PEM.
func EncodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der}), nil
}

// NewCA creates a self-signed root with an ECDSA P-256 key. It expires after life and is
// valid from a little before now.
func NewCA(commonName string, life time.Duration) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          Serial(),
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             Backdated(now, life),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	certificate, err := Sign(template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the root %q: %w", commonName, err)
	}
	return certificate, key, nil
}

// Sign creates the certificate of the template for a public key, signed with the parent's
// key.
func Sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Serial returns a random positive number of 127 to 128 bits; certificates may hold up to
// 159.
func Serial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] |= 0x80
	return new(big.Int).SetBytes(b[:])
}

// Backdated returns a start of validity that is also accepted by verifiers whose clocks are
// slightly behind.
func Backdated(now time.Time, life time.Duration) time.Time {
	return now.Add(-min(life/10, Skew))
}

// End returns the earliest expiry of a chain, which must not be empty. It need not be the
// leaf's.
func End(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, certificate := range chain[1:] {
		if certificate.NotAfter.Before(end) {
			end = certificate.NotAfter
		}
	}
	return end
}

// Renewal returns when to renew a certificate that was obtained at now and expires at end:
// after two thirds of that time, or up to a fifteenth of it earlier, so that processes
// started together drift apart.
func Renewal(now, end time.Time) time.Time {
	life := end.Sub(now)
	due := now.Add(life * 2 / 3)
	if life >= 15 {
		due = due.Add(-mathrand.N(life / 15))
	}
	return due
}

// SameKey compares public keys of any kind that crypto/x509 reads.
func SameKey(a, b any) bool {
	key, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(b)
}

// Fingerprint returns the SHA-256 of a certificate in hexadecimal digits.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// SelfSigned reports whether a certificate is signed by its own key.
func SelfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(c) == nil
}
