package root

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// Keys of Secrets.
const (
	keyCert = "ca.crt"
	keyKey  = "ca.key"
	// keyLegacyKey is Open Service Mesh's name of keyKey.
	keyLegacyKey = "private.key"
	keyState     = "state.json"
)

// state is the current signer and the trusted roots. Replicas share it and it survives
// restarts. Objects and Secrets define the desired state, to which advance moves it step by
// step.
type state struct {
	Signer signer `json:"signer"`
	// Roots are all trusted roots, sorted by their certificates.
	Roots []trusted `json:"roots"`
	// Gateway is the Secret that was filled with the ingress gateway's certificate, if any.
	Gateway *SecretRef `json:"gateway,omitempty"`
}

// signer is the signing CA, with everything needed to continue signing when its object or
// Secret is deleted or broken.
type signer struct {
	// Source describes its object or Secret.
	Source string `json:"source"`
	// ID identifies the CA.
	ID string `json:"id"`
	// Certificate and Key are the PEM of an own CA.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	// Provider is set for an external CA.
	Provider *v1alpha2.ProviderSpec `json:"provider,omitempty"`
	// Roots are the fingerprints of its roots.
	Roots []string `json:"roots"`
	// Life is the lifetime of its certificates. If it was longer before, Longer is when the
	// last certificate with the longer lifetime expires.
	Life   time.Duration `json:"life"`
	Longer time.Time     `json:"longer,omitzero"`
}

// trusted is a trusted root.
type trusted struct {
	Certificate string `json:"certificate"`
	// Source describes the last object or Secret that had it.
	Source string `json:"source"`
	// Since is when it was first trusted.
	Since time.Time `json:"since"`
	// Needed is when the last certificate that it signed expires; zero if it signs or never
	// did.
	Needed time.Time `json:"needed,omitzero"`

	root *x509.Certificate
}

// SecretRef names a Secret of any namespace.
type SecretRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func parseState(secret store.Secret) (state, error) {
	var s state
	if err := json.Unmarshal(secret.Data[keyState], &s); err != nil {
		// The decoder's error may quote the content, which includes a key.
		return state{}, errors.New("its " + keyState + " is not valid JSON; empty the Secret to continue with the other Secrets only")
	}
	for i := range s.Roots {
		roots, err := pki.ParseRoots([]byte(s.Roots[i].Certificate))
		if err != nil || len(roots) != 1 {
			return state{}, errors.New("its " + keyState + " contains a root that is not a CA certificate; empty the Secret to continue with the other Secrets only")
		}
		s.Roots[i].root = roots[0]
	}
	return s, nil
}

func (s state) encode() (map[string][]byte, error) {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the state: %w", err)
	}
	return map[string][]byte{keyState: append(text, '\n')}, nil
}

// state returns the stored state and its Secret, which is empty at first.
func (r *Roots) state(ctx context.Context) (state, store.Secret, error) {
	secret, err := r.opts.Secrets.Get(ctx, r.opts.State)
	if err != nil {
		return state{}, store.Secret{}, err
	}
	if secret.Empty {
		return state{}, secret, nil
	}
	s, err := parseState(secret)
	if err != nil {
		return state{}, store.Secret{}, fmt.Errorf("%s: %w", r.opts.Secrets.Describe(r.opts.State), err)
	}
	return s, secret, nil
}

// save stores the state if it has changed.
func (r *Roots) save(ctx context.Context, secret store.Secret, s state) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	if bytes.Equal(data[keyState], secret.Data[keyState]) {
		return nil
	}
	return r.opts.Secrets.Update(ctx, r.opts.State, secret, data)
}

// Gateway returns the Secret that was last recorded with SetGateway, or nil.
func (r *Roots) Gateway(ctx context.Context) (*SecretRef, error) {
	s, _, err := r.state(ctx)
	return s.Gateway, err
}

// SetGateway stores in the shared state which Secret has the ingress gateway's certificate.
// Nil means none.
func (r *Roots) SetGateway(ctx context.Context, ref *SecretRef) error {
	for {
		s, secret, err := r.state(ctx)
		if err != nil {
			return err
		}
		if s.Signer.ID == "" {
			return fmt.Errorf("%w: no root signs yet", issuer.ErrUnavailable)
		}
		if s.Gateway == ref || s.Gateway != nil && ref != nil && *s.Gateway == *ref {
			return nil
		}
		s.Gateway = ref
		if err := r.save(ctx, secret, s); !errors.Is(err, store.ErrConflict) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(conflictDelay):
		}
	}
}

func (s state) find(print string) int {
	return slices.IndexFunc(s.Roots, func(t trusted) bool { return pki.Fingerprint(t.root) == print })
}

func fingerprints(roots []*x509.Certificate) []string {
	all := make([]string, 0, len(roots))
	for _, root := range roots {
		all = append(all, pki.Fingerprint(root))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
