package issuer

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	// probeName is the name in certificates issued to learn the roots. Nobody can own a
	// name in the domain "invalid".
	probeName = "root-probe.outrigger.invalid"
	// probeLife is the lifetime of such a certificate, whose key is discarded at once.
	probeLife = time.Hour
	// learnEvery is how long a learned root counts as current.
	learnEvery = 10 * time.Minute
)

// learned learns the roots of an external issuer from the certificates that it issues,
// since only they show which root verifies them. It is safe for use by many goroutines.
type learned struct {
	mu sync.Mutex
	// roots are sorted newest first. Older ones are kept while a certificate that they
	// verify is valid.
	roots []learnedRoot
	// at is when the newest root was last seen; end is when its chain expires.
	at, end time.Time
	// probing is held by the only caller that may probe.
	probing chan struct{}
}

type learnedRoot struct {
	certificate *x509.Certificate
	until       time.Time
}

// add records the root of an answer.
func (l *learned) add(v verified) {
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

// shorten limits a request's lifetime to that of the issuer's own chain, if known.
func (l *learned) shorten(req Request) Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Leave a minute for the issuer's response time.
	if left := time.Until(l.end) - time.Minute; left > 0 && left < req.Life {
		req.Life = left
	}
	return req
}

// known returns the roots, or nil if there are none, and whether they are current.
func (l *learned) known() (roots pki.Bundle, fresh bool) {
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
	// A different order must not look like a change.
	return pki.NewBundle(valid...), len(valid) > 0 && now.Sub(l.at) < learnEvery
}

// get returns the roots. If they are not current, it issues a certificate, which it
// discards. Errors of that are ignored if a root is known.
func (l *learned) get(ctx context.Context, issue func(context.Context, Request) ([]*x509.Certificate, error)) (pki.Bundle, error) {
	roots, fresh := l.known()
	if fresh {
		return roots, nil
	}
	err := l.probe(ctx, issue)
	if roots, _ = l.known(); len(roots) > 0 {
		return roots, nil
	}
	return nil, err
}

// probe learns the roots, unless another caller has just done so.
func (l *learned) probe(ctx context.Context, issue func(context.Context, Request) ([]*x509.Certificate, error)) error {
	select {
	case l.probing <- struct{}{}:
		defer func() { <-l.probing }()
	case <-ctx.Done():
		return ended(ctx)
	}
	if _, fresh := l.known(); fresh {
		return nil
	}
	req, _, err := NewServerRequest(probeName, []string{probeName}, nil, probeLife)
	if err == nil {
		_, err = issue(ctx, req)
	}
	if err != nil {
		return fmt.Errorf("requesting a certificate for %s to learn the roots: %w", probeName, err)
	}
	return nil
}

// ended returns the error for a context that ended during a request. A deadline means that
// the issuer is unavailable; a canceled context does not.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != context.DeadlineExceeded {
		return err
	}
	return fmt.Errorf("%w: it did not answer in time: %w", ErrUnavailable, ctx.Err())
}
