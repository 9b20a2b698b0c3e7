package servingcert

import (
	"context"
	"crypto/x509"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// strangerFactor times the propagation delay is how long a CA that is not ours
// stays in the caBundle. It is most likely the former CA of a replica that has
// yet to learn of the new one.
const strangerFactor = 6

// publisher decides which credential is served and what the caBundle holds. All
// but the atomic fields belongs to the goroutine of run.
type publisher struct {
	client  kubernetes.Interface
	name    string
	delay   time.Duration
	metrics *metrics
	log     *slog.Logger
	// informer follows the configuration; nil when there is none to keep.
	informer cache.SharedIndexInformer
	events   chan struct{}

	// next is a credential whose CA the API servers may not know yet.
	current, next *credential
	// seen says since when each CA has been in all webhooks of the configuration.
	seen map[fingerprint]time.Time
	// strangers says since when each CA that is not ours has been in any of them.
	strangers map[fingerprint]time.Time
	missing   bool
	backoff   wait.Backoff
	// replaced is the configuration that the last patch was made for: until the
	// informer has the patched one there is nothing to compare with.
	replaced *admissionv1.MutatingWebhookConfiguration

	// serving is current, for the handshakes.
	serving atomic.Pointer[credential]
	// wanted is the bundle that the caBundle must hold.
	wanted atomic.Pointer[pki.Bundle]
	// trusted is what all webhooks of the configuration trust; nil while that is
	// not known or there are none.
	trusted atomic.Pointer[pki.Bundle]
}

func newPublisher(options Options, metrics *metrics) *publisher {
	p := &publisher{
		client:    options.Client,
		name:      options.WebhookConfiguration,
		delay:     options.PropagationDelay,
		metrics:   metrics,
		log:       options.Logger,
		events:    make(chan struct{}, 1),
		seen:      map[fingerprint]time.Time{},
		strangers: map[fingerprint]time.Time{},
		backoff:   newBackoff(),
	}
	if p.name != "" {
		p.informer = admissioninformers.NewFilteredMutatingWebhookConfigurationInformer(p.client, 0, cache.Indexers{}, byName(p.name))
	}
	return p
}

// run is the one loop. What can happen: the issuer has a new credential, the
// configuration has changed, or something that was waited for is due. Each time
// everything is looked at anew.
func (p *publisher) run(ctx context.Context, offers <-chan *credential) {
	var informing sync.WaitGroup
	defer informing.Wait()
	if p.informer != nil {
		informing.Go(func() { runInformer(ctx, p.informer, func() { notify(p.events) }) })
		informing.Go(func() {
			// An empty list makes no event, but a missing configuration is news too.
			if cache.WaitForCacheSync(ctx.Done(), p.informer.HasSynced) {
				notify(p.events)
			}
		})
	}
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case p.next = <-offers:
		case <-p.events:
		case <-timer.C:
		}
		timer.Reset(max(time.Until(p.step(ctx)), 0))
	}
}

// step does all that is due and returns when something will be due next.
func (p *publisher) step(ctx context.Context) time.Time {
	now := time.Now()
	wake := now.Add(longestSleep)
	config, known := p.configuration()
	p.observe(config, known, now)
	if p.next != nil {
		if ripe := p.ripeAt(config, known); ripe.After(now) {
			wake = earlier(wake, ripe)
		} else {
			p.serve(p.next)
		}
	}
	if p.current == nil {
		return wake
	}
	wanted := p.current.roots
	if p.next != nil {
		wanted = wanted.With(p.next.roots)
	}
	p.wanted.Store(&wanted)
	if config == nil {
		return wake
	}
	return earlier(wake, p.publish(ctx, config, wanted, now))
}

// configuration returns the configuration, nil if there is none with a webhook in
// it, and whether that is known.
func (p *publisher) configuration() (config *admissionv1.MutatingWebhookConfiguration, known bool) {
	if p.informer == nil {
		return nil, true
	}
	if !p.informer.HasSynced() {
		return nil, false
	}
	config = stored[admissionv1.MutatingWebhookConfiguration](p.informer, p.name)
	if config == nil || len(config.Webhooks) == 0 {
		return nil, true
	}
	return config, true
}

// observe takes down which CAs the configuration trusts and since when.
func (p *publisher) observe(config *admissionv1.MutatingWebhookConfiguration, known bool, now time.Time) {
	if config == nil {
		clear(p.seen)
		p.trusted.Store(nil)
		if known && p.name != "" && !p.missing {
			p.missing = true
			p.metrics.patches.WithLabelValues(resultMissing).Inc()
			p.log.Warn("waiting for the MutatingWebhookConfiguration, or for a webhook in it, to keep its caBundle", "name", p.name)
		}
		return
	}
	p.missing = false
	trusted := pki.Readable(config.Webhooks[0].ClientConfig.CABundle)
	for _, webhook := range config.Webhooks[1:] {
		trusted = trusted.Only(pki.Readable(webhook.ClientConfig.CABundle).Has)
	}
	seen := map[fingerprint]time.Time{}
	for _, ca := range trusted {
		seen[fingerprintOf(ca)] = since(p.seen, ca, now)
	}
	p.seen = seen
	p.trusted.Store(&trusted)
}

// ripeAt returns when next may be served: at once if it is the first or has the CA
// of the current one, once the API servers know its CA, or when the current one is
// of no use any more. With the configuration neither seen nor known to be missing
// nothing but the last is safe.
func (p *publisher) ripeAt(config *admissionv1.MutatingWebhookConfiguration, known bool) time.Time {
	if p.current == nil {
		return p.next.since
	}
	ripe := p.current.expiry
	for _, ca := range p.next.anchors {
		if p.current.anchors.Has(ca) {
			return p.next.since
		}
		if at, ok := p.seen[fingerprintOf(ca)]; ok {
			ripe = earlier(ripe, at.Add(p.delay))
		}
	}
	if known && config == nil {
		ripe = earlier(ripe, p.next.since.Add(p.delay))
	}
	return ripe
}

func (p *publisher) serve(c *credential) {
	p.current, p.next = c, nil
	p.serving.Store(c)
	p.metrics.setExpiry(c.expiry)
}

// since returns when the CA was first found, which is now if times do not know it.
func since(times map[fingerprint]time.Time, ca *x509.Certificate, now time.Time) time.Time {
	if first, ok := times[fingerprintOf(ca)]; ok {
		return first
	}
	return now
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
