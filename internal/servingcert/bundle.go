package servingcert

import (
	"crypto/sha256"
	"crypto/x509"
)

// fingerprint identifies a certificate.
type fingerprint [sha256.Size]byte

func fingerprintOf(cert *x509.Certificate) fingerprint {
	return sha256.Sum256(cert.Raw)
}
