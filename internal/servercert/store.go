// Package servercert keeps the certificates that gateways present to clients, with their private keys,
// for the drivers. Facts, Views and debug pages have no private keys.
package servercert

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Store holds certificates by the names of their Secrets. Its zero value is empty. It is safe for use by
// many goroutines.
type Store struct {
	mu    sync.Mutex
	pairs map[mesh.Name]driver.KeyPair
}

var _ driver.ServerCertificates = (*Store)(nil)

// ServerCertificate is for driver.ServerCertificates.
func (s *Store) ServerCertificate(name mesh.Name) (driver.KeyPair, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pair, ok := s.pairs[name]
	return pair, ok
}

// Put takes a new or changed Secret, and returns its fact. It returns false for a Secret that is no
// certificate. A certificate that cannot be used replaces the former one: nobody asked for that any
// longer.
func (s *Store) Put(secret *corev1.Secret) (fact.Fact, bool) {
	f, pair, ok := source.ServerCertificate(secret)
	if !ok {
		return fact.Fact{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := mesh.Name{Namespace: secret.Namespace, Name: secret.Name}
	if len(pair.Key) == 0 {
		delete(s.pairs, name)
		return f, true
	}
	if s.pairs == nil {
		s.pairs = map[mesh.Name]driver.KeyPair{}
	}
	s.pairs[name] = pair
	return f, true
}

// Delete removes the certificate of a Secret, and returns the fact of its absence.
func (s *Store) Delete(secret *corev1.Secret) fact.Fact {
	name := mesh.Name{Namespace: secret.Namespace, Name: secret.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pairs, name)
	return source.Gone(source.SecretRef(name))
}

// Replace replaces all certificates.
func (s *Store) Replace(pairs map[mesh.Name]driver.KeyPair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pairs = maps.Clone(pairs)
}
