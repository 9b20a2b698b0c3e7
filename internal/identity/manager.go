package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

const (
	defaultRefreshInterval = 30 * time.Second
	defaultLife            = 24 * time.Hour

	// minLife is the shortest life of a certificate. Below it, agents would do nothing
	// but renew.
	minLife = 10 * time.Second

	// rootsTimeout and issueTimeout bound one call of an issuer.
	rootsTimeout = 10 * time.Second
	issueTimeout = 30 * time.Second

	firstRetry = time.Second
)

var errNoIssuer = fmt.Errorf("%w: none has been chosen or has told its roots yet", issuer.ErrUnavailable)

// Options configure a Manager.
type Options struct {
	// DNSNames are the names of the controller's own certificate, the one that agents
	// dial first.
	DNSNames []string
	// TrustDomain returns the trust domain of workloads' identities. It may change.
	TrustDomain func() string
	// Life returns how long a certificate is to be valid; nil, 0 and less mean 24 h,
	// and less than 10 s means 10 s. It may change.
	Life func() time.Duration
	// RefreshInterval is how often issuers are asked for their roots; 0 means 30 s.
	RefreshInterval time.Duration
	// MaxRecords is how many issued certificates are remembered for Certificates; 0
	// means 10,000.
	MaxRecords int
	// Registerer takes the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	// Log is told of changes of roots and issuers, and of issuers that fail; nil means
	// slog.Default().
	Log *slog.Logger
}

// Manager keeps the trust bundle and the controller's own certificate, and signs for
// workloads. It is a certificate.Manager, and safe for use by many goroutines.
type Manager struct {
	options Options
	metrics *metrics
	issued  record

	// present is what is in force; nil before all issuers have told their roots once.
	present atomic.Pointer[present]
	ready   chan struct{}
	ended   chan struct{}
	wake    chan struct{}

	mu          sync.Mutex
	wanted      choice
	fault       error
	waiting     []chan<- error
	subscribers map[chan struct{}]bool
}

// choice is which issuers are to be used.
type choice struct {
	signing issuer.Issuer
	// all are those whose roots are trusted, signing among them.
	all []issuer.Issuer
}

// present is what is in force at one moment. It is not changed once it is made.
type present struct {
	signing issuer.Issuer
	*bundle
	// own is the controller's own certificate; nil before there is one.
	own *own
}

var _ certificate.Manager = (*Manager)(nil)

// NewManager returns a Manager that has nothing before Use and Run. The error says
// which option is wrong.
func NewManager(options Options) (*Manager, error) {
	if len(options.DNSNames) == 0 {
		return nil, errors.New("the identity manager needs the controller's DNS names")
	}
	if options.TrustDomain == nil {
		return nil, errors.New("the identity manager needs a trust domain")
	}
	if options.RefreshInterval <= 0 {
		options.RefreshInterval = defaultRefreshInterval
	}
	if options.MaxRecords <= 0 {
		options.MaxRecords = defaultMaxRecords
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	m := &Manager{
		options:     options,
		issued:      record{max: options.MaxRecords},
		ready:       make(chan struct{}),
		ended:       make(chan struct{}),
		wake:        make(chan struct{}, 1),
		subscribers: map[chan struct{}]bool{},
	}
	metrics, err := newMetrics(options.Registerer, m)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of the identity manager: %w", err)
	}
	m.metrics = metrics
	return m, nil
}

// Use chooses the issuer that signs from now on, and others whose roots are trusted
// beside its own. It returns at once. An issuer signs as soon as its roots are in the
// bundle; until then the former one goes on. Roots of issuers that were in use before
// and are no more leave the bundle once all that are have told theirs at least once.
// Issuers are compared with ==, so they are pointers.
func (m *Manager) Use(signing issuer.Issuer, trusted ...issuer.Issuer) {
	var all []issuer.Issuer
	for _, i := range append([]issuer.Issuer{signing}, trusted...) {
		if i != nil && !slices.Contains(all, i) {
			all = append(all, i)
		}
	}
	m.mu.Lock()
	m.wanted = choice{signing, all}
	m.mu.Unlock()
	notify(m.wake)
}

// Refresh asks all issuers for their roots now and waits until what they say, and the
// last Use, is in force. The error says which of them could not be asked, whether the
// controller's own certificate could not be renewed, or is that of ctx. Before Run it
// waits for Run.
func (m *Manager) Refresh(ctx context.Context) error {
	done := make(chan error, 1)
	m.mu.Lock()
	m.waiting = append(m.waiting, done)
	m.mu.Unlock()
	notify(m.wake)
	select {
	case err := <-done:
		return err
	case <-m.ended:
		return errors.New("the identity manager has ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready returns a channel that is closed once there is a trust bundle with the roots of
// all issuers, and the controller has its certificate.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Fault returns what is wrong now: which issuer can't be reached, or does not issue the
// controller's own certificates. It returns nil if all is well.
func (m *Manager) Fault() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

// TrustBundle returns the PEM of the roots that are trusted now, each once and in an
// order that is always the same. It is empty before Ready only.
func (m *Manager) TrustBundle() []byte {
	if now := m.present.Load(); now != nil {
		return bytes.Clone(now.pem)
	}
	return nil
}

// TrustBundleChanged returns a channel that receives a value after each change of the
// bundle, until stop is closed. Changes that come before it is received are one.
func (m *Manager) TrustBundleChanged(stop <-chan struct{}) <-chan struct{} {
	changed := make(chan struct{}, 1)
	m.mu.Lock()
	m.subscribers[changed] = true
	m.mu.Unlock()
	if stop != nil {
		go func() {
			<-stop
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.subscribers, changed)
		}()
	}
	return changed
}

// ServerTLS returns how the controller speaks TLS with proxies, as certificate.Manager
// says. Every handshake takes the certificate and the bundle of its moment, and no
// session is resumed, so a root that is gone lets nobody in.
func (m *Manager) ServerTLS() *tls.Config {
	return m.serverTLS(tls.RequireAndVerifyClientCert)
}

func (m *Manager) serverTLS(auth tls.ClientAuthType) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: auth, SessionTicketsDisabled: true}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := m.present.Load()
		if now == nil || now.own == nil {
			return nil, errors.New("the controller has no certificate yet")
		}
		return &tls.Config{
			MinVersion:             base.MinVersion,
			ClientAuth:             auth,
			ClientCAs:              now.pool,
			Certificates:           []tls.Certificate{now.own.Certificate},
			NextProtos:             base.NextProtos,
			SessionTicketsDisabled: true,
		}, nil
	}
	return base
}

// Certificates is what the debug pages show. It holds no key.
type Certificates struct {
	// Bundle are the roots that are trusted.
	Bundle []Root `json:"bundle"`
	// Controller is the controller's own certificate; nil before there is one.
	Controller *Issued `json:"controller,omitempty"`
	// Issued are those of workloads that this controller has issued and that have not
	// expired, the oldest first. The oldest are left out where there are very many.
	Issued []Issued `json:"issued"`
}

// Certificates returns what is trusted and what was issued.
func (m *Manager) Certificates() Certificates {
	var c Certificates
	if now := m.present.Load(); now != nil {
		for _, root := range now.roots {
			c.Bundle = append(c.Bundle, describeRoot(root))
		}
		if now.own != nil {
			c.Controller = new(describe(now.own.Leaf))
		}
	}
	c.Issued = m.issued.list()
	return c
}

func (m *Manager) life() time.Duration {
	if m.options.Life == nil {
		return defaultLife
	}
	if life := m.options.Life(); life > 0 {
		return max(life, minLife)
	}
	return defaultLife
}

// notify wakes the receiver of the channel unless it has been woken already.
func notify(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// known is an issuer and the roots that it told last.
type known struct {
	issuer issuer.Issuer
	roots  []*x509.Certificate
}
