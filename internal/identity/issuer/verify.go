package issuer

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// verified is an issuer's verified answer.
type verified struct {
	leaf *x509.Certificate
	// chain is the leaf and its intermediates, without the root.
	chain []*x509.Certificate
	root  *x509.Certificate
	// end is the earliest expiry of the chain's CAs.
	end time.Time
}

// verify checks that an issuer's answer matches the request and has a chain to one of the
// roots. Certificates of the answer that are not part of the chain are dropped.
func verify(req Request, want pki.Names, answer []*x509.Certificate, roots *x509.CertPool) (verified, error) {
	if len(answer) == 0 {
		return verified{}, errors.New("its answer has no certificate")
	}
	leaf, now := answer[0], time.Now()
	if err := checkLeaf(req, want, leaf, now); err != nil {
		return verified{}, err
	}
	// Tolerate an issuer whose clock is slightly ahead.
	at := now
	if leaf.NotBefore.After(at) && leaf.NotBefore.Before(at.Add(time.Minute)) {
		at = leaf.NotBefore
	}
	return verifyChain(answer, roots, at)
}

// checkLeaf checks that a new certificate matches the request.
func checkLeaf(req Request, want pki.Names, leaf *x509.Certificate, now time.Time) error {
	if leaf.IsCA {
		return errors.New("its answer is a CA certificate")
	}
	if !pki.SameKey(leaf.PublicKey, req.CSR.PublicKey) {
		return errors.New("its certificate is not for the CSR's key")
	}
	got, err := pki.NamesOf(leaf)
	if err != nil {
		return fmt.Errorf("its certificate does not have the requested names: %w", err)
	}
	if d := got.Differ(want); d != "" {
		return fmt.Errorf("its certificate does not have the requested names: it has %s", d)
	}
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) ||
		leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return errors.New("its certificate is not usable for TLS servers and clients")
	}
	if end := now.Add(req.Life + pki.Skew); leaf.NotAfter.After(end) {
		return fmt.Errorf("its certificate expires at %s, but the requested lifetime is %s", leaf.NotAfter.UTC().Format(time.RFC3339), req.Life)
	}
	return nil
}

// verifyChain finds a chain from the first certificate to one of the roots, of which no
// certificate forbids TLS servers and clients.
func verifyChain(answer []*x509.Certificate, roots *x509.CertPool, now time.Time) (verified, error) {
	leaf, intermediates := answer[0], pki.NewBundle(answer[1:]...).Pool()
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return verified{}, fmt.Errorf("its certificate does not verify: %w", err)
	}
	for _, chain := range chains {
		if slices.ContainsFunc(chain, forbidsTLS) {
			continue
		}
		return verified{leaf: leaf, chain: chain[:len(chain)-1], root: chain[len(chain)-1], end: pki.End(chain[1:])}, nil
	}
	return verified{}, errors.New("a certificate of its chain forbids TLS servers or clients")
}

// forbidsTLS reports whether a certificate's extended key usages exclude TLS servers or
// clients. A certificate without any allows all.
func forbidsTLS(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return false
	}
	return !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
}
