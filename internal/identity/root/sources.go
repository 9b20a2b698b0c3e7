package root

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Reasons of Problems, in addition to those of package source.
const (
	// reasonUnusable means that a CA cannot be used: its certificate is unreadable, expired
	// or may not sign, or its key does not match. The CA in use before stays in use.
	reasonUnusable = "Unusable"
	// ReasonUnavailable means that a CA or a Secret could not be reached. It is retried.
	ReasonUnavailable = "Unavailable"
	// reasonExpiring means that a signing root expires soon.
	reasonExpiring = "Expiring"
)

// expiryWarning is how long before its expiry a signing root is reported as a Problem.
const expiryWarning = 30 * 24 * time.Hour

// problem is a problem of a source.
type problem struct {
	reason, field, message string
	// retry is set if the problem may disappear without a change of objects or Secrets.
	retry bool
}

// rootSource is a MeshRootCertificate or, if object is nil, the mesh's own CA.
type rootSource struct {
	object    *v1alpha2.MeshRootCertificate
	source    string
	active    bool
	candidate *candidate
	problems  []problem
}

func (r *rootSource) fail(reason, field, format string, args ...any) {
	r.problems = append(r.problems, problem{reason: reason, field: field, message: fmt.Sprintf(format, args...)})
}

// unavailable adds a problem that may disappear without a change.
func (r *rootSource) unavailable(field string, err error) {
	r.problems = append(r.problems, problem{reason: ReasonUnavailable, field: field, message: err.Error() + "; retrying", retry: true})
}

// readSources reads the sources of roots, oldest first. The mesh's own CA is the last one,
// if no object is active. names are the Secrets that the result depends on.
func (r *Roots) readSources(ctx context.Context, now time.Time) (roots []*rootSource, names []string, err error) {
	names = []string{r.opts.State}
	var objects []v1alpha2.MeshRootCertificate
	if r.opts.Objects != nil {
		if objects, err = r.opts.Objects.List(ctx); err != nil {
			return nil, names, fmt.Errorf("reading the MeshRootCertificates: %w", err)
		}
	}
	slices.SortFunc(objects, func(a, b v1alpha2.MeshRootCertificate) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	active := false
	for i := range objects {
		object := &objects[i]
		if object.DeletionTimestamp != nil {
			continue
		}
		found := &rootSource{object: object, source: "MeshRootCertificate " + object.Name}
		switch object.Spec.Intent {
		case v1alpha2.IntentActive:
			found.active = true
		case v1alpha2.IntentPassive:
		default: // Only possible in a file, which no schema validates.
			found.fail(source.ReasonInvalid, "spec.intent", "%q is neither active nor passive; it is treated as passive", string(object.Spec.Intent))
		}
		active = active || found.active
		names = append(names, r.resolve(ctx, found, now)...)
		roots = append(roots, found)
	}
	if !active {
		own := &rootSource{source: "Secret " + r.opts.Secret, active: true}
		r.resolveOwnCA(ctx, own, r.opts.Secret, "")
		names = append(names, r.opts.Secret)
		roots = append(roots, own)
	}
	for _, found := range roots {
		result := metric.ResultSuccess
		if found.candidate == nil {
			result = metric.ResultError
		}
		r.refreshes.WithLabelValues(result).Inc()
		found.warnExpiry(now)
	}
	return roots, names, nil
}

// resolve finds the CA of an object and returns the names of the Secrets that it depends
// on.
func (r *Roots) resolve(ctx context.Context, found *rootSource, now time.Time) []string {
	spec := &found.object.Spec
	if want := r.trustDomain(); spec.TrustDomain != "" && want != "" && spec.TrustDomain != want {
		found.fail(source.ReasonNoEffect, "spec.trustDomain", "every identity is in the trust domain %q of the MeshConfig's spec.certificate.trustDomain", want)
	}
	provider := spec.Provider
	set := 0
	for _, is := range []bool{provider.Tresor != nil, provider.CertManager != nil, provider.Vault != nil} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		found.fail(source.ReasonInvalid, "spec.provider", "it has %d of tresor, certManager and vault, want one", set)
	case provider.Tresor != nil:
		ref := provider.Tresor.CA.SecretRef
		const field = "spec.provider.tresor.ca.secretRef"
		if r.inOtherNamespace(found, field, ref.Namespace) {
			return nil
		}
		name := cmp.Or(ref.Name, r.opts.Secret)
		r.resolveOwnCA(ctx, found, name, field)
		return []string{name}
	case provider.CertManager != nil:
		const field = "spec.provider.certManager"
		if r.opts.Providers.CertManager == nil {
			found.fail(source.ReasonNotSupported, field, "this control plane cannot use cert-manager, because it does not run on a cluster")
			return nil
		}
		r.resolveExternal(ctx, found, field, now, "")
	default:
		return r.vault(ctx, found, now)
	}
	return nil
}

func (r *Roots) trustDomain() string {
	if r.opts.TrustDomain == nil {
		return ""
	}
	return r.opts.TrustDomain()
}

// inOtherNamespace reports whether a Secret is in another namespace, which the controller
// may not read, and if so adds a problem.
func (r *Roots) inOtherNamespace(found *rootSource, field, namespace string) bool {
	if namespace == "" || namespace == r.opts.Namespace {
		return false
	}
	found.fail(source.ReasonOtherNamespace, field+".namespace", "Secrets are read only in the control plane's namespace %q; move it there", r.opts.Namespace)
	return true
}

// vault finds the token first.
func (r *Roots) vault(ctx context.Context, found *rootSource, now time.Time) []string {
	const field = "spec.provider.vault"
	spec := found.object.Spec.Provider.Vault
	if r.opts.Providers.Vault == nil {
		found.fail(source.ReasonNotSupported, field, "this control plane cannot use Vault")
		return nil
	}
	ref := spec.Token.SecretKeyRef
	if r.inOtherNamespace(found, field+".token.secretKeyRef", ref.Namespace) {
		return nil
	}
	token, err := r.token(ctx, ref)
	if err != nil {
		found.unavailable(field+".token.secretKeyRef", err)
		return []string{ref.Name}
	}
	r.resolveExternal(ctx, found, field, now, token)
	return []string{ref.Name}
}

func (r *Roots) token(ctx context.Context, ref v1alpha2.SecretKeyReferenceSpec) (string, error) {
	secret, err := r.opts.Secrets.Get(ctx, ref.Name)
	if errors.Is(err, store.ErrNotFound) || err == nil && secret.Version == "" {
		return "", fmt.Errorf("there is no such Secret: %s", r.opts.Secrets.Describe(ref.Name))
	}
	if err != nil {
		return "", err
	}
	token := secret.Data[ref.Key]
	if len(token) == 0 {
		return "", fmt.Errorf("%s has no key %q; it must hold the token", r.opts.Secrets.Describe(ref.Name), ref.Key)
	}
	return string(token), nil
}

// resolveExternal reads the roots of an external issuer.
func (r *Roots) resolveExternal(ctx context.Context, found *rootSource, field string, now time.Time, token string) {
	provider := found.object.Spec.Provider
	id := providerID(provider)
	made, key, err := r.issuerFor(id, token, provider)
	if err != nil {
		found.fail(reasonUnusable, field, "%s", err)
		return
	}
	roots, err := made.Roots(ctx)
	if err != nil {
		found.unavailable(field, err)
		return
	}
	err = pki.CheckRoots(roots)
	// Some of several roots may have expired.
	roots = slices.DeleteFunc(roots, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	if err == nil && len(roots) == 0 {
		err = errors.New("all of them are expired")
	}
	if err != nil {
		found.fail(reasonUnusable, field, "its roots cannot be used: %s", err)
		return
	}
	found.candidate = &candidate{
		signer: signer{Source: found.source, ID: id, Provider: &provider, Roots: fingerprints(roots)},
		issuer: made, key: key, roots: roots,
	}
}

// issuerFor returns the issuer for a provider and a token, from the cache if possible, and
// a key that identifies the issuer.
func (r *Roots) issuerFor(id, token string, provider v1alpha2.ProviderSpec) (issuer.Issuer, string, error) {
	sum := sha256.Sum256([]byte(id + "\x00" + token))
	key := hex.EncodeToString(sum[:])
	if have, ok := r.issuers[key]; ok {
		r.inUse[key] = have
		return have, key, nil
	}
	var made issuer.Issuer
	err := errors.New("this control plane cannot use it")
	switch {
	case provider.CertManager != nil && r.opts.Providers.CertManager != nil:
		made, err = r.opts.Providers.CertManager(*provider.CertManager)
	case provider.Vault != nil && r.opts.Providers.Vault != nil:
		made, err = r.opts.Providers.Vault(*provider.Vault, token)
	}
	if err != nil {
		return nil, "", err
	}
	r.issuers[key], r.inUse[key] = made, made
	return made, key, nil
}

func providerID(provider v1alpha2.ProviderSpec) string {
	text, _ := json.Marshal(provider) // Strings and numbers cannot fail.
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// resolveOwnCA reads the mesh's own CA from a Secret and creates it if the Secret is empty.
func (r *Roots) resolveOwnCA(ctx context.Context, found *rootSource, name, field string) {
	secret, err := r.opts.Secrets.Get(ctx, name)
	if err == nil && secret.Empty {
		secret, err = r.createCA(ctx, name, secret)
	}
	if err != nil {
		found.unavailable(field, err)
		return
	}
	key := secret.Data[keyKey]
	if len(key) == 0 {
		key = secret.Data[keyLegacyKey]
	}
	if found.candidate, err = ownCandidate(found.source, secret.Data[keyCert], key); err != nil {
		found.fail(reasonUnusable, field, "%s: %s", r.opts.Secrets.Describe(name), err)
	}
}

// createCA creates a CA in an empty Secret. If another replica was faster, it returns that
// one's CA.
func (r *Roots) createCA(ctx context.Context, name string, empty store.Secret) (store.Secret, error) {
	// CAs have different names, so that they cannot be confused.
	cert, key, err := issuer.NewRoot("outrigger-ca "+randomName(), issuer.RootLife)
	if err != nil {
		return store.Secret{}, err
	}
	err = r.opts.Secrets.Update(ctx, name, empty, map[string][]byte{keyCert: cert, keyKey: key})
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return store.Secret{}, err
	}
	if err == nil {
		r.opts.Log.Info("created a new CA", "in", r.opts.Secrets.Describe(name))
	}
	return r.opts.Secrets.Get(ctx, name)
}

func randomName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // It never fails.
	return hex.EncodeToString(b[:])
}

// ownCandidate returns the candidate for the PEM of an own CA.
func ownCandidate(source string, cert, key []byte) (*candidate, error) {
	if len(cert) == 0 {
		return nil, errors.New("it has no " + keyCert)
	}
	if len(key) == 0 {
		return nil, fmt.Errorf("it has neither %s nor %s", keyKey, keyLegacyKey)
	}
	ca, err := issuer.FromPEM(cert, key)
	if err != nil {
		return nil, err
	}
	roots, err := ca.Roots(context.Background())
	if err != nil {
		return nil, err
	}
	chain, err := pki.ParseBundle(cert)
	if err != nil {
		return nil, err
	}
	// The same certificates in another order, with comments or other line endings are the same CA.
	text := chain.Encode()
	sum := sha256.Sum256(text)
	return &candidate{
		signer: signer{
			Source: source, ID: hex.EncodeToString(sum[:]), Certificate: string(text), Key: string(key), Roots: fingerprints(roots),
		},
		issuer: ca, roots: roots,
	}, nil
}

// warnExpiry adds a problem if an active root expires soon.
func (r *rootSource) warnExpiry(now time.Time) {
	if r.candidate == nil || !r.active {
		return
	}
	for _, c := range r.candidate.roots {
		if left := c.NotAfter.Sub(now); left < expiryWarning {
			r.fail(reasonExpiring, "", "the root %q expires at %s, and no certificate is valid for longer; replace it before then, see docs/identity.md",
				c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
		}
	}
}

// objectRef returns the reference of a source's object or Secret.
func (r *Roots) objectRef(found *rootSource) mesh.ObjectRef {
	if found.object == nil {
		return mesh.ObjectRef{APIVersion: "v1", Kind: "Secret", Namespace: r.opts.Namespace, Name: r.opts.Secret}
	}
	return mesh.ObjectRef{
		APIVersion: v1alpha2.SchemeGroupVersion.String(), Kind: "MeshRootCertificate",
		Namespace: found.object.Namespace, Name: found.object.Name,
	}
}
