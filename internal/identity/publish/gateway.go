package publish

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

const (
	// minGatewayLife is the minimum lifetime; with less, a gateway would reload constantly.
	minGatewayLife = 10 * time.Second

	// pollInterval is how often the Secret is checked without a change; retryInterval
	// applies after a failure and conflictDelay after another change of the MeshConfig.
	pollInterval  = 30 * time.Second
	retryInterval = 5 * time.Second
	conflictDelay = 50 * time.Millisecond
	// requestTimeout bounds all external requests of one check together.
	requestTimeout = 30 * time.Second
)

// gateway maintains the certificate of an ingress gateway: tls.crt, tls.key and ca.crt in a
// Secret that the MeshConfig names and that is empty at first. The certificate is renewed
// after two thirds of its lifetime, when its names or the signing root change, and when the
// Secret was damaged. The Secret is cleared when the MeshConfig names another or none.
type gateway struct {
	roots   *root.Roots
	trust   certificate.Manager
	facts   *kube.Source
	secrets gatewaySecrets
	// client writes the MeshConfig's status, and events writes Events.
	client, events client.Client
	log            *slog.Logger
	// logged is the failure that was logged last.
	logged string
}

// start requests a check after each change of the MeshConfig, the roots or the trust
// bundle.
func (g *gateway) start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	check := func() { queue.Add(reconcile.Request{}) }
	g.facts.OnMeshConfig(func(*v1alpha2.MeshConfig) { check() })
	g.roots.OnReport(func(root.Report) { check() })
	changed := g.trust.TrustBundleChanged(ctx.Done())
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				check()
			}
		}
	}()
	return nil
}

// Reconcile maintains the certificate and reports its state. It ignores the request.
func (g *gateway) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	// Without the MeshConfig it would clear the Secret.
	if err := g.facts.WaitForSync(ctx); err != nil {
		return reconcile.Result{}, nil // It fails only when ctx has ended.
	}
	select {
	case <-ctx.Done():
		return reconcile.Result{}, nil
	case <-g.roots.Ready():
	}
	wanted, rest, failure := g.step(ctx, gatewaySpec(g.facts.MeshConfig()))
	if ctx.Err() != nil {
		return reconcile.Result{}, nil
	}
	text := fmt.Sprint(failure)
	if failure != nil && text != g.logged {
		g.log.Error("cannot maintain the ingress gateway's certificate; retrying", "error", failure)
	}
	g.logged = text
	if err := g.report(ctx, wanted, failure); apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("writing the MeshConfig's condition for the ingress gateway's certificate: %w", err)
	}
	return reconcile.Result{RequeueAfter: rest}, nil
}

// step checks and, if necessary, renews the certificate. It returns when the next check is
// due.
func (g *gateway) step(ctx context.Context, spec *v1alpha2.IngressGatewayCertSpec) (wanted bool, rest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var want *gatewayCert
	if spec != nil {
		if want, err = newGatewayCert(spec); err != nil {
			// The existing certificate stays.
			return true, pollInterval, err
		}
	}
	if err := g.clearFormer(ctx, want); err != nil {
		return spec != nil, retryInterval, err
	}
	if want == nil {
		return false, pollInterval, nil
	}
	due, err := g.ensure(ctx, want)
	if err != nil {
		return true, retryInterval, err
	}
	return true, min(max(time.Until(due), time.Second), pollInterval), nil
}

// gatewayCert is the validated certificate spec of the MeshConfig.
type gatewayCert struct {
	ref  root.SecretRef
	dns  []string
	ips  []string
	life time.Duration
}

func newGatewayCert(spec *v1alpha2.IngressGatewayCertSpec) (*gatewayCert, error) {
	w := &gatewayCert{ref: root.SecretRef{Namespace: spec.Secret.Namespace, Name: spec.Secret.Name}}
	if w.ref.Namespace == "" || w.ref.Name == "" {
		return nil, errors.New("secret: a name and a namespace are needed")
	}
	var err error
	if w.life, err = spec.ValidityDuration.Parse(); err != nil {
		return nil, fmt.Errorf("validityDuration: %w", err)
	}
	if w.life = cmp.Or(w.life, issuer.DefaultLife); w.life < minGatewayLife {
		return nil, fmt.Errorf("validityDuration: %s is shorter than %s", w.life, minGatewayLife)
	}
	for i, name := range spec.SubjectAltNames {
		if ip, err := netip.ParseAddr(name); err == nil && ip.Zone() == "" {
			w.ips = append(w.ips, ip.Unmap().String())
			continue
		}
		if validation.IsDNS1123Subdomain(name) != nil && validation.IsWildcardDNS1123Subdomain(name) != nil {
			return nil, fmt.Errorf("subjectAltNames[%d]: %q is neither a host name in lower case nor an IP address", i, name)
		}
		w.dns = append(w.dns, name)
	}
	slices.Sort(w.dns)
	slices.Sort(w.ips)
	w.dns, w.ips = slices.Compact(w.dns), slices.Compact(w.ips)
	if len(w.dns)+len(w.ips) == 0 {
		return nil, errors.New("subjectAltNames: at least one is needed")
	}
	return w, nil
}

// commonName returns the first name that is short enough, or "".
func (w *gatewayCert) commonName() string {
	for _, name := range slices.Concat(w.dns, w.ips) {
		if len(name) <= pki.MaxCommonName {
			return name
		}
	}
	return ""
}

// clearFormer clears the filled Secret if the MeshConfig no longer names it.
func (g *gateway) clearFormer(ctx context.Context, want *gatewayCert) error {
	former, err := g.roots.Gateway(ctx)
	if err != nil || former == nil || want != nil && *former == want.ref {
		return err
	}
	if err := g.secrets.clear(ctx, *former); err != nil {
		return err
	}
	return g.roots.SetGateway(ctx, nil)
}

// ensure updates the Secret if necessary and returns when its certificate must be renewed.
func (g *gateway) ensure(ctx context.Context, want *gatewayCert) (time.Time, error) {
	trust, signers, err := g.roots.Trust()
	if err != nil {
		return time.Time{}, err
	}
	trusted := pki.NewBundle(trust.Roots...)
	bundle := trusted.Encode()
	// Record the Secret before filling it, so that it can be cleared later.
	if err := g.roots.SetGateway(ctx, &want.ref); err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	secret, ours, err := g.secrets.get(ctx, want.ref)
	if err != nil {
		return time.Time{}, err
	}
	if !ours && !secret.Empty && verified(secret.Data, trusted, now.Add(-pki.Skew)) == nil {
		return time.Time{}, fmt.Errorf("secret: Secret %s/%s contains something other than a certificate of the mesh; empty it or name another one", want.ref.Namespace, want.ref.Name)
	}
	leaf := verified(secret.Data, signers, now)
	if !ours || leaf == nil || !want.fits(leaf) || !now.Before(want.renewal(leaf)) {
		return g.issue(ctx, want, trust.Signing, secret, bundle)
	}
	if !bytes.Equal(secret.Data[bundleKey], bundle) {
		data := map[string][]byte{corev1.TLSCertKey: secret.Data[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: secret.Data[corev1.TLSPrivateKeyKey], bundleKey: bundle}
		if err := g.secrets.put(ctx, want.ref, secret, data); err != nil {
			return time.Time{}, err
		}
	}
	return want.renewal(leaf), nil
}

// issue stores a new key and certificate.
func (g *gateway) issue(ctx context.Context, want *gatewayCert, signing issuer.Issuer, old store.Secret, bundle []byte) (time.Time, error) {
	request, key, err := issuer.NewServerRequest(want.commonName(), want.dns, want.ips, want.life)
	if err != nil {
		return time.Time{}, err
	}
	chain, err := signing.Issue(ctx, request)
	if err != nil {
		return time.Time{}, err
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		return time.Time{}, err
	}
	data := map[string][]byte{corev1.TLSCertKey: pki.Encode(chain...), corev1.TLSPrivateKeyKey: text, bundleKey: bundle}
	if err := g.secrets.put(ctx, want.ref, old, data); err != nil {
		return time.Time{}, err
	}
	g.log.Info("issued the ingress gateway's certificate", "secret", want.ref.Namespace+"/"+want.ref.Name, "names", slices.Concat(want.dns, want.ips), "end", chain[0].NotAfter)
	return want.renewal(chain[0]), nil
}

// fits reports whether a certificate has the desired names and lifetime. An issuer may
// shorten the lifetime, or extend it slightly.
func (w *gatewayCert) fits(leaf *x509.Certificate) bool {
	names, err := pki.NamesOf(leaf)
	return err == nil && slices.Equal(names.DNS, w.dns) && slices.Equal(names.IPs, w.ips) &&
		leaf.NotAfter.Sub(leaf.NotBefore) <= w.life+2*pki.Skew
}

// verified returns the leaf certificate of a Secret if one of the roots verifies it and its
// key matches, otherwise nil.
func verified(data map[string][]byte, roots pki.Bundle, now time.Time) *x509.Certificate {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil
	}
	between, err := x509.ParseCertificates(slices.Concat(pair.Certificate[1:]...))
	if err != nil {
		return nil
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots.Pool(), Intermediates: pki.NewBundle(between...).Pool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil
	}
	return pair.Leaf
}

// renewal returns when a third of the lifetime is left. Certificates are valid from a
// little before they are issued; that time does not count.
func (w *gatewayCert) renewal(leaf *x509.Certificate) time.Time {
	return leaf.NotAfter.Add(-min(w.life, leaf.NotAfter.Sub(leaf.NotBefore)) / 3)
}
