package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// holder has the pod's identity, which it gets from a renewer or a receiver: the agent requests
// certificates, or the kubelet does. Unless a field's comment says otherwise, fields belong to
// their goroutine.
type holder struct {
	subject subject
	store   *store
	timings kit.Timings
	log     *slog.Logger
	metrics *kit.Metrics
	// onRenewed is called after each replacement of the files but the first. Source.Run sets it.
	onRenewed func()

	// ready is closed once the files exist. Any goroutine may wait for it.
	ready chan struct{}
	// expiry is when the certificate expires, in Unix seconds; 0 before there is one. Any
	// goroutine may read it.
	expiry atomic.Int64

	current *identityFiles // nil before there is a certificate
	// logged are the failures since the last success.
	logged kit.Logged
}

// identityFiles is the content of the identity files.
type identityFiles struct {
	material
	certs []*x509.Certificate
}

func newHolder(subject subject, store *store, timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) *holder {
	return &holder{
		subject: subject, store: store, timings: timings, log: log, metrics: metrics,
		ready: make(chan struct{}), logged: make(kit.Logged),
	}
}

// inspect checks that an identity is the pod's and verified by the roots, and returns its
// certificates.
func (h *holder) inspect(m material, roots pki.Bundle) ([]*x509.Certificate, error) {
	certs, err := pki.Parse(m.chain)
	if err != nil {
		return nil, fmt.Errorf("the certificate: %w", err)
	}
	if _, err := tls.X509KeyPair(m.chain, m.key); err != nil {
		return nil, errors.New("the key does not match the certificate")
	}
	if err := h.subject.checkLeaf(certs, certs[0].PublicKey); err != nil {
		return nil, err
	}
	return certs, verify(certs, roots)
}

// setCurrent records what the files hold.
func (h *holder) setCurrent(m material, certs []*x509.Certificate) {
	first := h.current == nil
	h.current = &identityFiles{m, certs}
	h.expiry.Store(pki.End(certs).Unix())
	if first {
		close(h.ready)
	} else {
		h.onRenewed()
	}
}

// left returns how long the certificate remains valid.
func (h *holder) left() time.Duration {
	if h.current == nil {
		return 0
	}
	return pki.End(h.current.certs).Sub(kit.Now())
}

// logFailure logs a failure. The first of a kind is an error if the certificate has expired.
func (h *holder) logFailure(kind string, err error) {
	first := slog.LevelWarn
	if h.current != nil && h.left() <= 0 {
		first = slog.LevelError
	}
	h.log.Log(context.Background(), h.logged.Level(kind, first), err.Error(), "kind", kind, "valid", h.left().Round(time.Second).String())
}
