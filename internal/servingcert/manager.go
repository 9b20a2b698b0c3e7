package servingcert

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	defaultPropagationDelay = 10 * time.Second

	// longestSleep bounds timers, because they do not advance while a machine is
	// suspended.
	longestSleep = 10 * time.Minute
)

// Options configure a Manager.
type Options struct {
	// ServerName is the name that the API server verifies; see Names.ServerName.
	ServerName string
	// WebhookConfiguration is the name of the MutatingWebhookConfiguration whose
	// caBundle is maintained; empty means none.
	WebhookConfiguration string
	// Client needs get, list, watch and patch on that configuration. It is not
	// used when WebhookConfiguration is empty.
	Client kubernetes.Interface
	// PropagationDelay is how long the API servers may take to use a new caBundle; 0
	// means 10 s.
	PropagationDelay time.Duration
	// SelfCheck configures how Ready calls the webhook; without it Ready returns an
	// error.
	SelfCheck SelfCheck
	// Registerer registers the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	// Logger logs renewals, patches and failures; nil means slog.Default().
	Logger *slog.Logger
}

// Manager maintains a serving certificate and the caBundle of its webhook. Its methods
// are safe for concurrent use.
type Manager struct {
	issuer    Issuer
	options   Options
	metrics   *metrics
	publisher *publisher
	checker   *selfChecker
	changed   bell.Bell

	mu sync.Mutex
	// fault is the error of the last Issue; nil after a success.
	fault error
}

// New returns a Manager of certificates from the issuer. It does nothing before Run. The
// error names the invalid option.
func New(issuer Issuer, options Options) (*Manager, error) {
	if options.ServerName == "" {
		return nil, errors.New("the manager of the serving certificate needs its server name")
	}
	if options.WebhookConfiguration != "" && options.Client == nil {
		return nil, fmt.Errorf("maintaining the caBundle of MutatingWebhookConfiguration %s needs a client", options.WebhookConfiguration)
	}
	if options.SelfCheck.Address != "" && options.SelfCheck.Accept == nil {
		return nil, errors.New("the self check of the webhook needs a function that accepts its answer")
	}
	options.PropagationDelay = cmp.Or(options.PropagationDelay, defaultPropagationDelay)
	options.Logger = cmp.Or(options.Logger, slog.Default())
	metrics, err := newMetrics(options.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of the serving certificate: %w", err)
	}
	return &Manager{
		issuer:    issuer,
		options:   options,
		metrics:   metrics,
		publisher: newPublisher(options, metrics),
		checker:   &selfChecker{turn: make(chan struct{}, 1)},
		changed:   bell.New(),
	}, nil
}

// Run obtains, renews and publishes certificates until ctx ends. Call it once. It returns
// when all goroutines that it started have ended.
func (m *Manager) Run(ctx context.Context) {
	offers := make(chan *credential)
	var running sync.WaitGroup
	running.Go(func() { m.issuer.Watch(ctx, m.changed.Ring) })
	running.Go(func() { m.publisher.run(ctx, offers) })
	running.Go(func() { m.renew(ctx, offers) })
	running.Wait()
}

// renew obtains a certificate and offers it to the publisher, and again when the renewal
// is due or the source has changed. After a failure it retries with a backoff.
func (m *Manager) renew(ctx context.Context, offers chan<- *credential) {
	backoff := newBackoff()
	var last *credential
	for {
		next, err := m.obtain(ctx)
		if ctx.Err() != nil {
			return
		}
		var due time.Time
		if err != nil {
			m.metrics.renewals.WithLabelValues(metric.ResultError).Inc()
			due = time.Now().Add(backoff.Step())
			m.options.Logger.Error("cannot obtain a serving certificate", "error", err, "retry", due)
		} else {
			if last == nil || !last.Certificate.Leaf.Equal(next.Certificate.Leaf) {
				m.metrics.renewals.WithLabelValues(metric.ResultSuccess).Inc()
				m.options.Logger.Info("obtained a serving certificate", "certificate", next.Material)
			}
			last = next
			backoff = newBackoff()
			due = pki.Renewal(next.since, next.expiry)
			select {
			case offers <- next:
			case <-ctx.Done():
				return
			}
		}
		if !m.sleep(ctx, due) {
			return
		}
	}
}

func (m *Manager) obtain(ctx context.Context) (*credential, error) {
	material, err := m.issuer.Issue(ctx)
	var next *credential
	if err == nil {
		next, err = material.check(m.options.ServerName)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = err
	return next, err
}

// sleep waits until due or until the source has changed. It returns false when ctx has
// ended.
func (m *Manager) sleep(ctx context.Context, due time.Time) bool {
	// Round strips the monotonic reading, to compare with the wall clock.
	due = due.Round(0)
	for {
		left := time.Until(due)
		if left <= 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-m.changed:
			return true
		case <-time.After(min(left, longestSleep)):
		}
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 16, Cap: time.Minute}
}

// GetCertificate is for tls.Config. It never blocks, and fails only before the
// first certificate has been obtained.
func (m *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	serving := m.publisher.serving.Load()
	if serving == nil {
		return nil, m.notYet()
	}
	return &serving.Certificate, nil
}

// TLSConfig returns a server's configuration: TLS 1.2 and up, with the current certificate
// at each handshake.
func (m *Manager) TLSConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: m.GetCertificate}
}

// notYet returns the error of a Manager without a certificate.
func (m *Manager) notYet() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != nil {
		return fmt.Errorf("there is no serving certificate yet: %w", m.fault)
	}
	return errors.New("there is no serving certificate yet")
}
