package issuer

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// remote is what is common to issuers elsewhere, which are not trusted to have signed
// what was asked for.
type remote struct {
	// name begins its errors.
	name string
	// sign has one request signed, whose names have been checked.
	sign    func(context.Context, Request) (answer, error)
	learned *learned
}

// answer is what an issuer elsewhere said, as PEM.
type answer struct {
	// certificates are the leaf and what leads to the root, and ca what the issuer
	// names as its CA: a root among others.
	certificates, ca []byte
}

func newRemote(name string, sign func(context.Context, Request) (answer, error)) *remote {
	return &remote{name, sign, newLearned()}
}

// issue is Issue of the Issuer interface.
func (r *remote) issue(ctx context.Context, req Request) ([]byte, error) {
	chain, err := r.request(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return chain, nil
}

// roots is Roots of the Issuer interface.
func (r *remote) roots(ctx context.Context) ([]byte, error) {
	rootsPEM, err := r.learned.get(ctx, r.request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return rootsPEM, nil
}

func (r *remote) request(ctx context.Context, req Request) ([]byte, error) {
	want, err := req.names()
	if err != nil {
		return nil, err
	}
	if err := wantExactCSR(req.CSR, want); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	req = r.learned.shorten(req)
	v, err := r.verified(ctx, req, want)
	if err != nil {
		return nil, err
	}
	if v.leaf.NotAfter.After(v.end) {
		// Some sign for longer than their own CA lives. Now that its end is known, they
		// are asked for less.
		if v, err = r.verified(ctx, r.learned.shorten(req), want); err != nil {
			return nil, err
		}
		if v.leaf.NotAfter.After(v.end) {
			return nil, fmt.Errorf("its own CA ends at %s, before the certificate; give it a new CA", v.end.UTC().Format(time.RFC3339))
		}
	}
	return v.chain, nil
}

// verified has a request signed and looks at the answer.
func (r *remote) verified(ctx context.Context, req Request, want pki.Names) (verified, error) {
	a, err := r.sign(ctx, req)
	if err != nil {
		return verified{}, err
	}
	certificates, err := parseAnswer(a.certificates)
	if err != nil {
		return verified{}, fmt.Errorf("reading the certificate that it answered with: %w", err)
	}
	roots, err := rootsOf(a.ca)
	if err != nil {
		return verified{}, fmt.Errorf("reading the CA that it named beside the certificate: %w", err)
	}
	v, err := verify(req, want, certificates, roots)
	if err != nil {
		return verified{}, err
	}
	r.learned.heard(v)
	return v, nil
}

// parseAnswer is pki.Parse, but an empty text gives no certificate.
func parseAnswer(text []byte) ([]*x509.Certificate, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	return pki.Parse(text)
}

// rootsOf returns the roots among an issuer's CA certificates. There must be one:
// proxies verify to the end.
func rootsOf(caPEM []byte) (*x509.CertPool, error) {
	all, err := parseAnswer(caPEM)
	if err != nil {
		return nil, err
	}
	roots, found := x509.NewCertPool(), false
	for _, certificate := range all {
		if certificate.IsCA && pki.SelfSigned(certificate) {
			roots.AddCert(certificate)
			found = true
		}
	}
	if !found {
		return nil, errors.New("there is no root; configure the issuer with its whole chain, the self-signed root included")
	}
	return roots, nil
}
