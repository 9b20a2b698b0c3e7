package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

const (
	defaultLife = 24 * time.Hour

	// minLife is the shortest life of a certificate. Below it, agents would do nothing
	// but renew.
	minLife = 10 * time.Second

	// issueTimeout bounds one call of an issuer.
	issueTimeout = 30 * time.Second

	// firstRetry is when what has failed is tried again first, and longestRest bounds how
	// long nothing is looked at.
	firstRetry  = time.Second
	longestRest = 30 * time.Second
)

var errNoIssuer = fmt.Errorf("%w: none has been chosen yet", issuer.ErrUnavailable)

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
	// Refresh, if set, has the roots decided anew and returns once that is in force by
	// SetTrust. Sign calls it, from many goroutines, before it refuses a chain whose root
	// is not trusted: an issuer's roots may have changed.
	Refresh func(ctx context.Context) error
	// MaxRecords is how many issued certificates are remembered for Certificates; 0
	// means 10,000.
	MaxRecords int
	// Registerer takes the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	// Log is told of changes of roots and issuers, and of issuers that fail; nil means
	// slog.Default().
	Log *slog.Logger
}

// Manager signs for workloads and serves the trust bundle, by what SetTrust says, and
// renews the controller's own certificate. It is a certificate.Manager, and safe for use by many goroutines.
type Manager struct {
	options Options
	metrics *metrics
	issued  record

	// present is what is in force; nil before SetTrust. It is replaced with mu held.
	present atomic.Pointer[present]
	ready   chan struct{}
	// announce closes ready.
	announce func()
	wake     chan struct{}

	mu          sync.Mutex
	fault       error
	subscribers map[chan struct{}]bool
}

// present is what is in force at one moment. It is not changed once it is made.
type present struct {
	signing issuer.Issuer
	*bundle
	// own is the controller's own certificate; nil before there is one.
	own *own
}

var _ certificate.Manager = (*Manager)(nil)

// NewManager returns a Manager that has nothing before SetTrust and Run. The error says
// which option is wrong.
func NewManager(options Options) (*Manager, error) {
	if len(options.DNSNames) == 0 {
		return nil, errors.New("the identity manager needs the controller's DNS names")
	}
	if options.TrustDomain == nil {
		return nil, errors.New("the identity manager needs a trust domain")
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
		wake:        make(chan struct{}, 1),
		subscribers: map[chan struct{}]bool{},
	}
	m.announce = sync.OnceFunc(func() { close(m.ready) })
	metrics, err := newMetrics(options.Registerer, m)
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of the identity manager: %w", err)
	}
	m.metrics = metrics
	return m, nil
}

// Ready returns a channel that is closed once the controller has its certificate.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Fault returns why the controller's own certificate is not as it should be, or nil.
func (m *Manager) Fault() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

// TrustBundle returns the PEM of the roots that are trusted now, each once and in an
// order that is always the same. It is empty before SetTrust only.
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
