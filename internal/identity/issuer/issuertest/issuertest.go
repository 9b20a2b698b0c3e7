// Package issuertest is the conformance suite of issuers. An issuer's own tests call Run with
// an issuer that is ready to sign and only add what is specific to it.
package issuertest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Suite configures Run.
type Suite struct {
	// Issuer is ready and signs any name for at least an hour.
	Issuer issuer.Issuer
	// Prefix is the prefix of its errors, which must identify the issuer.
	Prefix string
	// Unreachable is an issuer of the same kind without a server; nil if it needs none.
	Unreachable issuer.Issuer
	// Secrets are texts that no error may contain: tokens, lines of a key.
	Secrets []string
	// Within is the timeout of an answer; 10 s if zero.
	Within time.Duration
}

const (
	life = time.Hour
	// soon is how long an issuer may continue after its context has ended.
	soon = 5 * time.Second
)

// Run runs the suite as subtests of t.
func Run(t *testing.T, s Suite) {
	if s.Within == 0 {
		s.Within = 10 * time.Second
	}
	t.Run("Names", s.names)
	t.Run("MoreInCSR", s.moreInCSR)
	t.Run("LessInCSR", s.lessInCSR)
	t.Run("Keys", s.keys)
	t.Run("Life", s.life)
	t.Run("LongLife", s.longLife)
	t.Run("RootsFirst", s.rootsFirst)
	t.Run("BadRequests", s.badRequests)
	t.Run("Concurrent", s.concurrent)
	t.Run("EndedContext", s.endedContext)
	if s.Unreachable != nil {
		t.Run("Unreachable", s.unreachable)
	}
}

func (s Suite) ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), s.Within)
	t.Cleanup(cancel)
	return ctx
}

// issue requests a certificate, which must succeed, and checks it.
func (s Suite) issue(t testing.TB, req issuer.Request) *x509.Certificate {
	t.Helper()
	chain, err := s.Issuer.Issue(s.ctx(t), req)
	if err != nil {
		t.Fatal(err)
	}
	return Check(t, req, chain, s.roots(t))
}

func (s Suite) roots(t testing.TB) []*x509.Certificate {
	t.Helper()
	roots, err := s.Issuer.Roots(s.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return roots
}

// refused checks that the issuer returns an error that a retry would not fix.
func (s Suite) refused(t testing.TB, chain []*x509.Certificate, err error) {
	t.Helper()
	if err == nil || chain != nil {
		t.Fatalf("got %d certificates and the error %v, want only an error", len(chain), err)
	}
	if errors.Is(err, issuer.ErrUnavailable) {
		t.Errorf("an error that is for ever says that another try could help: %v", err)
	}
	s.checkError(t, err)
}

func (s Suite) checkError(t testing.TB, err error) {
	t.Helper()
	if !strings.HasPrefix(err.Error(), s.Prefix) {
		t.Errorf("the error does not begin with %q: %v", s.Prefix, err)
	}
	for _, secret := range s.Secrets {
		if secret != "" && strings.Contains(err.Error(), secret) {
			t.Error("an error shows a secret")
		}
	}
}

func (s Suite) names(t *testing.T) {
	for name, req := range map[string]issuer.Request{"workload": Workload(t), "controller": Controller(t)} {
		t.Run(name, func(t *testing.T) { s.issue(t, req) })
	}
}

// moreInCSR tests CSRs that ask for more than the request: the issuer must refuse them or
// sign only the request's names.
func (s Suite) moreInCSR(t *testing.T) {
	admin, err := url.Parse("spiffe://cluster.local/ns/kube-system/sa/admin")
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]func(*x509.CertificateRequest){
		"URI":      func(c *x509.CertificateRequest) { c.URIs = append(c.URIs, admin) },
		"otherURI": func(c *x509.CertificateRequest) { c.URIs = []*url.URL{admin} },
		"DNSName": func(c *x509.CertificateRequest) {
			c.DNSNames = append(c.DNSNames, "admin.kube-system.sa.cluster.local")
		},
		"IPAddress":  func(c *x509.CertificateRequest) { c.IPAddresses = append(c.IPAddresses, net.IPv4(10, 0, 0, 1)) },
		"email":      func(c *x509.CertificateRequest) { c.EmailAddresses = []string{"admin@cluster.local"} },
		"commonName": func(c *x509.CertificateRequest) { c.Subject.CommonName = "admin.kube-system" },
		"unit":       func(c *x509.CertificateRequest) { c.Subject.OrganizationalUnit = []string{"another-pod"} },
		"secondUnit": func(c *x509.CertificateRequest) {
			c.Subject.OrganizationalUnit = append(c.Subject.OrganizationalUnit, "b")
		},
		"organization": func(c *x509.CertificateRequest) { c.Subject.Organization = []string{"system:masters"} },
		"CA": func(c *x509.CertificateRequest) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			req, key := Workload(t), newKey(t)
			template := *req.CSR
			more(&template)
			// A CSR is created from its fields, not from parsed extensions.
			template.RawSubject, template.Subject.Names = nil, nil
			//lint:ignore SA1019 what was read into it would be written too
			template.Attributes = nil
			req.CSR = Sign(t, key, &template)
			s.exactOrRefused(t, req)
		})
	}
}

// lessInCSR is the same for a CSR without names.
func (s Suite) lessInCSR(t *testing.T) {
	req := Workload(t)
	req.CSR = Sign(t, newKey(t), &x509.CertificateRequest{})
	s.exactOrRefused(t, req)
}

func (s Suite) exactOrRefused(t *testing.T, req issuer.Request) {
	t.Helper()
	chain, err := s.Issuer.Issue(s.ctx(t), req)
	if err != nil {
		s.refused(t, chain, err)
		return
	}
	Check(t, req, chain, s.roots(t))
}

// keys tests the keys that current TLS stacks generate.
func (s Suite) keys(t *testing.T) {
	p384, err1 := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	rsa2048, err2 := rsa.GenerateKey(rand.Reader, 2048)
	_, edwards, err3 := ed25519.GenerateKey(rand.Reader)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"P-384": p384, "RSA": rsa2048, "Ed25519": edwards} {
		t.Run(name, func(t *testing.T) { s.issue(t, Fill(t, key, Workload(t))) })
	}
}

func (s Suite) life(t *testing.T) {
	for _, life := range []time.Duration{10 * time.Minute, time.Hour} {
		req := Workload(t)
		req.Life = life
		before := time.Now().Truncate(time.Second)
		leaf := s.issue(t, req)
		if earliest, latest := before.Add(life), time.Now().Add(life); leaf.NotAfter.Before(earliest) || leaf.NotAfter.After(latest) {
			t.Errorf("asked for %s, the certificate ends at %s, want from %s to %s", life, leaf.NotAfter, earliest, latest)
		}
		if back := before.Sub(leaf.NotBefore); back > time.Hour {
			t.Errorf("the certificate begins %s back", back)
		}
	}
}

// longLife requests a longer lifetime than any issuer's own. Check checks that the
// certificate does not outlive the root.
func (s Suite) longLife(t *testing.T) {
	req := Workload(t)
	req.Life = 100 * 365 * 24 * time.Hour
	s.exactOrRefused(t, req)
}

// rootsFirst checks that an issuer has roots before it has signed anything.
func (s Suite) rootsFirst(t *testing.T) {
	same := func(a, b []*x509.Certificate) bool { return slices.EqualFunc(a, b, (*x509.Certificate).Equal) }
	first, again := s.roots(t), s.roots(t)
	if len(first) == 0 || !same(first, again) {
		t.Errorf("asked twice, there are %d and %d roots, or others", len(first), len(again))
	}
	// Callers may modify the result.
	clear(first)
	if !same(s.roots(t), again) {
		t.Error("the roots changed with the caller's copy of them")
	}
}

func (s Suite) badRequests(t *testing.T) {
	for name, spoil := range map[string]func(*issuer.Request){
		"noCSR":        func(r *issuer.Request) { r.CSR = nil },
		"noLife":       func(r *issuer.Request) { r.Life = 0 },
		"negativeLife": func(r *issuer.Request) { r.Life = -time.Hour },
		"noNames":      func(r *issuer.Request) { r.URI, r.DNSNames = "", nil },
		"badURI":       func(r *issuer.Request) { r.URI = "spiffe://a b\x00" },
		"relativeURI":  func(r *issuer.Request) { r.URI = "ns/shop" },
		"badAddress":   func(r *issuer.Request) { r.IPAddresses = []string{"10.0.0"} },
		"zonedAddress": func(r *issuer.Request) { r.IPAddresses = []string{"fe80::1%eth0"} },
		"emptyDNSName": func(r *issuer.Request) { r.DNSNames = []string{""} },
	} {
		t.Run(name, func(t *testing.T) {
			req := Workload(t)
			spoil(&req)
			if req.CSR != nil {
				req = Fill(t, newKey(t), req)
			}
			chain, err := s.Issuer.Issue(s.ctx(t), req)
			s.refused(t, chain, err)
		})
	}
}

func (s Suite) concurrent(t *testing.T) {
	const n = 8
	requests, leaves := make([]issuer.Request, n), make([][]*x509.Certificate, n)
	for i := range requests {
		requests[i] = Workload(t)
	}
	var wg sync.WaitGroup
	for i, req := range requests {
		wg.Go(func() {
			chain, err := s.Issuer.Issue(s.ctx(t), req)
			if err != nil {
				t.Error(err)
			}
			leaves[i] = chain
		})
		wg.Go(func() {
			if _, err := s.Issuer.Roots(s.ctx(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	roots := s.roots(t)
	seen := make(map[string]bool)
	for i, chain := range leaves {
		seen[Check(t, requests[i], chain, roots).SerialNumber.String()] = true
	}
	if len(seen) != n {
		t.Errorf("%d certificates have %d serial numbers", n, len(seen))
	}
}

func (s Suite) endedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	chain, err := s.Issuer.Issue(ctx, Workload(t))
	if err == nil || chain != nil || !errors.Is(err, context.Canceled) {
		t.Fatalf("after its context ended it answered %d certificates and the error %v", len(chain), err)
	}
	s.checkError(t, err)
	if took := time.Since(start); took > soon {
		t.Errorf("it went on for %s after its context ended", took)
	}
}

func (s Suite) unreachable(t *testing.T) {
	for name, ask := range map[string]func(context.Context) ([]*x509.Certificate, error){
		"Issue": func(ctx context.Context) ([]*x509.Certificate, error) { return s.Unreachable.Issue(ctx, Workload(t)) },
		"Roots": s.Unreachable.Roots,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			start := time.Now()
			answer, err := ask(ctx)
			if err == nil || answer != nil {
				t.Fatalf("one that can't be reached answered %d certificates and the error %v", len(answer), err)
			}
			if !errors.Is(err, issuer.ErrUnavailable) {
				t.Errorf("the error does not say that another try may help: %v", err)
			}
			s.checkError(t, err)
			if took := time.Since(start); took > 2*time.Second+soon {
				t.Errorf("it went on for %s, and its context ended after 2 s", took)
			}
		})
	}
}
