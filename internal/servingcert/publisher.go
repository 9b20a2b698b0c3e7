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

	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// foreignFactor times the propagation delay is how long a CA that this replica does not
// want stays in the caBundle. It is most likely the former CA of a replica that has not
// noticed the new one yet.
const foreignFactor = 6

// publisher decides which credential is served and what the caBundle contains. All but
// the atomic fields belong to run's goroutine.
type publisher struct {
	client  kubernetes.Interface
	name    string
	delay   time.Duration
	metrics *metrics
	log     *slog.Logger
	// informer watches the configuration; nil if there is none to maintain.
	informer cache.SharedIndexInformer
	events   bell.Bell

	// next is a credential whose CA the API servers may not know yet.
	current, next *credential
	// seen holds since when each CA has been in all webhooks of the configuration.
	seen map[string]time.Time
	// foreign holds since when each unwanted CA has been in any of them.
	foreign map[string]time.Time
	missing bool
	backoff wait.Backoff
	// replaced is the configuration before the last patch. While the informer still
	// returns it, there is nothing to compare with.
	replaced *admissionv1.MutatingWebhookConfiguration

	// serving is current, for the handshakes.
	serving atomic.Pointer[credential]
	// wanted are the CAs that the caBundle must contain.
	wanted atomic.Pointer[pki.Bundle]
	// trusted are the CAs that all webhooks of the configuration trust; nil while
	// unknown or if there are no webhooks.
	trusted atomic.Pointer[pki.Bundle]
}

func newPublisher(options Options, metrics *metrics) *publisher {
	p := &publisher{
		client:  options.Client,
		name:    options.WebhookConfiguration,
		delay:   options.PropagationDelay,
		metrics: metrics,
		log:     options.Logger,
		events:  bell.New(),
		seen:    map[string]time.Time{},
		foreign: map[string]time.Time{},
		backoff: newBackoff(),
	}
	if p.name != "" {
		p.informer = admissioninformers.NewFilteredMutatingWebhookConfigurationInformer(p.client, 0, cache.Indexers{}, byName(p.name))
	}
	return p
}

// run is the publisher's loop. It evaluates everything when the issuer has a new
// credential, when the configuration has changed, and when a deadline has passed.
func (p *publisher) run(ctx context.Context, offers <-chan *credential) {
	var informing sync.WaitGroup
	defer informing.Wait()
	if p.informer != nil {
		informing.Go(func() { runInformer(ctx, p.informer, p.events.Ring) })
		informing.Go(func() {
			// An empty list causes no event, but a missing configuration must be handled.
			if cache.WaitForCacheSync(ctx.Done(), p.informer.HasSynced) {
				p.events.Ring()
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

// step does everything that is due and returns the next deadline.
func (p *publisher) step(ctx context.Context) time.Time {
	now := time.Now()
	wake := now.Add(longestSleep)
	config, known := p.configuration()
	p.observe(config, known, now)
	if p.next != nil {
		if at := p.servableAt(config, known); at.After(now) {
			wake = earlier(wake, at)
		} else {
			p.serve(p.next)
		}
	}
	if p.current == nil {
		return wake
	}
	wanted := p.current.CABundle
	if p.next != nil {
		wanted = wanted.With(p.next.CABundle)
	}
	p.wanted.Store(&wanted)
	if config == nil {
		return wake
	}
	return earlier(wake, p.publish(ctx, config, wanted, now))
}

// configuration returns the configuration and whether it is known. It is nil if it does
// not exist or has no webhooks.
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

// observe records which CAs the configuration trusts and since when.
func (p *publisher) observe(config *admissionv1.MutatingWebhookConfiguration, known bool, now time.Time) {
	if config == nil {
		clear(p.seen)
		p.trusted.Store(nil)
		if known && p.name != "" && !p.missing {
			p.missing = true
			p.metrics.patches.WithLabelValues(metric.ResultMissing).Inc()
			p.log.Warn("waiting for the MutatingWebhookConfiguration, or for a webhook in it, to write its caBundle", "name", p.name)
		}
		return
	}
	p.missing = false
	trusted := pki.Readable(config.Webhooks[0].ClientConfig.CABundle)
	for _, webhook := range config.Webhooks[1:] {
		trusted = trusted.Only(pki.Readable(webhook.ClientConfig.CABundle).Has)
	}
	seen := map[string]time.Time{}
	for _, ca := range trusted {
		seen[pki.Fingerprint(ca)] = since(p.seen, ca, now)
	}
	p.seen = seen
	p.trusted.Store(&trusted)
}

// servableAt returns when next may be served: at once if it is the first or has the CA of
// the current one; otherwise once the API servers trust its CA, or when the current one
// expires. While the state of the configuration is unknown, only the latter is safe.
func (p *publisher) servableAt(config *admissionv1.MutatingWebhookConfiguration, known bool) time.Time {
	if p.current == nil {
		return p.next.since
	}
	at := p.current.expiry
	for _, ca := range p.next.anchors {
		if p.current.anchors.Has(ca) {
			return p.next.since
		}
		if since, ok := p.seen[pki.Fingerprint(ca)]; ok {
			at = earlier(at, since.Add(p.delay))
		}
	}
	if known && config == nil {
		at = earlier(at, p.next.since.Add(p.delay))
	}
	return at
}

func (p *publisher) serve(c *credential) {
	p.current, p.next = c, nil
	p.serving.Store(c)
	p.metrics.expiry.Set(float64(c.expiry.Unix()))
}

// since returns when the CA was first found, or now if it is not in times.
func since(times map[string]time.Time, ca *x509.Certificate, now time.Time) time.Time {
	if first, ok := times[pki.Fingerprint(ca)]; ok {
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
