// Package root decides which roots the mesh has: which one signs, which others are trusted,
// and when one takes over from another, so that every valid certificate is always signed by
// a root that all proxies trust. It is the only owner of trust: it reads
// MeshRootCertificates or, if there are none, Outrigger's own CA in a Secret, asks external
// issuers for their roots, and passes an issuer.Trust to package identity.
//
// sources.go reads the inputs, decide.go decides, state.go keeps the result in a Secret,
// and trust.go passes it on. Package store stores the Secrets, and package publish
// publishes the trust bundle, the status of objects and an ingress gateway's certificate.
//
// The package does not decide who may have a certificate and knows nothing about proxies.
package root

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// DefaultSecret is the Secret of the mesh's own CA. Open Service Mesh's is osm-ca-bundle.
	DefaultSecret = "outrigger-ca-bundle"
	// DefaultState is the Secret with the state that replicas share and that survives
	// restarts.
	DefaultState = "outrigger-ca-state"
	// DefaultPropagation is how long a root is trusted before it signs: the time a kubelet
	// may take to update a mounted ConfigMap, plus a margin.
	DefaultPropagation = 3 * time.Minute

	// pollInterval is how often everything is evaluated without a change, because the roots
	// of an external issuer may change unnoticed; retryInterval applies after a failure and
	// conflictDelay after another replica has changed the state.
	pollInterval  = 30 * time.Second
	retryInterval = 5 * time.Second
	conflictDelay = 50 * time.Millisecond
	// requestTimeout bounds all external requests of one evaluation together.
	requestTimeout = 30 * time.Second
)

// Manager applies the decisions. SetTrust must not block. It is called from one goroutine,
// and only with changes.
type Manager interface {
	SetTrust(*issuer.Trust)
}

// Objects is the source of MeshRootCertificates. Its methods are safe for use by many
// goroutines.
type Objects interface {
	// List returns the current objects of the control plane's namespace, or none if the API
	// server does not have the kind.
	List(ctx context.Context) ([]v1alpha2.MeshRootCertificate, error)
	// Watch calls changed after each change until ctx ends. It may call it too often.
	Watch(ctx context.Context, changed func())
}

// Providers create external issuers. A nil one is not supported, which is a Problem of the
// object that uses it. They must not send requests. They are called again when their
// arguments change.
type Providers struct {
	CertManager func(spec v1alpha2.CertManagerProviderSpec) (issuer.Issuer, error)
	Vault       func(spec v1alpha2.VaultProviderSpec, token string) (issuer.Issuer, error)
}

// Options configure a Roots. Manager, Secrets and Log are required.
type Options struct {
	Manager Manager
	Secrets store.Secrets
	// Objects may be nil; then the mesh's own CA is the only one.
	Objects   Objects
	Providers Providers
	// Namespace is the control plane's.
	Namespace string
	// Secret and State are the names of the Secrets of the own CA and of the state; "" means
	// DefaultSecret and DefaultState.
	Secret, State string
	// Life returns the current lifetime of workloads' certificates; nil and results of 0 or
	// less mean 24 hours.
	Life func() time.Duration
	// TrustDomain returns the mesh's trust domain; nil disables checking that of objects.
	TrustDomain func() string
	// Propagation is how long a root is trusted before it signs; 0 means
	// DefaultPropagation.
	Propagation time.Duration
	// Registerer registers the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// Roots decides which roots a mesh has. All its methods are safe for use by many
// goroutines.
type Roots struct {
	opts    Options
	changed bell.Bell
	ready   chan struct{}
	ended   chan struct{}

	// These belong to Run's goroutine.
	watches map[string]context.CancelFunc
	// issuers caches external issuers; inUse are those that the current evaluation uses.
	issuers, inUse map[string]issuer.Issuer
	// refreshes counts the reads of sources of roots, by result.
	refreshes *prometheus.CounterVec

	mu        sync.Mutex
	report    Report
	observers []func(Report)
	// trust was published last; published identifies its content, to detect changes; signers
	// are the roots of the signing issuer.
	trust     *issuer.Trust
	published string
	signers   []*x509.Certificate
	fault     error
	waiting   []chan<- error
}

// New returns a Roots that does nothing before Run.
func New(opts Options) (*Roots, error) {
	if opts.Manager == nil || opts.Secrets == nil || opts.Log == nil {
		return nil, errors.New("the mesh's roots need a manager, a store of Secrets and a log")
	}
	opts.Secret, opts.State = cmp.Or(opts.Secret, DefaultSecret), cmp.Or(opts.State, DefaultState)
	opts.Propagation = cmp.Or(opts.Propagation, DefaultPropagation)
	r := &Roots{
		opts:    opts,
		changed: bell.New(),
		ready:   make(chan struct{}),
		ended:   make(chan struct{}),
		watches: make(map[string]context.CancelFunc),
		issuers: make(map[string]issuer.Issuer),
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.RootRefreshes,
			Help: "Attempts to read the roots of an issuer, by result.",
		}, []string{metric.LabelResult}),
	}
	for _, result := range []string{metric.ResultSuccess, metric.ResultError} {
		r.refreshes.WithLabelValues(result)
	}
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(r.refreshes); err != nil {
			return nil, fmt.Errorf("registering the metrics of the mesh's roots: %w", err)
		}
	}
	return r, nil
}

// Run evaluates the inputs, and again after each change of Secrets and objects, until ctx
// ends. Call it once. It returns when all goroutines that it started have ended. If an
// input cannot be read or used, the earlier decision stays in force.
func (r *Roots) Run(ctx context.Context) {
	defer close(r.ended)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.opts.Objects != nil {
		running.Go(func() { r.opts.Objects.Watch(ctx, r.Trigger) })
	}
	var logged string
	for {
		r.mu.Lock()
		waiting := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		wake, err := r.evaluate(ctx, &running)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		if errors.Is(err, store.ErrConflict) {
			// Another replica changed the state first. The next iteration reads it.
			wake, err = conflictDelay, nil
			r.waiting, waiting = append(r.waiting, waiting...), nil
		}
		r.fault = err
		r.mu.Unlock()
		for _, done := range waiting {
			done <- err
		}
		if text := fmt.Sprint(err); err != nil && text != logged {
			r.opts.Log.Error("cannot update the mesh's roots; keeping the current ones", "error", err)
			logged = text
		} else if err == nil {
			logged = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-time.After(wake):
		}
	}
}

// Trigger starts another evaluation soon, such as after a change of the certificates'
// lifetime.
func (r *Roots) Trigger() { r.changed.Ring() }

// Refresh starts another evaluation and waits until the result is published. The error is
// that of the evaluation or of ctx.
func (r *Roots) Refresh(ctx context.Context) error {
	done := make(chan error, 1)
	r.mu.Lock()
	r.waiting = append(r.waiting, done)
	r.mu.Unlock()
	r.Trigger()
	select {
	case err := <-done:
		return err
	case <-r.ended:
		return errors.New("the mesh's roots are no longer evaluated")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready returns a channel that is closed once the first decision is published.
func (r *Roots) Ready() <-chan struct{} { return r.ready }

// Fault returns the error of the last evaluation, or nil.
func (r *Roots) Fault() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// Report returns the latest report.
func (r *Roots) Report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report
}

// OnReport calls f with the report now and after each change. Calls do not overlap. f must
// neither block nor call OnReport.
func (r *Roots) OnReport(f func(Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers = append(r.observers, f)
	f(r.report)
}

// Problems returns the problems of objects and Secrets, sorted by object.
func (r *Roots) Problems() []mesh.Problem {
	return r.Report().all()
}

// Trust returns the published trust and the roots of its signing issuer. Before there is
// one, the error wraps issuer.ErrUnavailable.
func (r *Roots) Trust() (trust *issuer.Trust, signers []*x509.Certificate, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trust != nil {
		return r.trust, r.signers, nil
	}
	if r.fault != nil {
		return nil, nil, fmt.Errorf("%w: no root signs yet: %w", issuer.ErrUnavailable, r.fault)
	}
	return nil, nil, fmt.Errorf("%w: no root signs yet", issuer.ErrUnavailable)
}
