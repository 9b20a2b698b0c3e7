package root

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// publish passes the trust to the manager if it has changed.
func (r *Roots) publish(ctx context.Context, want desired, s state) error {
	signing, key, err := r.issuer(ctx, want, s.Signer)
	if err != nil {
		return fmt.Errorf("%s cannot continue signing: %w", s.Signer.Source, err)
	}
	trust := &issuer.Trust{Signing: signing}
	var signers []*x509.Certificate
	next := key
	for _, t := range s.Roots {
		print := pki.Fingerprint(t.root)
		next += "\x00" + print
		trust.Roots = append(trust.Roots, t.root)
		if slices.Contains(s.Signer.Roots, print) {
			signers = append(signers, t.root)
		}
	}
	r.mu.Lock()
	first, changed := r.trust == nil, r.published != next
	if changed {
		r.trust, r.published, r.signers = trust, next, signers
	}
	r.mu.Unlock()
	if changed {
		r.opts.Manager.SetTrust(trust)
		r.opts.Log.Info("the mesh's roots have changed", "signing", s.Signer.Source, "trusted", len(s.Roots))
	}
	if first {
		close(r.ready)
	}
	return nil
}

// issuer returns the issuer of a signer and a key that identifies it.
func (r *Roots) issuer(ctx context.Context, want desired, s signer) (issuer.Issuer, string, error) {
	for _, c := range want.trusted {
		if c.ID == s.ID {
			return c.issuer, s.ID + c.key, nil
		}
	}
	if s.Provider == nil {
		made, err := issuer.FromPEM([]byte(s.Certificate), []byte(s.Key))
		return made, s.ID, err
	}
	// The signer's object was deleted or changed.
	token := ""
	if vault := s.Provider.Vault; vault != nil {
		var err error
		if token, err = r.token(ctx, vault.Token.SecretKeyRef); err != nil {
			return nil, "", err
		}
	}
	made, key, err := r.issuerFor(s.ID, token, *s.Provider)
	return made, s.ID + key, err
}
