package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// repository is what the repository of configuration files is served with. It is not
// changed once it is made.
type repository struct {
	// pem are the roots as they were given: the one that signs comes first, for proxies
	// that read no more than one.
	pem []byte
	*bundle
	own *own
}

// repositoryRoot is who signs for the repository, and the PEM of what verifies it.
type repositoryRoot struct {
	signing issuer.Issuer
	pem     []byte
}

// UseRepository chooses what signs the certificate of the repository from now on, and
// the PEM of the roots that verify it: at least its own, which comes first. It returns
// at once; until there is such a certificate the former one goes on. Nobody else may be
// issued anything by that root, because there are proxies that verify no name.
func (m *Manager) UseRepository(signing issuer.Issuer, roots []byte) {
	m.mu.Lock()
	m.wanted.repository = repositoryRoot{signing, bytes.Clone(roots)}
	m.mu.Unlock()
	notify(m.wake)
}

// RepositoryTLS returns how the repository speaks TLS with proxies, as
// certificate.Manager says. Of the clients it asks what ServerTLS does.
func (m *Manager) RepositoryTLS() *tls.Config {
	return m.serverTLS(tls.VersionTLS12, tls.RequireAndVerifyClientCert, func() *own {
		if now := m.repository.Load(); now != nil {
			return now.own
		}
		return nil
	})
}

// RepositoryRoot returns the PEM of the roots that verify the repository, the one that
// signs first. It is empty before Ready only.
func (m *Manager) RepositoryRoot() []byte {
	if now := m.repository.Load(); now != nil {
		return bytes.Clone(now.pem)
	}
	return nil
}

// keepRepository renews the certificate of the repository if it is time. The error is
// worth another try.
func (k *keeper) keepRepository(ctx context.Context, wanted repositoryRoot) error {
	if wanted.signing == nil {
		return errors.New("the repository of configuration files has no root yet")
	}
	now := k.repository.Load()
	if now != nil && bytes.Equal(now.pem, wanted.pem) && !now.own.isDue(wanted.signing, now.bundle) {
		return nil
	}
	next, err := k.issueRepository(ctx, wanted)
	if err != nil {
		return fmt.Errorf("the certificate of the repository of configuration files: %w", err)
	}
	k.metrics.issued.WithLabelValues(purposeRepository).Inc()
	k.options.Log.Info("obtained a certificate of the repository of configuration files", "certificate", describe(next.own.Leaf))
	k.repository.Store(next)
	return nil
}

func (k *keeper) issueRepository(ctx context.Context, wanted repositoryRoot) (*repository, error) {
	roots, err := parseRoots(wanted.pem)
	if err != nil {
		return nil, fmt.Errorf("its roots: %w", err)
	}
	next := &repository{pem: wanted.pem, bundle: newBundle(roots)}
	next.own, err = k.issueOwn(ctx, wanted.signing, next.bundle)
	return next, err
}
