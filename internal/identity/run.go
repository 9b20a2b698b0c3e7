package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Run keeps the bundle and the controller's certificate until ctx ends. It is called
// once.
//
// These things can happen: other issuers are chosen or somebody asks for a refresh; it
// is time to ask for roots again, to renew the controller's certificate or to try
// again what has failed; the end.
func (m *Manager) Run(ctx context.Context) {
	defer close(m.ended)
	k := keeper{Manager: m}
	for {
		m.mu.Lock()
		wanted, waiting := m.wanted, m.waiting
		m.waiting = nil
		m.mu.Unlock()

		err := k.round(ctx, wanted)
		if ctx.Err() != nil {
			err = ctx.Err()
		} else {
			m.tell(err)
			m.announce()
		}
		for _, done := range waiting {
			done <- err
		}
		timer := time.NewTimer(k.rest(err))
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

// announce closes ready once there is all that makes the manager ready.
func (m *Manager) announce() {
	if now := m.present.Load(); now == nil || now.own == nil {
		return
	}
	select {
	case <-m.ready:
	default:
		close(m.ready)
	}
}

// tell notes what is wrong now, and logs it when it changes.
func (m *Manager) tell(err error) {
	m.mu.Lock()
	former := m.fault
	m.fault = err
	m.mu.Unlock()
	switch {
	case err != nil && (former == nil || former.Error() != err.Error()):
		m.options.Log.Error("certificates are not kept as they should be", "error", err)
	case err == nil && former != nil:
		m.options.Log.Info("certificates are kept as they should be again")
	}
}

// keeper is what Run alone knows.
type keeper struct {
	*Manager
	known []known
	retry time.Duration
}

// round does all that there is to be done now for the mesh's own roots. The error is
// worth another try.
func (k *keeper) round(ctx context.Context, wanted choice) error {
	if wanted.signing == nil {
		return errors.New("no issuer of certificates has been chosen")
	}
	err := k.askRoots(ctx, wanted)
	now := k.publish(wanted)
	if now == nil {
		return err
	}
	if now.own.isDue(now.signing, now.bundle) {
		err = errors.Join(err, k.renewOwn(ctx, now))
	}
	return err
}

// askRoots asks all issuers at once, and keeps the last good answer of those that give
// none.
func (k *keeper) askRoots(ctx context.Context, wanted choice) error {
	ctx, cancel := context.WithTimeout(ctx, rootsTimeout)
	defer cancel()
	answers, faults := make([][]*x509.Certificate, len(wanted.all)), make([]error, len(wanted.all))
	var asking sync.WaitGroup
	for i, issuer := range wanted.all {
		asking.Go(func() {
			text, err := issuer.Roots(ctx)
			if err == nil {
				answers[i], err = parseRoots(text)
			}
			faults[i] = err
		})
	}
	asking.Wait()

	var next []known
	for i, issuer := range wanted.all {
		if faults[i] != nil {
			k.metrics.refresh(false)
			faults[i] = fmt.Errorf("the roots of %s: %w", name(issuer), faults[i])
			if last := k.rootsOf(issuer); last != nil {
				next = append(next, known{issuer, last})
			}
			continue
		}
		k.metrics.refresh(true)
		next = append(next, known{issuer, answers[i]})
	}
	k.known = next
	return errors.Join(faults...)
}

func (k *keeper) rootsOf(i issuer.Issuer) []*x509.Certificate {
	for _, known := range k.known {
		if known.issuer == i {
			return known.roots
		}
	}
	return nil
}

// publish puts into force what is known, and returns it; nil as long as nothing can be.
func (k *keeper) publish(wanted choice) *present {
	former := k.present.Load()
	complete := len(k.known) == len(wanted.all)
	if former == nil && !complete {
		// Proxies may hold certificates of the issuer that is missing.
		return nil
	}
	var roots []*x509.Certificate
	for _, known := range k.known {
		roots = append(roots, known.roots...)
	}
	next := &present{signing: wanted.signing}
	if former != nil {
		next.own = former.own
		if !complete {
			roots = append(roots, former.roots...)
		}
		if k.rootsOf(wanted.signing) == nil {
			next.signing = former.signing
		}
	}
	next.bundle = newBundle(roots)
	bundleChanged := former == nil || !bytes.Equal(former.pem, next.pem)
	signingChanged := former == nil || former.signing != next.signing
	if !bundleChanged && !signingChanged {
		return former
	}
	k.present.Store(next)
	if signingChanged {
		k.options.Log.Info("another issuer signs", "issuer", name(next.signing))
	}
	if bundleChanged {
		k.options.Log.Info("the trust bundle has changed", "roots", describeRoots(next.roots))
		k.mu.Lock()
		defer k.mu.Unlock()
		for subscriber := range k.subscribers {
			notify(subscriber)
		}
	}
	return next
}

func describeRoots(roots []*x509.Certificate) []string {
	var list []string
	for _, root := range roots {
		r := describeRoot(root)
		list = append(list, fmt.Sprintf("%s (SHA-256 %s, until %s)", r.Subject, r.Fingerprint[:16], r.NotAfter.UTC().Format(time.RFC3339)))
	}
	return list
}

// rest is how long there is nothing to do unless somebody asks. Timers stand still
// while a machine is suspended and certificates do not, so it is never long.
func (k *keeper) rest(err error) time.Duration {
	if err != nil {
		k.retry = min(max(2*k.retry, firstRetry), k.options.RefreshInterval)
		return jitter(k.retry)
	}
	k.retry = 0
	rest := jitter(k.options.RefreshInterval)
	if now := k.present.Load(); now != nil && now.own != nil {
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
