package identity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Run renews the controller's certificate until ctx ends: when it is due, after a change of
// the trust, and after failures. Call it once.
func (m *Manager) Run(ctx context.Context) {
	var retry time.Duration
	for {
		err := m.renewOwn(ctx)
		if ctx.Err() != nil {
			return
		}
		m.report(err)
		sleep := m.untilDue()
		if err != nil {
			retry = min(max(2*retry, firstRetry), maxSleep)
			sleep = jitter(retry)
		} else {
			retry = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-time.After(sleep):
		}
	}
}

// report records the result of a renewal, logs it if it has changed, and closes ready once
// there is a certificate.
func (m *Manager) report(err error) {
	m.mu.Lock()
	former := m.fault
	m.fault = err
	m.mu.Unlock()
	switch {
	case err != nil && (former == nil || former.Error() != err.Error()):
		m.options.Log.Error("cannot renew the controller's certificate", "error", err)
	case err == nil && former != nil:
		m.options.Log.Info("renewed the controller's certificate after failures")
	}
	if now := m.current.Load(); now != nil && now.own != nil {
		m.announce()
	}
}

// SetTrust sets the signing issuer and the trusted roots. It returns at once; the
// controller's own certificate is renewed later. t must not be changed afterwards.
func (m *Manager) SetTrust(t *issuer.Trust) {
	m.mu.Lock()
	defer m.mu.Unlock()
	former := m.current.Load()
	next := &snapshot{signing: t.Signing, bundle: newBundle(t.Roots)}
	if former != nil {
		next.own = former.own
	}
	m.current.Store(next)
	m.wake.Ring()
	if former == nil || former.signing != next.signing {
		m.options.Log.Info("the signing issuer has changed", "issuer", next.signing.String())
	}
	if former == nil || string(former.pem) != string(next.pem) {
		var roots []string
		for _, root := range next.roots {
			r := describeRoot(root)
			roots = append(roots, fmt.Sprintf("%s (SHA-256 %s, until %s)", r.Subject, r.Fingerprint[:16], r.NotAfter.UTC().Format(time.RFC3339)))
		}
		m.options.Log.Info("the trust bundle has changed", "roots", roots)
		for subscriber := range m.subscribers {
			subscriber.Ring()
		}
	}
}

// renewOwn renews the controller's certificate if it is due. Errors should be retried.
func (m *Manager) renewOwn(ctx context.Context) error {
	now := m.current.Load()
	if now == nil {
		return errors.New("no issuer of certificates has been chosen")
	}
	if !now.own.isDue(now.signing, now.bundle) {
		return nil
	}
	next, err := m.issueOwn(ctx, now.signing, now.bundle)
	if err != nil {
		return fmt.Errorf("the controller's own certificate: %w", err)
	}
	m.metrics.issued.WithLabelValues(purposeController).Inc()
	m.options.Log.Info("renewed the controller's certificate", "certificate", describe(next.Leaf))
	m.mu.Lock()
	defer m.mu.Unlock()
	// The trust may have changed meanwhile; the next iteration handles that.
	now = m.current.Load()
	m.current.Store(&snapshot{signing: now.signing, bundle: now.bundle, own: next})
	return nil
}

// untilDue returns how long to wait for the next check. It is never long, because timers do
// not advance while a machine is suspended.
func (m *Manager) untilDue() time.Duration {
	wait := jitter(maxSleep)
	if now := m.current.Load(); now != nil && now.own != nil {
		// Round strips the monotonic reading, to compare with the wall clock.
		wait = min(wait, max(time.Until(now.own.due.Round(0)), 100*time.Millisecond))
	}
	return wait
}

// jitter shortens a duration by up to a tenth, so that replicas drift apart.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d/10)+1))
}
