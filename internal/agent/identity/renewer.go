package identity

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"time"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// renewer obtains the pod's certificate and trust bundle, writes them to the identity
// files and renews both. Unless a field's comment says otherwise, fields belong to run's
// goroutine.
type renewer struct {
	*holder
	signer     signer
	bundleFile string

	trust   trust
	mounted []byte
	hint    hint
	// next is when the next certificate is requested; requesting is set while a request is
	// in flight.
	next       time.Time
	requesting bool
	answers    chan signResult
	retry      kit.Backoff
	// early rings when another component needs newer files; lastEarly is when that last
	// brought a request forward.
	early     bell.Bell
	lastEarly time.Time
}

// signResult is the signing service's answer and the key it is for.
type signResult struct {
	key    *ecdsa.PrivateKey
	pem    keyPEM
	answer *identityv1.SignResponse
	// pool is the index of the root pool that verified the service.
	pool int
	err  error
}

func newRenewer(h *holder, signer signer, bundleFile string) *renewer {
	return &renewer{
		holder: h, signer: signer, bundleFile: bundleFile,
		answers: make(chan signResult, 1), early: bell.New(), retry: h.timings.Retry, hint: hint{backoff: h.timings.Hint},
	}
}

// run renews the files until ctx ends.
func (r *renewer) run(ctx context.Context) {
	r.readMounted()
	r.reuse()
	for {
		if !r.requesting && !kit.Now().Before(r.next) {
			r.startRequest(ctx)
		}
		wait := r.timings.Poll
		if !r.requesting {
			wait = min(wait, max(r.next.Sub(kit.Now()), 0))
		}
		select {
		case <-ctx.Done():
			return
		case s := <-r.answers:
			r.requesting = false
			r.handleAnswer(s)
		case <-r.early:
			if sooner := kit.Now().Add(kit.Jitter(r.timings.Reuse)); sooner.Before(r.next) && kit.Now().Sub(r.lastEarly) >= r.timings.EarlyRenewal {
				r.lastEarly, r.next = kit.Now(), sooner
			}
		case <-time.After(wait):
		}
		if r.readMounted() {
			r.handleMountedChange()
		}
	}
}

// renewEarly brings the next request forward, because the current identity or trust bundle
// may be outdated. It is rate-limited. Any goroutine may call it.
func (r *renewer) renewEarly() { r.early.Ring() }

// readMounted reads the mounted trust bundle and reports whether its roots changed. If
// the file is missing or unreadable, the last good roots stay.
func (r *renewer) readMounted() bool {
	text, err := os.ReadFile(r.bundleFile)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.logFailure("mounted bundle", fmt.Errorf("reading the mounted trust bundle: %w", err))
		}
		return false
	}
	if bytes.Equal(text, r.mounted) {
		return false
	}
	r.mounted = text
	roots, err := parseRoots(text)
	if err != nil {
		r.log.Error("the mounted trust bundle is invalid; keeping the last good one", "file", r.bundleFile, "error", err)
		return false
	}
	r.trust.mounted = roots
	return true
}

// handleMountedChange brings the next request forward after a change of the mounted file:
// to now if the pod has no certificate yet.
func (r *renewer) handleMountedChange() {
	switch {
	case r.current == nil && r.retry.Failures > 0:
		r.next = kit.Now()
	case r.current != nil && r.trust.differ():
		r.hint.backoff.Reset()
		r.bringForward(r.timings.Hint.First)
	}
}

// bringForward brings the next request forward, but not closer than pause to the last one
// that the hint caused.
func (r *renewer) bringForward(pause time.Duration) {
	due := r.hint.last.Add(pause)
	if due.Before(kit.Now()) {
		due = kit.Now()
	}
	r.hint.pending = true
	if due = due.Add(kit.Jitter(r.timings.Reuse)); due.Before(r.next) {
		r.log.Info("renewing the certificate early", "reason", "the mounted trust bundle differs from the latest answer")
		r.next = due
	}
}

// hint tracks requests caused by changes of the mounted file, so that frequent changes
// cannot flood the signing service.
type hint struct {
	// pending is set if the file caused the next request; last is when the file last
	// caused one.
	pending bool
	last    time.Time
	// backoff is how long to wait after last if the file still differs.
	backoff kit.Backoff
}

// retryHint schedules another request, at growing intervals, while the file that caused
// the last one still differs from the answer: the controller may have answered with an
// outdated bundle.
func (r *renewer) retryHint() {
	if !r.hint.pending {
		return
	}
	r.hint.pending, r.hint.last = false, kit.Now()
	if r.trust.differ() {
		r.bringForward(r.hint.backoff.Next())
	}
}

// reuse adopts the identity files of an earlier agent, so that the proxy of a restarted
// container need not wait for the controller. They are renewed soon, since the roots may
// have changed. The roots of the latest answer are adopted even if the certificate has
// become invalid.
func (r *renewer) reuse() {
	m, err := r.store.read()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("the identity files are unreadable; replacing them", "error", err)
		}
		return
	}
	roots, err := parseRoots(m.bundle)
	if err != nil {
		r.log.Info("the identity files have become invalid; replacing them", "reason", "the trust bundle: "+err.Error())
		return
	}
	r.trust.answered = roots
	certs, err := r.inspect(m, roots)
	if err != nil {
		r.log.Info("the identity files have become invalid; replacing them", "reason", err.Error())
		return
	}
	if err := r.store.write(m); err != nil {
		r.log.Warn("the identity files cannot be used", "error", err)
		return
	}
	r.log.Info("using the identity files of an earlier start until they are renewed", "until", pki.End(certs))
	r.next = kit.Now().Add(kit.Jitter(r.timings.Reuse))
	r.setCurrent(m, certs)
}

// startRequest requests a certificate in a separate goroutine, because run must follow the
// mounted file meanwhile.
func (r *renewer) startRequest(ctx context.Context) {
	pools := r.trust.pools()
	if len(pools) == 0 {
		r.fail(&failure{noBundle, fmt.Errorf("there is no trust bundle in %s yet; the controller keeps it in ConfigMap outrigger-ca of each monitored namespace", r.bundleFile)})
		return
	}
	r.requesting = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, r.timings.Sign)
		defer cancel()
		r.answers <- r.request(ctx, pools)
	}()
}

// request requests a certificate for a new key.
func (r *renewer) request(ctx context.Context, pools []*x509.CertPool) signResult {
	key, err := pki.NewKey()
	if err != nil {
		return signResult{err: &failure{internal, err}}
	}
	pem, err := pki.EncodeKey(key)
	if err != nil {
		return signResult{err: &failure{internal, err}}
	}
	request, err := r.subject.request(key)
	if err != nil {
		return signResult{err: &failure{internal, err}}
	}
	answer, pool, err := r.signer.sign(ctx, request, pools)
	return signResult{key, pem, answer, pool, err}
}

// handleAnswer installs an answer and schedules the next renewal.
func (r *renewer) handleAnswer(s signResult) {
	m, certs, err := r.install(s)
	if err != nil {
		r.fail(err)
		return
	}
	if r.retry.Failures > 0 {
		r.log.Info("obtained a certificate again", "attempts", r.retry.Failures+1)
	}
	r.retry.Reset()
	clear(r.logged)
	r.next = pki.Renewal(kit.Now(), pki.End(certs))
	r.metrics.Renewals.Add(1)
	r.log.Info("certificate issued", "identity", r.subject.identity.String(), "until", pki.End(certs))
	r.setCurrent(m, certs)
	r.retryHint()
	// Memory freed by TLS and gRPC is not needed again for hours.
	debug.FreeOSMemory()
}

// install verifies an answer against its own roots and writes it to the files.
func (r *renewer) install(s signResult) (material, []*x509.Certificate, error) {
	fail := func(reason string, err error) (material, []*x509.Certificate, error) {
		return material{}, nil, &failure{reason, err}
	}
	if s.err != nil {
		return material{}, nil, s.err
	}
	roots, err := parseRoots(s.answer.GetBundle())
	if err != nil {
		return fail(badAnswer, fmt.Errorf("the answer's trust bundle: %w", err))
	}
	certs, err := pki.Parse(s.answer.GetChain())
	if err != nil {
		return fail(badAnswer, fmt.Errorf("the answer's certificate: %w", err))
	}
	if err := r.subject.checkLeaf(certs, s.key.Public()); err != nil {
		return fail(badAnswer, err)
	}
	if err := verify(certs, roots); err != nil {
		return fail(badAnswer, err)
	}
	m := material{key: s.pem, chain: s.answer.GetChain(), bundle: roots.Encode()}
	if err := r.store.write(m); err != nil {
		return fail(noStore, err)
	}
	if s.pool > 0 {
		r.log.Warn("the signing service was verified by the mounted trust bundle, not by its latest answer; the new answer replaces it")
	}
	if r.current != nil && !bytes.Equal(r.current.bundle, m.bundle) {
		r.log.Info("the trust bundle has changed")
	}
	r.trust.answered = roots
	return m, certs, nil
}

// fail logs and counts a failure and schedules the next attempt.
func (r *renewer) fail(err error) {
	reason := internal
	if f := (*failure)(nil); errors.As(err, &f) {
		reason = f.reason
	}
	r.metrics.Failed(reason)
	r.logFailure(reason, fmt.Errorf("no certificate: %w", err))
	r.retry.Most = r.timings.RetryUrgent
	if left := r.left(); left > 0 {
		// The rest of a short lifetime must suffice for several attempts.
		r.retry.Most = min(r.timings.Retry.Most, max(left/10, r.timings.Retry.First))
	}
	r.next = kit.Now().Add(kit.Spread(r.retry.Next()))
}
