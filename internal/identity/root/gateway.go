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

	// minGatewayLife is below which a gateway would do nothing but reload.
	minGatewayLife = 10 * time.Second
	// maxCommonName is the limit of X.509, in bytes.
	maxCommonName = 64
)

// GatewaySecrets is where the Secret of the gateway's certificate is kept. It is any
// namespace's.
type GatewaySecrets interface {
	// Get returns a Secret, and whether we have filled it. Where Secrets are made here,
	// one that is missing is empty; elsewhere the error wraps ErrNotFound.
	Get(ctx context.Context, namespace, name string) (secret Secret, ours bool, err error)
	// Put fills or changes the Secret that Get returned. The error wraps ErrConflict if it
	// is not as it was.
	Put(ctx context.Context, namespace, name string, old Secret, data map[string][]byte) error
	// Clear takes what we have put there out of a Secret. Any other is left alone, and one
	// that is gone is no error.
	Clear(ctx context.Context, namespace, name string) error
}

// GatewayOptions configure a Gateway. All of them but Report are required.
type GatewayOptions struct {
	Roots   *Roots
	Secrets GatewaySecrets
	// Spec returns what the MeshConfig says now; nil for no certificate. known is false
	// as long as there is no telling, and then nothing is done.
	Spec func() (spec *v1alpha2.IngressGatewayCertSpec, known bool)
	// Bundle returns the PEM of the roots that are trusted now.
	Bundle func() []byte
	// Report is called with what is wrong, or nil, whenever that has changed, and with
	// whether a certificate is wanted at all. It must not block.
	Report func(wanted bool, failure error)
	Log    *slog.Logger
}

// Gateway keeps the certificate of an ingress gateway: tls.crt, tls.key and ca.crt in a
// Secret that the MeshConfig names, which is empty at first. It is renewed at two thirds
// of its life, when its names change, when another root signs or when somebody has broken
// it. The former Secret is cleared when another one is named, or none.
type Gateway struct {
	opts    GatewayOptions
	changed chan struct{}
}

// NewGateway returns a Gateway that does nothing before Run.
func NewGateway(opts GatewayOptions) *Gateway {
	return &Gateway{opts, make(chan struct{}, 1)}
}

// Look has everything looked at again soon, as after a change of the MeshConfig or of
// the trust bundle. It may be called by many goroutines.
func (g *Gateway) Look() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run keeps the certificate until ctx ends. It is called once.
func (g *Gateway) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-g.opts.Roots.Ready():
	}
	g.opts.Roots.OnReport(func(Report) { g.Look() })
	told := "?"
	for {
		wanted, rest, err := g.step(ctx)
		if ctx.Err() != nil {
			return
		}
		if text := fmt.Sprint(wanted, err); text != told {
			told = text
			if err != nil {
				g.opts.Log.Error("the ingress gateway's certificate is not as it should be; trying again", "error", err)
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

// step does what is due and returns when to look again.
func (g *Gateway) step(ctx context.Context) (wanted bool, rest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	spec, known := g.opts.Spec()
	if !known {
		return false, again, nil
	}
	var want *gatewayWish
	if spec != nil {
		if want, err = newGatewayWish(spec); err != nil {
			// What is there goes on, for want of a better one.
			return true, again, err
		}
	}
	if err := g.forget(ctx, want); err != nil {
		return spec != nil, soon, err
	}
	if want == nil {
		return false, again, nil
	}
	due, err := g.keep(ctx, want)
	if err != nil {
		return true, soon, err
	}
	return true, min(max(time.Until(due), time.Second), again), nil
}

// gatewayWish is what the MeshConfig asks for, checked.
type gatewayWish struct {
	ref  secretRef
	dns  []string
	ips  []string
	life time.Duration
}

func newGatewayWish(spec *v1alpha2.IngressGatewayCertSpec) (*gatewayWish, error) {
	w := &gatewayWish{ref: secretRef{spec.Secret.Namespace, spec.Secret.Name}}
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

// commonName is the first name that fits.
func (w *gatewayWish) commonName() string {
	for _, name := range slices.Concat(w.dns, w.ips) {
		if len(name) <= maxCommonName {
			return name
		}
	}
	return ""
}

// forget clears the Secret that was filled and is not wanted any more.
func (g *Gateway) forget(ctx context.Context, want *gatewayWish) error {
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

// keep puts the Secret right if it is not, and returns when it is to be renewed.
func (g *Gateway) keep(ctx context.Context, want *gatewayWish) (time.Time, error) {
	signing, signers, err := g.opts.Roots.Signing()
	if err != nil {
		return time.Time{}, err
	}
	bundle := g.opts.Bundle()
	trusted, err := pki.ParseRoots(bundle)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: there is no trust bundle yet", issuer.ErrUnavailable)
	}
	// Whatever is filled is written down before, so that it is found again.
	if err := g.opts.Roots.recordGateway(ctx, &want.ref); err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	secret, ours, err := g.opts.Secrets.Get(ctx, want.ref.Namespace, want.ref.Name)
	if err != nil {
		return time.Time{}, err
	}
	if !ours && !secret.empty && verified(secret.Data, trusted, now.Add(-skew)) == nil {
		return time.Time{}, fmt.Errorf("secret: Secret %s/%s holds something else than a certificate of the mesh; empty it, or name another one", want.ref.Namespace, want.ref.Name)
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

// issue makes a key and has its certificate signed.
func (g *Gateway) issue(ctx context.Context, want *gatewayWish, signing issuer.Issuer, old Secret, bundle []byte) (time.Time, error) {
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
		return time.Time{}, fmt.Errorf("reading what was signed: %w", err)
	}
	g.opts.Log.Info("issued the ingress gateway's certificate", "secret", want.ref.Namespace+"/"+want.ref.Name, "names", slices.Concat(want.dns, want.ips), "end", pair.Leaf.NotAfter)
	return want.renewal(pair.Leaf), nil
}

// request is a CSR for exactly what is wanted, because some issuers sign it as it is.
func (w *gatewayWish) request(key *ecdsa.PrivateKey) (*x509.CertificateRequest, error) {
	template := &x509.CertificateRequest{DNSNames: w.dns}
	template.Subject.CommonName = w.commonName()
	for _, ip := range w.ips {
		template.IPAddresses = append(template.IPAddresses, netip.MustParseAddr(ip).AsSlice())
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate request: %w", err)
	}
	return x509.ParseCertificateRequest(der)
}

// fits reports whether a certificate is as wanted. An issuer may give a shorter life,
// and a little longer one.
func (w *gatewayWish) fits(leaf *x509.Certificate) bool {
	names, err := pki.NamesOf(leaf)
	return err == nil && slices.Equal(names.DNS, w.dns) && slices.Equal(names.IPs, w.ips) &&
		leaf.NotAfter.Sub(leaf.NotBefore) <= w.life+2*skew
}

// verified returns the leaf of a Secret if it leads to one of the roots and its key
// fits, else nil.
func verified(data map[string][]byte, roots []*x509.Certificate, now time.Time) *x509.Certificate {
	pair, err := tls.X509KeyPair(data[keyTLSCert], data[keyTLSKey])
	if err != nil {
		return nil
	}
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root)
	}
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil
	}
	return pair.Leaf
}

// renewal is when a third of the life is left. Certificates begin a little before they
// are made, which is not life.
func (w *gatewayWish) renewal(leaf *x509.Certificate) time.Time {
	return leaf.NotAfter.Add(-min(w.life, leaf.NotAfter.Sub(leaf.NotBefore)) / 3)
}

// recordGateway writes down which Secret was made for the ingress gateway.
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
		case <-time.After(lost):
		}
	}
}
