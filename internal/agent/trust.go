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

// trust is the set of roots that peers and the controller are verified against. It is
// told from two sides: the mounted file, which follows changes within a minute or two,
// and the signing service's answers, which are newer at their moment and then grow old.
// So the file is the authority on what has gone, and neither can take away what the
// other has added:
//
//   - a root of the file is trusted;
//   - a root of the latest answer that the file has never held is trusted until the file
//     holds it, or another answer comes;
//   - a root that the file has dropped comes back with the file only, since an answer
//     may be that of a controller that is late.
type trust struct{ mounted, answered, dropped []root }

// mount takes over the file's roots.
func (t *trust) mount(roots []root) {
	before := t.mounted
	t.mounted = roots
	t.answered = slices.DeleteFunc(t.answered, t.isMounted)
	t.dropped = slices.DeleteFunc(slices.Concat(t.dropped, before), t.isMounted)
}

// answer takes over an answer's roots.
func (t *trust) answer(roots []root) {
	t.answered = slices.DeleteFunc(slices.Clone(roots), func(r root) bool { return t.isMounted(r) || holds(t.dropped, r) })
}

// with returns the trust as it is after an answer.
func (t trust) with(roots []root) trust {
	t.answer(roots)
	return t
}

func (t *trust) isMounted(r root) bool { return holds(t.mounted, r) }

func holds(roots []root, r root) bool {
	return slices.ContainsFunc(roots, func(other root) bool { return bytes.Equal(other, r) })
}

func (t *trust) empty() bool { return len(t.mounted)+len(t.answered) == 0 }

// bundle returns the roots as PEM, with nothing else that the sources have held.
func (t *trust) bundle() []byte {
	var b []byte
	for _, r := range slices.Concat(t.mounted, t.answered) {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r})...)
	}
	return b
}

func (t *trust) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, r := range slices.Concat(t.mounted, t.answered) {
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
