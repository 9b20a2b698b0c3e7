package identity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Run renews the controller's certificate until ctx ends. It is called once.
//
// These things can happen: the trust changes; it is time to renew the certificate or to
// try again what has failed; the end.
func (m *Manager) Run(ctx context.Context) {
	var retry time.Duration
	for {
		err := m.renewOwn(ctx)
		if ctx.Err() != nil {
			return
		}
		m.report(err)
		rest := m.rest()
		if err != nil {
			retry = min(max(2*retry, firstRetry), longestRest)
			rest = jitter(retry)
		} else {
			retry = 0
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// report notes what is wrong now, logs it when it changes, and closes ready once there is
// all that makes the manager ready.
func (m *Manager) report(err error) {
	m.mu.Lock()
	former := m.fault
	m.fault = err
	m.mu.Unlock()
	switch {
	case err != nil && (former == nil || former.Error() != err.Error()):
		m.options.Log.Error("the controller's certificate could not be renewed", "error", err)
	case err == nil && former != nil:
		m.options.Log.Info("the controller's certificate is renewed again")
	}
	if now := m.present.Load(); now != nil && now.own != nil {
		m.announce()
	}
}

// SetTrust puts into force who signs and which roots are trusted. It returns at once; the
// controller's own certificate follows. Nobody may change t afterwards.
func (m *Manager) SetTrust(t *issuer.Trust) {
	m.mu.Lock()
	defer m.mu.Unlock()
	former := m.present.Load()
	next := &present{signing: t.Signing, bundle: newBundle(t.Roots)}
	if former != nil {
		next.own = former.own
	}
	m.present.Store(next)
	notify(m.wake)
	if former == nil || former.signing != next.signing {
		m.options.Log.Info("another issuer signs", "issuer", name(next.signing))
	}
	if former == nil || string(former.pem) != string(next.pem) {
		var roots []string
		for _, root := range next.roots {
			r := describeRoot(root)
			roots = append(roots, fmt.Sprintf("%s (SHA-256 %s, until %s)", r.Subject, r.Fingerprint[:16], r.NotAfter.UTC().Format(time.RFC3339)))
		}
		m.options.Log.Info("the trust bundle has changed", "roots", roots)
		for subscriber := range m.subscribers {
			notify(subscriber)
		}
	}
}

// renewOwn puts another certificate of the controller into force if it is time. The error
// is worth another try.
func (m *Manager) renewOwn(ctx context.Context) error {
	now := m.present.Load()
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
	m.options.Log.Info("obtained a certificate of the controller", "certificate", describe(next.Leaf))
	m.mu.Lock()
	defer m.mu.Unlock()
	// The trust may have changed meanwhile, which the next round sees.
	now = m.present.Load()
	m.present.Store(&present{signing: now.signing, bundle: now.bundle, own: next})
	return nil
}

// rest is how long there is nothing to do unless the trust changes. Timers stand still
// while a machine is suspended and certificates do not, so it is never long.
func (m *Manager) rest() time.Duration {
	rest := jitter(longestRest)
	if now := m.present.Load(); now != nil && now.own != nil {
		// Without its monotonic reading the time is compared with the wall clock.
		rest = min(rest, max(time.Until(now.own.due.Round(0)), 100*time.Millisecond))
	}
	return rest
}

// jitter takes up to a tenth off, so that replicas drift apart.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d/10)+1))
}

// name says which issuer it is, in logs and errors.
func name(i issuer.Issuer) string {
	if named, ok := i.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("the issuer %T", i)
}
