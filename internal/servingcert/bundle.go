package servingcert

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

const (
	blockCertificate = "CERTIFICATE"
	blockPrivateKey  = "PRIVATE KEY"
)

// bundle is a set of certificates to trust. It is sorted and holds none twice,
// so that every replica encodes the same set as the same bytes.
type bundle []*x509.Certificate

// fingerprint identifies a certificate.
type fingerprint [sha256.Size]byte

func fingerprintOf(cert *x509.Certificate) fingerprint {
	return sha256.Sum256(cert.Raw)
}

func newBundle(certs ...*x509.Certificate) bundle {
	sorted := slices.Clone(certs)
	slices.SortFunc(sorted, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(sorted, (*x509.Certificate).Equal)
}

// parseBundle reads PEM that must hold certificates and nothing else. Text
// between the blocks is allowed, as in the bundles of distributions.
func parseBundle(data []byte) (bundle, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockCertificate {
			return nil, fmt.Errorf("a PEM block of type %q where only certificates belong", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return newBundle(certs...), nil
}

// readableBundle returns the certificates that can be read from PEM of
// somebody else's making.
func readableBundle(data []byte) bundle {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs = append(certs, cert)
		}
	}
	return newBundle(certs...)
}

func (b bundle) has(cert *x509.Certificate) bool {
	return slices.ContainsFunc(b, cert.Equal)
}

func (b bundle) with(other bundle) bundle {
	return newBundle(slices.Concat(b, other)...)
}

// only returns the certificates for which keep is true.
func (b bundle) only(keep func(*x509.Certificate) bool) bundle {
	var kept bundle
	for _, cert := range b {
		if keep(cert) {
			kept = append(kept, cert)
		}
	}
	return kept
}

func (b bundle) encode() []byte {
	var out []byte
	for _, cert := range b {
		out = append(out, encodeCertificate(cert.Raw)...)
	}
	return out
}

func (b bundle) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range b {
		pool.AddCert(cert)
	}
	return pool
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der})
}
