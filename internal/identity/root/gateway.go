package root

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	keyTLSCert = "tls.crt"
	keyTLSKey  = "tls.key"

	// minGatewayLife is the minimum lifetime; with less, a gateway would reload constantly.
	minGatewayLife = 10 * time.Second
)

// GatewaySecrets stores the Secret of the gateway's certificate, in any namespace.
type GatewaySecrets interface {
	// Get returns a Secret and whether the controller filled it. If the store creates
	// Secrets, a missing one is empty; otherwise the error wraps ErrNotFound.
	Get(ctx context.Context, namespace, name string) (secret Secret, ours bool, err error)
	// Put fills or changes the Secret that Get returned. The error wraps ErrConflict if it
	// has changed since.
	Put(ctx context.Context, namespace, name string, old Secret, data map[string][]byte) error
	// Clear empties a Secret that the controller filled. It does nothing for other or
	// missing Secrets.
	Clear(ctx context.Context, namespace, name string) error
}

// GatewayOptions configure a Gateway. All of them but Report are required.
type GatewayOptions struct {
	Roots   *Roots
	Secrets GatewaySecrets
	// Spec returns the MeshConfig's current spec; nil means no certificate. While known is
	// false, the Gateway does nothing.
	Spec func() (spec *v1alpha2.IngressGatewayCertSpec, known bool)
	// Bundle returns the PEM of the currently trusted roots.
	Bundle func() []byte
	// Report is called after each change of whether a certificate is wanted or of the
	// failure, which is nil if all is well. It must not block.
	Report func(wanted bool, failure error)
	Log    *slog.Logger
}

// Gateway maintains the certificate of an ingress gateway: tls.crt, tls.key and ca.crt in a
// Secret that the MeshConfig names and that is empty at first. The certificate is renewed
// after two thirds of its lifetime, when its names or the signing root change, and when the
// Secret was damaged. The Secret is cleared when the MeshConfig names another or none.
type Gateway struct {
	opts    GatewayOptions
	changed chan struct{}
}

// NewGateway returns a Gateway that does nothing before Run.
func NewGateway(opts GatewayOptions) *Gateway {
	return &Gateway{opts, make(chan struct{}, 1)}
}

// Trigger checks the certificate again soon, such as after a change of the MeshConfig or
// the trust bundle. It is safe for use by many goroutines.
func (g *Gateway) Trigger() { notify(g.changed) }

// Run maintains the certificate until ctx ends. Call it once.
func (g *Gateway) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-g.opts.Roots.Ready():
	}
	g.opts.Roots.OnReport(func(Report) { g.Trigger() })
	reported := "?"
	for {
		wanted, rest, err := g.step(ctx)
		if ctx.Err() != nil {
			return
		}
		if text := fmt.Sprint(wanted, err); text != reported {
			reported = text
			if err != nil {
				g.opts.Log.Error("cannot maintain the ingress gateway's certificate; retrying", "error", err)
			}
			if g.opts.Report != nil {
				g.opts.Report(wanted, err)
			}
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-g.changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// step checks and, if necessary, renews the certificate. It returns when the next check is
// due.
func (g *Gateway) step(ctx context.Context) (wanted bool, rest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	spec, known := g.opts.Spec()
	if !known {
		return false, pollInterval, nil
	}
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
	ref  secretRef
	dns  []string
	ips  []string
	life time.Duration
}

func newGatewayCert(spec *v1alpha2.IngressGatewayCertSpec) (*gatewayCert, error) {
	w := &gatewayCert{ref: secretRef{spec.Secret.Namespace, spec.Secret.Name}}
	if w.ref.Namespace == "" || w.ref.Name == "" {
		return nil, errors.New("secret: a name and a namespace are needed")
	}
	var err error
	if w.life, err = spec.ValidityDuration.Parse(); err != nil {
		return nil, fmt.Errorf("validityDuration: %w", err)
	}
	if w.life = cmp.Or(w.life, defaultLife); w.life < minGatewayLife {
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
func (g *Gateway) clearFormer(ctx context.Context, want *gatewayCert) error {
	s, _, err := g.opts.Roots.state(ctx)
	if err != nil {
		return err
	}
	if s.Gateway == nil || want != nil && *s.Gateway == want.ref {
		return nil
	}
	if err := g.opts.Secrets.Clear(ctx, s.Gateway.Namespace, s.Gateway.Name); err != nil {
		return err
	}
	return g.opts.Roots.recordGateway(ctx, nil)
}

// ensure updates the Secret if necessary and returns when its certificate must be renewed.
func (g *Gateway) ensure(ctx context.Context, want *gatewayCert) (time.Time, error) {
	signing, signers, err := g.opts.Roots.Signing()
	if err != nil {
		return time.Time{}, err
	}
	bundle := g.opts.Bundle()
	trusted, err := pki.ParseRoots(bundle)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: there is no trust bundle yet", issuer.ErrUnavailable)
	}
	// Record the Secret before filling it, so that it can be cleared later.
	if err := g.opts.Roots.recordGateway(ctx, &want.ref); err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	secret, ours, err := g.opts.Secrets.Get(ctx, want.ref.Namespace, want.ref.Name)
	if err != nil {
		return time.Time{}, err
	}
	if !ours && !secret.empty && verified(secret.Data, trusted, now.Add(-skew)) == nil {
		return time.Time{}, fmt.Errorf("secret: Secret %s/%s contains something other than a certificate of the mesh; empty it or name another one", want.ref.Namespace, want.ref.Name)
	}
	leaf := verified(secret.Data, signers, now)
	if !ours || leaf == nil || !want.fits(leaf) || !now.Before(want.renewal(leaf)) {
		return g.issue(ctx, want, signing, secret, bundle)
	}
	if !bytes.Equal(secret.Data[keyCert], bundle) {
		data := map[string][]byte{keyTLSCert: secret.Data[keyTLSCert], keyTLSKey: secret.Data[keyTLSKey], keyCert: bundle}
		if err := g.opts.Secrets.Put(ctx, want.ref.Namespace, want.ref.Name, secret, data); err != nil {
			return time.Time{}, err
		}
	}
	return want.renewal(leaf), nil
}

// issue stores a new key and certificate.
func (g *Gateway) issue(ctx context.Context, want *gatewayCert, signing issuer.Issuer, old Secret, bundle []byte) (time.Time, error) {
	key, err := pki.NewKey()
	if err != nil {
		return time.Time{}, err
	}
	csr, err := want.request(key)
	if err != nil {
		return time.Time{}, err
	}
	chain, err := signing.Issue(ctx, issuer.Request{CSR: csr, CommonName: want.commonName(), DNSNames: want.dns, IPAddresses: want.ips, Life: want.life})
	if err != nil {
		return time.Time{}, err
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		return time.Time{}, err
	}
	data := map[string][]byte{
		keyTLSCert: chain, keyTLSKey: text, keyCert: bundle,
	}
	if err := g.opts.Secrets.Put(ctx, want.ref.Namespace, want.ref.Name, old, data); err != nil {
		return time.Time{}, err
	}
	pair, err := tls.X509KeyPair(chain, data[keyTLSKey])
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the signed certificate: %w", err)
	}
	g.opts.Log.Info("issued the ingress gateway's certificate", "secret", want.ref.Namespace+"/"+want.ref.Name, "names", slices.Concat(want.dns, want.ips), "end", pair.Leaf.NotAfter)
	return want.renewal(pair.Leaf), nil
}

// request returns a CSR with exactly the desired names, because some issuers sign it
// unchanged.
func (w *gatewayCert) request(key *ecdsa.PrivateKey) (*x509.CertificateRequest, error) {
	template := &x509.CertificateRequest{DNSNames: w.dns}
	template.Subject.CommonName = w.commonName()
	for _, ip := range w.ips {
		template.IPAddresses = append(template.IPAddresses, netip.MustParseAddr(ip).AsSlice())
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("creating a certificate request: %w", err)
	}
	return x509.ParseCertificateRequest(der)
}

// fits reports whether a certificate has the desired names and lifetime. An issuer may
// shorten the lifetime, or extend it slightly.
func (w *gatewayCert) fits(leaf *x509.Certificate) bool {
	names, err := pki.NamesOf(leaf)
	return err == nil && slices.Equal(names.DNS, w.dns) && slices.Equal(names.IPs, w.ips) &&
		leaf.NotAfter.Sub(leaf.NotBefore) <= w.life+2*skew
}

// verified returns the leaf certificate of a Secret if one of the roots verifies it and its
// key matches, otherwise nil.
func verified(data map[string][]byte, roots []*x509.Certificate, now time.Time) *x509.Certificate {
	pair, err := tls.X509KeyPair(data[keyTLSCert], data[keyTLSKey])
	if err != nil {
		return nil
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: pki.NewBundle(roots...).Pool(), Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
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

// recordGateway stores which Secret has the ingress gateway's certificate.
func (r *Roots) recordGateway(ctx context.Context, ref *secretRef) error {
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
		if err := r.save(ctx, secret, s); !errors.Is(err, ErrConflict) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(conflictDelay):
		}
	}
}
