package root

import (
	"cmp"
	"context"
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
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The reasons of Problems, beside those of package source.
const (
	// ReasonUnusable says that a CA cannot be used: a certificate that cannot be read,
	// is expired or may not sign, or a key that does not fit. What was used before goes
	// on.
	ReasonUnusable = "Unusable"
	// ReasonUnavailable says that a CA or a Secret could not be asked. It is asked again.
	ReasonUnavailable = "Unavailable"
	// ReasonExpiring says that a root which signs ends soon.
	ReasonExpiring = "Expiring"
)

// expiring is how long before its end a root that signs becomes a Problem.
const expiring = 30 * 24 * time.Hour

// problem is what is wrong with one object or Secret, before it is known to whom it
// is told.
type problem struct {
	reason, field, message string
	// retry says that it may go away by itself.
	retry bool
}

// root is one MeshRootCertificate, or the mesh's own CA where object is nil.
type root struct {
	object    *v1alpha2.MeshRootCertificate
	source    string
	active    bool
	candidate *candidate
	problems  []problem
}

func (r *root) fail(reason, field, format string, args ...any) {
	r.problems = append(r.problems, problem{reason: reason, field: field, message: fmt.Sprintf(format, args...)})
}

// unavailable notes what may work the next time.
func (r *root) unavailable(field string, err error) {
	r.problems = append(r.problems, problem{reason: ReasonUnavailable, field: field, message: err.Error() + "; asking again", retry: true})
}

func sourceOf(object *v1alpha2.MeshRootCertificate) string {
	return "MeshRootCertificate " + object.Name
}

// wish reads all that says which roots there should be: by age, and the mesh's own CA
// last if it is wanted. Names are the Secrets that matter.
func (r *Roots) wish(ctx context.Context, now time.Time) (roots []*root, names []string, err error) {
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
		found := &root{object: object, source: sourceOf(object)}
		switch object.Spec.Intent {
		case v1alpha2.IntentActive:
			found.active = true
		case v1alpha2.IntentPassive:
		default: // Only in a file, which no schema has seen.
			found.fail(source.ReasonInvalid, "spec.intent", "%q is neither active nor passive; it counts as passive", string(object.Spec.Intent))
		}
		active = active || found.active
		names = append(names, r.resolve(ctx, found, now)...)
		roots = append(roots, found)
	}
	if !active {
		own := &root{source: "Secret " + r.opts.Secret, active: true}
		r.own(ctx, own, r.opts.Secret, "")
		names = append(names, r.opts.Secret)
		roots = append(roots, own)
	}
	for _, found := range roots {
		result := "success"
		if found.candidate == nil {
			result = "error"
		}
		r.refreshes.WithLabelValues(result).Inc()
		found.check(now)
	}
	return roots, names, nil
}

// resolve finds the CA of an object, and returns the Secrets that it depends on.
func (r *Roots) resolve(ctx context.Context, found *root, now time.Time) []string {
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
		if r.elsewhere(found, field, ref.Namespace) {
			return nil
		}
		name := cmp.Or(ref.Name, r.opts.Secret)
		r.own(ctx, found, name, field)
		return []string{name}
	case provider.CertManager != nil:
		const field = "spec.provider.certManager"
		if r.opts.Providers.CertManager == nil {
			found.fail(source.ReasonNotSupported, field, "this control plane cannot ask cert-manager, because it is not on a cluster")
			return nil
		}
		r.external(ctx, found, field, now, "")
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

// elsewhere refuses a Secret of another namespace, which we have no right to read.
func (r *Roots) elsewhere(found *root, field, namespace string) bool {
	if namespace == "" || namespace == r.opts.Namespace {
		return false
	}
	found.fail(source.ReasonOtherNamespace, field+".namespace", "Secrets are read in the control plane's namespace %q only; put it there", r.opts.Namespace)
	return true
}

// vault finds the token first.
func (r *Roots) vault(ctx context.Context, found *root, now time.Time) []string {
	const field = "spec.provider.vault"
	spec := found.object.Spec.Provider.Vault
	if r.opts.Providers.Vault == nil {
		found.fail(source.ReasonNotSupported, field, "this control plane cannot ask Vault")
		return nil
	}
	ref := spec.Token.SecretKeyRef
	if r.elsewhere(found, field+".token.secretKeyRef", ref.Namespace) {
		return nil
	}
	token, err := r.token(ctx, ref)
	if err != nil {
		found.unavailable(field+".token.secretKeyRef", err)
		return []string{ref.Name}
	}
	r.external(ctx, found, field, now, token)
	return []string{ref.Name}
}

func (r *Roots) token(ctx context.Context, ref v1alpha2.SecretKeyReferenceSpec) (string, error) {
	secret, err := r.opts.Secrets.Get(ctx, ref.Name)
	if errors.Is(err, ErrNotFound) || err == nil && secret.version == "" {
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

// external finds the roots of an issuer that is not ours.
func (r *Roots) external(ctx context.Context, found *root, field string, now time.Time, token string) {
	provider := found.object.Spec.Provider
	id := providerID(provider)
	made, key, err := r.make(id, token, provider)
	if err != nil {
		found.fail(ReasonUnusable, field, "%s", err)
		return
	}
	text, err := made.Roots(ctx)
	if err != nil {
		found.unavailable(field, err)
		return
	}
	roots, err := pki.ParseRoots(text)
	if err == nil {
		// One of several may be over.
		roots = slices.DeleteFunc(roots, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
		if len(roots) == 0 {
			err = errors.New("all of them are expired")
		}
	}
	if err != nil {
		found.fail(ReasonUnusable, field, "its roots cannot be used: %s", err)
		return
	}
	found.candidate = &candidate{
		signer: signer{Source: found.source, ID: id, Provider: &provider, Roots: fingerprints(roots)},
		issuer: made, key: key, roots: roots,
	}
}

// make returns the issuer for a provider and a token, the same one each time, and a
// word that is another one for another issuer.
func (r *Roots) make(id, token string, provider v1alpha2.ProviderSpec) (issuer.Issuer, string, error) {
	sum := sha256.Sum256([]byte(id + "\x00" + token))
	key := hex.EncodeToString(sum[:])
	if have, ok := r.issuers[key]; ok {
		r.inUse[key] = have
		return have, key, nil
	}
	var made issuer.Issuer
	err := errors.New("this control plane cannot ask it")
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
	text, _ := json.Marshal(provider) // It holds strings and numbers only.
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// own finds our own CA in a Secret, and makes it if the Secret is empty.
func (r *Roots) own(ctx context.Context, found *root, name, field string) {
	secret, err := r.opts.Secrets.Get(ctx, name)
	if err == nil && secret.empty {
		secret, err = r.fill(ctx, name, secret)
	}
	if err != nil {
		found.unavailable(field, err)
		return
	}
	found.candidate, err = ownCandidate(found.source, secret.Data[keyCert], cmpBytes(secret.Data[keyKey], secret.Data[keyLegacyKey]))
	if err != nil {
		found.fail(ReasonUnusable, field, "%s: %s", r.opts.Secrets.Describe(name), err)
	}
}

// fill makes a new CA. Another replica may have been quicker, and then it is its.
func (r *Roots) fill(ctx context.Context, name string, empty Secret) (Secret, error) {
	cert, key, err := newRoot()
	if err != nil {
		return Secret{}, err
	}
	err = r.opts.Secrets.Update(ctx, name, empty, map[string][]byte{keyCert: cert, keyKey: key})
	if err != nil && !errors.Is(err, ErrConflict) {
		return Secret{}, err
	}
	if err == nil {
		r.opts.Log.Info("made a new CA", "in", r.opts.Secrets.Describe(name))
	}
	return r.opts.Secrets.Get(ctx, name)
}

// newRoot makes a CA. No two have the same name, so that nobody takes one for the
// other.
func newRoot() (cert, key []byte, err error) {
	return issuer.NewRoot("outrigger-ca "+randomName(), issuer.RootLife)
}

// ownCandidate reads an own CA.
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
	text, err := ca.Roots(context.Background())
	if err != nil {
		return nil, err
	}
	roots, err := pki.ParseRoots(text)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(cert)
	return &candidate{
		signer: signer{
			Source: source, ID: hex.EncodeToString(sum[:]), Certificate: string(cert), Key: string(key), Roots: fingerprints(roots),
		},
		issuer: ca, roots: roots,
	}, nil
}

// check warns of what will soon not work any more.
func (r *root) check(now time.Time) {
	if r.candidate == nil || !r.active {
		return
	}
	for _, c := range r.candidate.roots {
		if left := c.NotAfter.Sub(now); left < expiring {
			r.fail(ReasonExpiring, "", "the root %q ends at %s, and no certificate lives longer; replace it before, as docs/identity.md says",
				c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
		}
	}
}

// refOf names what a root came from.
func (r *Roots) refOf(found *root) mesh.ObjectRef {
	if found.object == nil {
		return mesh.ObjectRef{APIVersion: "v1", Kind: "Secret", Namespace: r.opts.Namespace, Name: r.opts.Secret}
	}
	return mesh.ObjectRef{
		APIVersion: v1alpha2.SchemeGroupVersion.String(), Kind: "MeshRootCertificate",
		Namespace: found.object.Namespace, Name: found.object.Name,
	}
}

func cmpBytes(a, b []byte) []byte {
	if len(a) > 0 {
		return a
	}
	return b
}
