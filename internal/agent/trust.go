package agent

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// root is a root certificate as DER.
type root []byte

// trust is the roots that the pod knows of, from two sides.
//
// The latest answer of the signing service is all that peers are verified against. Such
// an answer came over a connection that was verified by the answer before it, so nobody
// else in the pod's namespace has a say in it.
//
// The mounted file can be changed by whoever may change ConfigMaps of the namespace. It
// verifies the signing service for the first contact, and when the service can't be
// verified by what it has answered before, as after an outage that was longer than a
// root's life. And it is a hint: when it changes, it is time to ask for another answer.
type trust struct{ answered, mounted []root }

// bundle returns the roots of peers as PEM, with nothing else that an answer has held.
func (t *trust) bundle() []byte {
	var b []byte
	for _, r := range t.answered {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r})...)
	}
	return b
}

// contacts returns by what the signing service is verified: the first of these, and each
// other one if those before it do not verify it. There is none as long as no root is known.
func (t *trust) contacts() []*x509.CertPool {
	var pools []*x509.CertPool
	if len(t.answered) > 0 {
		pools = append(pools, poolOf(t.answered))
	}
	if len(t.mounted) > 0 && t.differ() {
		pools = append(pools, poolOf(t.mounted))
	}
	return pools
}

// differ reports whether the file and the latest answer do not have the same roots.
func (t *trust) differ() bool {
	return len(t.answered) != len(t.mounted) || slices.ContainsFunc(t.mounted, func(r root) bool { return !holds(t.answered, r) })
}

func holds(roots []root, r root) bool {
	return slices.ContainsFunc(roots, func(other root) bool { return bytes.Equal(other, r) })
}

func poolOf(roots []root) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, r := range roots {
		if cert, err := x509.ParseCertificate(r); err == nil {
			pool.AddCert(cert)
		}
	}
	return pool
}

// parseRoots reads a bundle, in which there is at least one certificate and nothing
// that is not one. Repetitions are left out.
func parseRoots(text []byte) ([]root, error) {
	certs, err := parseCertificates(text)
	if err != nil {
		return nil, err
	}
	var roots []root
	for _, cert := range certs {
		if !holds(roots, cert.Raw) {
			roots = append(roots, cert.Raw)
		}
	}
	return roots, nil
}

// parseCertificates reads one or more certificates as PEM.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("there is a PEM block in it that is not a certificate")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d in it: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
		text = rest
	}
	if len(certs) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return certs, nil
}
