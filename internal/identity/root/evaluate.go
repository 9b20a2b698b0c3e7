package root

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// evaluate does all that is due and returns how long nothing else will be.
func (r *Roots) evaluate(ctx context.Context, running *sync.WaitGroup) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := time.Now()
	r.inUse = make(map[string]issuer.Issuer)
	roots, names, err := r.wish(limited, now)
	r.watch(ctx, names, running)
	if err != nil {
		return soon, err
	}
	before, secret, err := r.state(limited)
	if err != nil {
		return soon, err
	}
	w := wishOf(roots, before)
	after, wake := before.advance(w, now, r.life(), r.opts.Propagation)
	if after.Signer.ID == "" {
		r.tell(roots, after, now)
		return soon, fmt.Errorf("there is nothing that could sign: %s", firstProblem(roots))
	}
	if err := r.save(limited, secret, after); err != nil {
		return soon, err
	}
	if err := r.publish(limited, w, after); err != nil {
		r.tell(roots, after, now)
		return soon, err
	}
	r.tell(roots, after, now)
	r.issuers = r.inUse
	rest := again
	if slices.ContainsFunc(roots, func(found *root) bool {
		return slices.ContainsFunc(found.problems, func(p problem) bool { return p.retry })
	}) {
		rest = soon
	}
	if !wake.IsZero() {
		rest = max(min(rest, time.Until(wake)), 0)
	}
	return rest, nil
}

// wishOf decides who should sign: the oldest active one that can be used. One that
// signs and cannot be used any more as it is now goes on as it was.
func wishOf(roots []*root, s state) wish {
	var w wish
	decided := false
	for _, found := range roots {
		if found.candidate == nil {
			w.unknown = append(w.unknown, found.source)
			decided = decided || found.active && s.Signer.Source == found.source && w.signing == nil
			continue
		}
		w.trusted = append(w.trusted, found.candidate)
		if !found.active || decided {
			continue
		}
		if w.signing == nil {
			w.signing = found.candidate
		} else if found.object != nil {
			found.fail(source.ReasonConflict, "spec.intent", "%s is active too and older, so it signs; this one is only trusted; make one of them passive", w.signing.Source)
		}
	}
	return w
}

// state returns what is in use, and the Secret that says so, which is empty at first.
func (r *Roots) state(ctx context.Context) (state, Secret, error) {
	secret, err := r.opts.Secrets.Get(ctx, r.opts.State)
	if err != nil {
		return state{}, Secret{}, err
	}
	if secret.empty {
		return state{}, secret, nil
	}
	s, err := parseState(secret)
	if err != nil {
		return state{}, Secret{}, fmt.Errorf("%s: %w", r.opts.Secrets.Describe(r.opts.State), err)
	}
	return s, secret, nil
}

// save writes down what is in use, if that is news.
func (r *Roots) save(ctx context.Context, secret Secret, s state) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	if bytes.Equal(data[keyState], secret.Data[keyState]) {
		return nil
	}
	return r.opts.Secrets.Update(ctx, r.opts.State, secret, data)
}

// publish hands the manager what was decided, if it is something new.
func (r *Roots) publish(ctx context.Context, w wish, s state) error {
	signing, key, err := r.issuer(ctx, w, s.Signer)
	if err != nil {
		return fmt.Errorf("%s cannot go on signing: %w", s.Signer.Source, err)
	}
	trust := &issuer.Trust{Signing: signing}
	var signers []*x509.Certificate
	next := key
	for _, t := range s.Roots {
		print := fingerprint(t.root)
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
		r.opts.Log.Info("the roots of the mesh", "signing", s.Signer.Source, "trusted", len(s.Roots))
	}
	if first {
		close(r.ready)
	}
	return nil
}

// issuer returns what signs, and a key that differs for another issuer.
func (r *Roots) issuer(ctx context.Context, w wish, s signer) (issuer.Issuer, string, error) {
	for _, c := range w.trusted {
		if c.ID == s.ID {
			return c.issuer, s.ID + c.key, nil
		}
	}
	if s.Provider == nil {
		made, err := issuer.FromPEM([]byte(s.Certificate), []byte(s.Key))
		return made, s.ID, err
	}
	// Its object is gone, or has become another.
	token := ""
	if vault := s.Provider.Vault; vault != nil {
		var err error
		if token, err = r.token(ctx, vault.Token.SecretKeyRef); err != nil {
			return nil, "", err
		}
	}
	made, key, err := r.make(s.ID, token, *s.Provider)
	return made, s.ID + key, err
}

// watch watches these Secrets and no others.
func (r *Roots) watch(ctx context.Context, names []string, running *sync.WaitGroup) {
	for name, cancel := range r.watches {
		if !slices.Contains(names, name) {
			cancel()
			delete(r.watches, name)
		}
	}
	for _, name := range names {
		if r.watches[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		r.watches[name] = cancel
		running.Go(func() { r.opts.Secrets.Watch(ctx, name, r.Look) })
	}
}

// firstProblem is for an error when all is lost.
func firstProblem(roots []*root) string {
	for _, found := range roots {
		if len(found.problems) > 0 {
			p := found.problems[0]
			return found.source + ": " + p.message
		}
	}
	return "no Secret and no MeshRootCertificate says what"
}

func randomName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // It never fails.
	return hex.EncodeToString(b[:])
}
