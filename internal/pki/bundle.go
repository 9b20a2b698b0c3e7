package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
)

// Bundle is an immutable set of trusted certificates. It is sorted and has no duplicates, so
// that every replica encodes the same set to the same bytes.
type Bundle []*x509.Certificate

// NewBundle returns the set of the certificates.
func NewBundle(certificates ...*x509.Certificate) Bundle {
	sorted := slices.Clone(certificates)
	slices.SortFunc(sorted, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(sorted, (*x509.Certificate).Equal)
}

// ParseBundle returns the set of the certificates that Parse returns.
func ParseBundle(text []byte) (Bundle, error) {
	certificates, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return NewBundle(certificates...), nil
}

// Readable returns the set of the readable certificates in an untrusted text. It ignores
// everything else.
func Readable(text []byte) Bundle {
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			certificates = append(certificates, certificate)
		}
	}
	return NewBundle(certificates...)
}

// Has reports whether the certificate is in the set.
func (b Bundle) Has(certificate *x509.Certificate) bool {
	return slices.ContainsFunc(b, certificate.Equal)
}

// Equal reports whether two sets are the same.
func (b Bundle) Equal(other Bundle) bool {
	return slices.EqualFunc(b, other, (*x509.Certificate).Equal)
}

// With returns the union of two sets.
func (b Bundle) With(other Bundle) Bundle { return NewBundle(slices.Concat(b, other)...) }

// Only returns the certificates for which keep is true.
func (b Bundle) Only(keep func(*x509.Certificate) bool) Bundle {
	return slices.DeleteFunc(slices.Clone(b), func(c *x509.Certificate) bool { return !keep(c) })
}

// Encode returns the set as PEM.
func (b Bundle) Encode() []byte { return Encode(b...) }

// Pool returns the set as a pool for package x509.
func (b Bundle) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, certificate := range b {
		pool.AddCert(certificate)
	}
	return pool
}

// Verify returns an error unless the set verifies a chain, given leaf first, for each of the
// usages.
func (b Bundle) Verify(chain []*x509.Certificate, usages ...x509.ExtKeyUsage) error {
	return Verify(b.Pool(), chain, usages...)
}

// Verify is Bundle.Verify for an existing pool.
func Verify(roots *x509.CertPool, chain []*x509.Certificate, usages ...x509.ExtKeyUsage) error {
	intermediates := NewBundle(chain[1:]...).Pool()
	for _, usage := range usages {
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			return err
		}
	}
	return nil
}
