package root

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// evaluate reads the sources, decides, stores and publishes. It returns when the next
// evaluation is due.
func (r *Roots) evaluate(ctx context.Context, running *sync.WaitGroup) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := time.Now()
	r.inUse = make(map[string]issuer.Issuer)
	roots, names, err := r.readSources(limited, now)
	r.watch(ctx, names, running)
	if err != nil {
		return retryInterval, err
	}
	before, secret, err := r.state(limited)
	if err != nil {
		return retryInterval, err
	}
	want := desiredOf(roots, before)
	after, wake := before.advance(want, now, issuer.Life(r.opts.Life), r.opts.Propagation)
	if after.Signer.ID == "" {
		r.updateReport(roots, after, now)
		return retryInterval, fmt.Errorf("no CA can sign: %s", firstProblem(roots))
	}
	if err := r.save(limited, secret, after); err != nil {
		return retryInterval, err
	}
	err = r.publish(limited, want, after)
	r.updateReport(roots, after, now)
	if err != nil {
		return retryInterval, err
	}
	r.issuers = r.inUse
	rest := pollInterval
	if slices.ContainsFunc(roots, func(found *rootSource) bool {
		return slices.ContainsFunc(found.problems, func(p problem) bool { return p.retry })
	}) {
		rest = retryInterval
	}
	if !wake.IsZero() {
		rest = max(min(rest, time.Until(wake)), 0)
	}
	return rest, nil
}

// watch watches exactly these Secrets.
func (r *Roots) watch(ctx context.Context, names []string, running *sync.WaitGroup) {
	for name, cancel := range r.watches {
		if !slices.Contains(names, name) {
			cancel()
			delete(r.watches, name)
		}
	}
	for _, name := range names {
		if r.watches[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		r.watches[name] = cancel
		running.Go(func() { r.opts.Secrets.Watch(ctx, name, r.Trigger) })
	}
}

// firstProblem returns why nothing can sign.
func firstProblem(roots []*rootSource) string {
	for _, found := range roots {
		if len(found.problems) > 0 {
			p := found.problems[0]
			return found.source + ": " + p.message
		}
	}
	return "there is neither a CA's Secret nor a MeshRootCertificate"
}
