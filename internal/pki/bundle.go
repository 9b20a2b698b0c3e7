package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
)

// Bundle is a set of certificates to trust. It is sorted and holds none twice, so that
// every replica encodes the same set as the same bytes. Nobody changes it.
type Bundle []*x509.Certificate

// NewBundle returns the set of some certificates.
func NewBundle(certificates ...*x509.Certificate) Bundle {
	sorted := slices.Clone(certificates)
	slices.SortFunc(sorted, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(sorted, (*x509.Certificate).Equal)
}

// ParseBundle returns the set of what Parse reads.
func ParseBundle(text []byte) (Bundle, error) {
	certificates, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return NewBundle(certificates...), nil
}

// Readable returns the set of the certificates that can be read from a text of somebody
// else's making, and passes over all else.
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

// With returns what is in either set.
func (b Bundle) With(other Bundle) Bundle { return NewBundle(slices.Concat(b, other)...) }

// Only returns the certificates for which keep is true.
func (b Bundle) Only(keep func(*x509.Certificate) bool) Bundle {
	return slices.DeleteFunc(slices.Clone(b), func(c *x509.Certificate) bool { return !keep(c) })
}

// Encode returns the set as PEM.
func (b Bundle) Encode() []byte { return Encode(b...) }

// Pool returns the set for package x509.
func (b Bundle) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, certificate := range b {
		pool.AddCert(certificate)
	}
	return pool
}

// Verify returns an error unless a chain, the leaf first, leads to one of the set, for
// each of the usages.
func (b Bundle) Verify(chain []*x509.Certificate, usages ...x509.ExtKeyUsage) error {
	return Verify(b.Pool(), chain, usages...)
}

// Verify is that of a Bundle, for a pool that is there already.
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
