package identity

import (
	"bytes"
	"cmp"
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
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

const (
	// minLife is the minimum lifetime of a certificate; with less, agents would renew
	// constantly.
	minLife = 10 * time.Second

	// issueTimeout bounds one call of an issuer.
	issueTimeout = 30 * time.Second

	// firstRetry is the pause after a first failure; maxSleep bounds all pauses of Run.
	firstRetry = time.Second
	maxSleep   = 30 * time.Second
)

var errNoIssuer = fmt.Errorf("%w: none has been chosen yet", issuer.ErrUnavailable)

// Options configure a Manager.
type Options struct {
	// DNSNames are the names of the controller's own certificate. Agents dial the first.
	DNSNames []string
	// TrustDomain returns the trust domain of workloads' identities. It may change.
	TrustDomain func() string
	// Life returns the lifetime of certificates; nil and results of 0 or less mean 24 h, and
	// the minimum is 10 s. It may change.
	Life func() time.Duration
	// Refresh, if set, evaluates the roots again and returns after the result was set by
	// SetTrust. Sign calls it, from many goroutines, before it refuses a chain whose root is
	// not trusted, because an issuer's roots may have changed.
	Refresh func(ctx context.Context) error
	// MaxRecords is the number of issued certificates that Certificates remembers; 0 means
	// 10,000.
	MaxRecords int
	// Registerer registers the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	// Log logs changes of roots and issuers and failures of issuers; nil means
	// slog.Default().
	Log *slog.Logger
}

// Manager signs for workloads and serves the trust bundle, both as set by SetTrust, and
// renews the controller's own certificate. It is a certificate.Manager and safe for use by
// many goroutines.
type Manager struct {
	options Options
	metrics *metrics
	issued  record

	// current is nil before SetTrust. It is replaced with mu held.
	current atomic.Pointer[snapshot]
	ready   chan struct{}
	// announce closes ready.
	announce func()
	wake     bell.Bell

	mu          sync.Mutex
	fault       error
	subscribers map[bell.Bell]bool
}

// snapshot is the issuer, the roots and the controller's certificate at one time. It is
// immutable.
type snapshot struct {
	signing issuer.Issuer
	*bundle
	// own is the controller's own certificate; nil before there is one.
	own *own
}

var _ certificate.Manager = (*Manager)(nil)

// NewManager returns a Manager. It does nothing before SetTrust and Run. The error names the
// invalid option.
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
	options.Log = cmp.Or(options.Log, slog.Default())
	m := &Manager{
		options:     options,
		issued:      record{max: options.MaxRecords},
		ready:       make(chan struct{}),
		wake:        bell.New(),
		subscribers: map[bell.Bell]bool{},
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

// Fault returns why the controller's own certificate could not be renewed, or nil.
func (m *Manager) Fault() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

// TrustBundle returns the PEM of the currently trusted roots, without duplicates and in a
// stable order. It is empty only before SetTrust.
func (m *Manager) TrustBundle() []byte {
	if now := m.current.Load(); now != nil {
		return bytes.Clone(now.pem)
	}
	return nil
}

// TrustBundleChanged returns a channel that receives a value after each change of the
// bundle, until stop is closed. Changes before the value is received are merged into one.
func (m *Manager) TrustBundleChanged(stop <-chan struct{}) <-chan struct{} {
	changed := bell.New()
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

// ServerTLS implements certificate.Manager. Every handshake uses the current certificate and
// bundle. Sessions are not resumed, so a removed root authenticates no new connection.
func (m *Manager) ServerTLS() *tls.Config {
	return m.serverTLS(tls.RequireAndVerifyClientCert)
}

func (m *Manager) serverTLS(auth tls.ClientAuthType) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: auth, SessionTicketsDisabled: true}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := m.current.Load()
		if now == nil || now.own == nil {
			return nil, errors.New("the controller has no certificate yet")
		}
		config := base.Clone()
		config.GetConfigForClient = nil
		config.ClientCAs, config.Certificates = now.pool, []tls.Certificate{now.own.Certificate}
		return config, nil
	}
	return base
}

// Certificates is the content of the debug pages. It holds no key.
type Certificates struct {
	// Bundle are the trusted roots.
	Bundle []Root `json:"bundle"`
	// Controller is the controller's own certificate; nil before there is one.
	Controller *Issued `json:"controller,omitempty"`
	// Issued are the unexpired certificates that this controller issued to workloads, oldest
	// first. If there are too many, the oldest are omitted.
	Issued []Issued `json:"issued"`
}

// Certificates returns the trusted roots and the issued certificates.
func (m *Manager) Certificates() Certificates {
	var c Certificates
	if now := m.current.Load(); now != nil {
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

func (m *Manager) life() time.Duration { return max(issuer.Life(m.options.Life), minLife) }
