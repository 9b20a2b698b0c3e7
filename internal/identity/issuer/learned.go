package issuer

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	// probeName is what the certificate is for that is issued to learn the roots. It
	// is below a domain that nobody can have.
	probeName = "root-probe.outrigger.invalid"
	// probeLife is short; nobody has the key a moment later.
	probeLife = time.Hour
	// learnEvery is after how long a root that was heard of is asked for again.
	learnEvery = 10 * time.Minute
)

// learned knows the roots of an issuer elsewhere by what it issues, since that alone
// tells which root verifies it. It is safe for use by many goroutines.
type learned struct {
	mu sync.Mutex
	// roots has the newest first. The others are kept as long as a certificate that
	// they verify is valid.
	roots []learnedRoot
	// at is when the newest was last heard of, and end when its chain ends.
	at, end time.Time
	// probing lets one caller ask at a time.
	probing chan struct{}
}

type learnedRoot struct {
	certificate *x509.Certificate
	until       time.Time
}

func newLearned() *learned { return &learned{probing: make(chan struct{}, 1)} }

// heard takes note of an answer.
func (l *learned) heard(v verified) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.end = time.Now(), v.end
	r := learnedRoot{v.root, v.leaf.NotAfter}
	if at := slices.IndexFunc(l.roots, func(o learnedRoot) bool { return o.certificate.Equal(v.root) }); at >= 0 {
		if l.roots[at].until.After(r.until) {
			r.until = l.roots[at].until
		}
		l.roots = slices.Delete(l.roots, at, at+1)
	}
	l.roots = slices.Insert(l.roots, 0, r)
}

// shorten returns a request for no longer than the issuer's own chain is valid, as
// far as that is known.
func (l *learned) shorten(req Request) Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A minute is for the time that the issuer takes.
	if left := time.Until(l.end) - time.Minute; left > 0 && left < req.Life {
		req.Life = left
	}
	return req
}

// known returns the roots as PEM, or nil if there is none, and whether they have been
// heard of of late.
func (l *learned) known() (rootsPEM []byte, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var newest *x509.Certificate
	if len(l.roots) > 0 {
		newest = l.roots[0].certificate
	}
	l.roots = slices.DeleteFunc(l.roots, func(r learnedRoot) bool {
		return !now.Before(r.certificate.NotAfter) || r.certificate != newest && !now.Before(r.until)
	})
	var valid []*x509.Certificate
	for _, r := range l.roots {
		valid = append(valid, r.certificate)
	}
	// In one order, so that who issued last does not look like a change.
	slices.SortFunc(valid, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return pki.Encode(valid...), len(valid) > 0 && now.Sub(l.at) < learnEvery
}

// get returns the roots. Where they have not been heard of of late it has issue sign a
// certificate, and throws that away; an error counts only while no root is known.
func (l *learned) get(ctx context.Context, issue func(context.Context, Request) ([]byte, error)) ([]byte, error) {
	rootsPEM, fresh := l.known()
	if fresh {
		return rootsPEM, nil
	}
	select {
	case l.probing <- struct{}{}:
		defer func() { <-l.probing }()
	case <-ctx.Done():
		return rootsOr(rootsPEM, ended(ctx))
	}
	if rootsPEM, fresh = l.known(); fresh {
		return rootsPEM, nil
	}
	req, err := probe()
	if err == nil {
		_, err = issue(ctx, req)
	}
	if err != nil {
		return rootsOr(rootsPEM, fmt.Errorf("asking for a certificate for %s to learn the roots: %w", probeName, err))
	}
	rootsPEM, _ = l.known()
	return rootsPEM, nil
}

func rootsOr(rootsPEM []byte, err error) ([]byte, error) {
	if rootsPEM != nil {
		return rootsPEM, nil
	}
	return nil, err
}

// probe returns a request whose key nobody keeps.
func probe() (Request, error) {
	key, err := pki.NewKey()
	if err != nil {
		return Request{}, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: probeName}, DNSNames: []string{probeName},
	}, key)
	if err != nil {
		return Request{}, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return Request{}, err
	}
	return Request{CSR: csr, CommonName: probeName, DNSNames: []string{probeName}, Life: probeLife}, nil
}

// ended is the error of a context that ended while an issuer was waited for. A
// deadline is the issuer's fault; that the caller went away is not.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != context.DeadlineExceeded {
		return err
	}
	return fmt.Errorf("%w: it did not answer in time: %w", ErrUnavailable, ctx.Err())
}
