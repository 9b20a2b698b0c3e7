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

// remote is an external issuer, whose answers are checked against the request.
type remote struct {
	// name is the prefix of its errors.
	name string
	// sign gets one request signed, whose names have been checked.
	sign    func(context.Context, Request) (answer, error)
	learned *learned
}

// String describes the issuer for logs and errors.
func (r *remote) String() string { return r.name }

// answer is an external issuer's answer, as PEM.
type answer struct {
	// certificates are the leaf and its chain; ca are the issuer's CA certificates, which
	// must include a root.
	certificates, ca []byte
}

func newRemote(name string, sign func(context.Context, Request) (answer, error)) *remote {
	return &remote{name, sign, &learned{probing: make(chan struct{}, 1)}}
}

// Issue gets the CSR signed. ctx should have a deadline. A certificate that does not match
// the request is an error.
func (r *remote) Issue(ctx context.Context, req Request) ([]*x509.Certificate, error) {
	chain, err := r.request(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return chain, nil
}

// Roots returns the root that the issuer returns with each certificate, and earlier roots
// while certificates that they signed are valid. If it has learned none for ten minutes, it
// issues an unused certificate to learn the root.
func (r *remote) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	roots, err := r.learned.get(ctx, r.request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return roots, nil
}

func (r *remote) request(ctx context.Context, req Request) ([]*x509.Certificate, error) {
	want, err := req.names()
	if err != nil {
		return nil, err
	}
	if err := pki.CheckRequest(req.CSR, want); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnchanged, err)
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
		// Some issuers sign for longer than their own CA is valid. Its expiry is known now,
		// so request a shorter lifetime.
		if v, err = r.verified(ctx, r.learned.shorten(req), want); err != nil {
			return nil, err
		}
		if v.leaf.NotAfter.After(v.end) {
			return nil, fmt.Errorf("its own CA expires at %s, before the certificate; give it a new CA", v.end.UTC().Format(time.RFC3339))
		}
	}
	return v.chain, nil
}

// verified gets a request signed and checks the answer.
func (r *remote) verified(ctx context.Context, req Request, want pki.Names) (verified, error) {
	a, err := r.sign(ctx, req)
	if err != nil {
		return verified{}, err
	}
	certificates, err := parseAnswer(a.certificates)
	if err != nil {
		return verified{}, fmt.Errorf("reading the certificate in its answer: %w", err)
	}
	roots, err := rootsOf(a.ca)
	if err != nil {
		return verified{}, fmt.Errorf("reading the CA in its answer: %w", err)
	}
	v, err := verify(req, want, certificates, roots)
	if err != nil {
		return verified{}, err
	}
	r.learned.add(v)
	return v, nil
}

// parseAnswer is pki.Parse, but for an empty text it returns no certificates.
func parseAnswer(text []byte) ([]*x509.Certificate, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	return pki.Parse(text)
}

// rootsOf returns the roots among an issuer's CA certificates. It is an error if there is
// none, because proxies verify up to a root.
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
		return nil, errors.New("there is no root; configure the issuer with its complete chain, including the self-signed root")
	}
	return roots, nil
}
