// Package root decides which roots the mesh has: which one signs, which others are
// trusted, and when one takes over from another, so that no certificate that is alive
// is ever signed by a root that somebody does not trust. It is the one owner of trust: it
// reads MeshRootCertificates or, without any, a CA of Outrigger's own in a Secret, asks
// issuers elsewhere for their roots, and hands package identity an issuer.Trust. It also
// publishes the trust bundle and the certificate of an ingress gateway.
//
// Who may have a certificate is not decided here, and nothing is known of proxies.
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
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// DefaultSecret is the Secret of the mesh's own CA. Open Service Mesh's is osm-ca-bundle.
	DefaultSecret = "outrigger-ca-bundle"
	// DefaultState is the Secret in which replicas and restarts see what is in use.
	DefaultState = "outrigger-ca-state"
	// DefaultPropagation is how long a root is trusted before it signs: the time that a
	// kubelet may take to bring a changed ConfigMap into a pod, and some more.
	DefaultPropagation = 3 * time.Minute

	defaultLife = 24 * time.Hour
	// skew is how far clocks may be apart.
	skew = 5 * time.Minute
	// again is when everything is looked at anew without a reason, for the roots of an
	// issuer elsewhere; soon is when something did not work, lost when another replica was
	// quicker.
	again = 30 * time.Second
	soon  = 5 * time.Second
	lost  = 50 * time.Millisecond
	// requestTimeout bounds what an evaluation asks of others, all together.
	requestTimeout = 30 * time.Second
)

// Manager is who signs and serves by what is decided here. SetTrust does not block, is
// called from one goroutine, and only with something new.
type Manager interface {
	SetTrust(*issuer.Trust)
}

// Objects is where MeshRootCertificates are. Its methods are safe for use by many
// goroutines.
type Objects interface {
	// List returns all in the control plane's namespace as they are now, and none where
	// the API server does not have the kind. An error means that this is not known.
	List(ctx context.Context) ([]v1alpha2.MeshRootCertificate, error)
	// Watch calls changed after each change until ctx ends. It may call it too often.
	Watch(ctx context.Context, changed func())
}

// Providers make the issuers that are not our own CA. One that is nil is not supported,
// which is a Problem of the object that asks for it. They do not talk to anybody yet,
// and are called again when what they were given has changed.
type Providers struct {
	CertManager func(spec v1alpha2.CertManagerProviderSpec) (issuer.Issuer, error)
	Vault       func(spec v1alpha2.VaultProviderSpec, token string) (issuer.Issuer, error)
}

// Options say what a Roots decides about. Manager, Secrets and Log are required.
type Options struct {
	Manager Manager
	Secrets SecretStore
	// Objects may be nil: then the mesh's own CA is all that there is.
	Objects   Objects
	Providers Providers
	// Namespace is the control plane's.
	Namespace string
	// Secret is the name of the Secret of the own CA, and State that of the one for what
	// is in use; "" means DefaultSecret and DefaultState.
	Secret, State string
	// Life returns how long workloads' certificates are valid now; nil, 0 and less mean
	// 24 hours.
	Life func() time.Duration
	// TrustDomain returns the mesh's; nil leaves that of objects unread.
	TrustDomain func() string
	// Propagation is how long a root is trusted before it signs; 0 means
	// DefaultPropagation.
	Propagation time.Duration
	// Registerer takes the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// Roots decides which roots a mesh has. All its methods are safe for use by many
// goroutines.
type Roots struct {
	opts    Options
	changed chan struct{}
	ready   chan struct{}
	ended   chan struct{}

	// These belong to the goroutine of Run.
	watches map[string]context.CancelFunc
	// issuers are those elsewhere, and inUse those that this evaluation has asked for.
	issuers, inUse map[string]issuer.Issuer
	// refreshes counts how often a source of roots was asked, by result.
	refreshes *prometheus.CounterVec

	mu     sync.Mutex
	report Report
	told   []func(Report)
	// trust is what was published last, and published says what of, so that something new
	// is seen; signers are the roots of what signs.
	trust     *issuer.Trust
	published string
	signers   []*x509.Certificate
	fault     error
	waiting   []chan<- error
}

// New returns a Roots that does nothing before Run.
func New(opts Options) (*Roots, error) {
	if opts.Manager == nil || opts.Secrets == nil || opts.Log == nil {
		return nil, errors.New("the roots of the mesh need a manager, a store of Secrets and a log")
	}
	opts.Secret, opts.State = cmp.Or(opts.Secret, DefaultSecret), cmp.Or(opts.State, DefaultState)
	opts.Propagation = cmp.Or(opts.Propagation, DefaultPropagation)
	r := &Roots{
		opts:    opts,
		changed: make(chan struct{}, 1),
		ready:   make(chan struct{}),
		ended:   make(chan struct{}),
		watches: make(map[string]context.CancelFunc),
		issuers: make(map[string]issuer.Issuer),
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_identity_root_refreshes_total",
			Help: "How often an issuer was asked for its roots: answered (success) or not (error).",
		}, []string{"result"}),
	}
	for _, result := range []string{"success", "error"} {
		r.refreshes.WithLabelValues(result)
	}
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(r.refreshes); err != nil {
			return nil, fmt.Errorf("registering the metrics of the mesh's roots: %w", err)
		}
	}
	return r, nil
}

// Run decides, and again after each change of Secrets and objects, until ctx ends. It
// is called once and returns when all that it started has ended. What cannot be read
// or used leaves what was decided before.
func (r *Roots) Run(ctx context.Context) {
	defer close(r.ended)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.opts.Objects != nil {
		running.Go(func() { r.opts.Objects.Watch(ctx, r.Look) })
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
		if errors.Is(err, ErrConflict) {
			// Another replica was quicker. Its state counts, which the next round reads.
			wake, err = lost, nil
			r.waiting, waiting = append(r.waiting, waiting...), nil
		}
		r.fault = err
		r.mu.Unlock()
		for _, done := range waiting {
			done <- err
		}
		if text := fmt.Sprint(err); err != nil && text != logged {
			r.opts.Log.Error("the roots of the mesh stay as they are", "error", err)
			logged = text
		} else if err == nil {
			logged = ""
		}
		timer := time.NewTimer(wake)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (r *Roots) life() time.Duration {
	if r.opts.Life != nil {
		if life := r.opts.Life(); life > 0 {
			return life
		}
	}
	return defaultLife
}

// Look has everything looked at again soon, as after a change of the certificates'
// life.
func (r *Roots) Look() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Refresh has everything looked at now and waits until what comes of it is published. The
// error says why there is no decision, or is that of ctx.
func (r *Roots) Refresh(ctx context.Context) error {
	done := make(chan error, 1)
	r.mu.Lock()
	r.waiting = append(r.waiting, done)
	r.mu.Unlock()
	r.Look()
	select {
	case err := <-done:
		return err
	case <-r.ended:
		return errors.New("nothing decides about the roots of the mesh any more")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready returns a channel that is closed once the first decision is published.
func (r *Roots) Ready() <-chan struct{} { return r.ready }

// Fault returns why the last evaluation came to no decision, or nil.
func (r *Roots) Fault() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault
}

// Report returns what was found last.
func (r *Roots) Report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report
}

// OnReport has f called with what was found: at once, and whenever it has changed. Calls
// do not overlap, and f must not block nor call OnReport.
func (r *Roots) OnReport(f func(Report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, f)
	f(r.report)
}

// Problems returns all that is wrong with objects and Secrets, sorted by object.
func (r *Roots) Problems() []mesh.Problem {
	return r.Report().all()
}

// Signing returns the issuer that signs now and the roots that verify what it issues, or
// an error that wraps issuer.ErrUnavailable before there is one.
func (r *Roots) Signing() (issuer.Issuer, []*x509.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trust != nil {
		return r.trust.Signing, r.signers, nil
	}
	if r.fault != nil {
		return nil, nil, fmt.Errorf("%w: no root signs yet: %w", issuer.ErrUnavailable, r.fault)
	}
	return nil, nil, fmt.Errorf("%w: no root signs yet", issuer.ErrUnavailable)
}
