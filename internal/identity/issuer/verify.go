package issuer

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// verified is an issuer's answer that has been looked at.
type verified struct {
	leaf *x509.Certificate
	// chain is the leaf and its intermediates, without the root, as PEM.
	chain []byte
	root  *x509.Certificate
	// end is when the first of the chain's CAs ends.
	end time.Time
}

// verify checks that what an issuer answered is what was wanted, with a chain to one
// of the roots. Certificates of the answer that the chain does not need are dropped.
func verify(req Request, want pki.Names, answer []*x509.Certificate, roots *x509.CertPool) (verified, error) {
	if len(answer) == 0 {
		return verified{}, errors.New("it answered without a certificate")
	}
	leaf := answer[0]
	if leaf.IsCA {
		return verified{}, errors.New("it answered with the certificate of a CA")
	}
	if !pki.SameKey(leaf.PublicKey, req.CSR.PublicKey) {
		return verified{}, errors.New("the certificate that it answered with is for another key than the CSR")
	}
	got, err := pki.NamesOf(leaf)
	if err != nil {
		return verified{}, fmt.Errorf("the certificate that it answered with is not for the names that are due: %w", err)
	}
	if d := got.Differ(want); d != "" {
		return verified{}, fmt.Errorf("the certificate that it answered with is not for the names that are due: it has %s", d)
	}
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) ||
		leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return verified{}, errors.New("the certificate that it answered with is not good for servers and clients of TLS")
	}
	now := time.Now()
	if end := now.Add(req.Life + pki.Skew); leaf.NotAfter.After(end) {
		return verified{}, fmt.Errorf("the certificate that it answered with ends at %s, and %s were asked for", leaf.NotAfter.UTC().Format(time.RFC3339), req.Life)
	}
	// An issuer whose clock is a little ahead is no reason to be without certificates.
	at := now
	if leaf.NotBefore.After(at) && leaf.NotBefore.Before(at.Add(time.Minute)) {
		at = leaf.NotBefore
	}
	intermediates := x509.NewCertPool()
	for _, c := range answer[1:] {
		intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return verified{}, fmt.Errorf("the certificate that it answered with does not verify: %w", err)
	}
	for _, chain := range chains {
		if slices.ContainsFunc(chain, forbidsTLS) {
			continue
		}
		return verified{leaf: leaf, chain: pki.Encode(chain[:len(chain)-1]...), root: chain[len(chain)-1], end: pki.End(chain[1:])}, nil
	}
	return verified{}, errors.New("a certificate of the chain that it answered with forbids servers or clients of TLS")
}

// forbidsTLS says that a certificate has extended key usages without those that we
// need. One without any allows all.
func forbidsTLS(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return false
	}
	return !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
}
