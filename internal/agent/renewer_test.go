package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestIdentityFiles(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	leaf := p.mustIdentity().leaf
	type names struct {
		CN, URI, DNS, OU string
		Others           int
	}
	got := names{leaf.Subject.CommonName, leaf.URIs[0].String(), leaf.DNSNames[0], leaf.Subject.OrganizationalUnit[0],
		len(leaf.URIs) + len(leaf.DNSNames) + len(leaf.Subject.OrganizationalUnit) + len(leaf.IPAddresses) - 3}
	want := names{"book.store.bookstore", "spiffe://cluster.local/ns/bookstore/sa/book.store", "book.store.bookstore.sa.cluster.local", podUID, 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is a %T", leaf.PublicKey)
	}
	if diff := cmp.Diff([]string{"Bearer token-1"}, p.service.asked()); diff != "" {
		t.Errorf("tokens shown (-want +got):\n%s", diff)
	}
	for name, mode := range map[string]os.FileMode{
		"": 0o700, "..data": 0o700, "key.pem": 0o600, "chain.pem": 0o644, "bundle.pem": 0o644, "identity.pem": 0o600,
	} {
		info, err := os.Stat(p.path("identity/" + name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q has the mode %v, %v, want %v", name, info, err, mode)
		}
	}
	if p.read("identity/identity.pem") != p.read("identity/key.pem")+p.read("identity/chain.pem") {
		t.Error("identity.pem is not key and chain")
	}
	for _, name := range []string{"key.pem", "chain.pem", "bundle.pem", "identity.pem"} {
		if to, err := os.Readlink(p.path("identity/" + name)); err != nil || to != "..data/"+name {
			t.Errorf("%s leads to %q, %v", name, to, err)
		}
	}
	if got, want := p.metric("outrigger_agent_certificate_expiry_timestamp_seconds"), leaf.NotAfter.Unix(); got != strconv.FormatInt(want, 10) {
		t.Errorf("the metric says that the certificate ends at %s, want %d", got, want)
	}
}

// TestKeyExchange checks that a signing request is cheap for the controller, and that a report,
// which may quote the proxy's output, is protected like other traffic.
func TestKeyExchange(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Command = []string{"no-such-proxy"}
	p.serve()
	p.start()
	p.until("reported", func() bool { r, _ := p.service.lastReport(); return r != nil })
	got := make(map[string]tls.CurveID)
	p.service.set(func() { maps.Copy(got, p.service.exchanges) })
	want := map[string]tls.CurveID{"Sign": tls.CurveP256, "Report": tls.X25519MLKEM768}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("key exchanges (-want +got):\n%s", diff)
	}
}

// TestRenewal reads the files continuously: they must match at any time.
func TestRenewal(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.service.life = 2 * time.Second
	p.serve()
	p.start()
	p.untilReady()
	first := p.mustIdentity().leaf

	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					if n < 100 {
						t.Errorf("a reader has looked %d times only", n)
					}
					return
				default:
				}
				if _, err := p.identity(); err != nil {
					t.Errorf("a reader sees: %v", err)
					return
				}
			}
		})
	}
	p.write("token", "token-2\n")
	p.until("renewed", func() bool { return p.metric("outrigger_agent_certificates_issued_total") == "4" })
	close(stop)
	readers.Wait()

	second := p.mustIdentity().leaf
	if second.PublicKey.(*ecdsa.PublicKey).Equal(first.PublicKey) {
		t.Error("the key was kept")
	}
	if !first.NotAfter.Before(second.NotAfter) {
		t.Error("the certificate is no younger")
	}
	if diff := cmp.Diff([]string{"Bearer token-1", "Bearer token-2", "Bearer token-2", "Bearer token-2"}, p.service.asked()); diff != "" {
		t.Errorf("tokens shown (-want +got):\n%s", diff)
	}
	generations, err := filepath.Glob(p.path("identity/..generation-*"))
	if err != nil || len(generations) > 2 {
		t.Errorf("%d generations are there: %v", len(generations), err)
	}
}

func TestRenewalIsAtTwoThirds(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.service.life = 3 * time.Second
	p.serve()
	p.start()
	p.untilReady()
	end := p.mustIdentity().leaf.NotAfter
	p.until("renewed", func() bool { return p.metric("outrigger_agent_certificates_issued_total") == "2" })
	// Certificates have a resolution of seconds, so up to a second may be lost.
	if left := time.Until(end); left > 1300*time.Millisecond {
		t.Errorf("renewed %v before the end of 3 s", left)
	}
	if !p.isReady() {
		t.Error("not ready while the certificate is good")
	}
}

// TestIntermediateEndsFirst checks that a certificate counts as expired once the
// intermediate that signed it is.
func TestIntermediateEndsFirst(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	brief := p.ca.intermediate(t, 4*time.Second)
	p.service.signer, p.service.above = brief, certPEM(brief.cert.Raw)
	p.serve()
	p.start()
	p.untilReady()
	if got, want := p.metric("outrigger_agent_certificate_expiry_timestamp_seconds"), strconv.FormatInt(brief.cert.NotAfter.Unix(), 10); got != want {
		t.Errorf("the certificate is reported to end at %s, want %s", got, want)
	}
	p.until("renewed", func() bool { return len(p.service.asked()) > 1 })
	if !time.Now().Before(brief.cert.NotAfter) {
		t.Error("the certificate was renewed after the intermediate's end")
	}
}

func TestControllerComesLate(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.start()
	p.until("failed several times", func() bool {
		n, _ := strconv.Atoi(p.metric(`outrigger_agent_certificate_failures_total{reason="unavailable"}`))
		return n >= 3
	})
	if status, text := p.ask("GET", "/ready"); status != 503 || text != "the pod has no certificate yet" {
		t.Errorf("/ready: %d %s", status, text)
	}
	if status, _ := p.ask("GET", "/alive"); status != 200 {
		t.Error("an agent that waits is not alive")
	}
	if p.read("journal") != "" {
		t.Error("the proxy has been started without an identity")
	}
	if n := strings.Count(p.log.String(), `"kind":"unavailable"`); n != 1 {
		t.Errorf("one kind of failure is logged %d times", n)
	}
	p.serve()
	p.untilReady()
}

func TestControllerGoesAway(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.service.life = 3 * time.Second
	p.serve()
	p.start()
	p.untilReady()
	p.service.stop()
	end := p.mustIdentity().leaf.NotAfter
	p.until("failing", func() bool {
		return p.metric(`outrigger_agent_certificate_failures_total{reason="unavailable"}`) != "" || time.Now().After(end)
	})
	if time.Now().Before(end) && !p.isReady() {
		t.Error("not ready although the certificate is good")
	}
	p.until("the certificate's end", func() bool {
		_, text := p.ask("GET", "/ready")
		return strings.HasPrefix(text, "the pod's certificate expired at ")
	})
	if strings.Count(p.read("journal"), "start") != 1 {
		t.Error("the proxy was not left alone")
	}
	p.serve()
	p.untilReady()
	if left := time.Until(p.mustIdentity().leaf.NotAfter); left < 0 {
		t.Errorf("the certificate ended %v ago", -left)
	}
}

func TestTrustBundleComesLate(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	if err := os.Remove(p.path("ca.crt")); err != nil {
		t.Fatal(err)
	}
	p.serve()
	p.start()
	p.until("waiting", func() bool { return p.metric(`outrigger_agent_certificate_failures_total{reason="no_bundle"}`) != "" })
	if len(p.service.asked()) != 0 {
		t.Error("a token was shown to somebody unknown")
	}
	p.write("ca.crt", "nonsense")
	p.until("logged", func() bool { return strings.Contains(p.log.String(), "the mounted trust bundle is invalid") })
	p.write("ca.crt", string(bundleOf(p.ca)))
	p.untilReady()
}

func TestTokenComesLate(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.write("token", "")
	p.serve()
	p.start()
	p.until("waiting", func() bool { return p.metric(`outrigger_agent_certificate_failures_total{reason="token"}`) != "" })
	p.write("token", "token-1")
	p.untilReady()
}

// TestControllerIsVerified checks that a server that is not the controller gets no token.
func TestControllerIsVerified(t *testing.T) {
	for name, prepare := range map[string]func(*pod){
		"foreign CA":   func(p *pod) { p.service.start(t, newAuthority(t, "root")) },
		"another host": func(p *pod) { p.service.host = "outrigger-controller.elsewhere.svc"; p.serve() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			prepare(p)
			p.start()
			p.until("failing", func() bool { return p.metric(`outrigger_agent_certificate_failures_total{reason="unavailable"}`) != "" })
			if asked := p.service.asked(); len(asked) != 0 {
				t.Errorf("it was shown %q", asked)
			}
			if _, err := p.identity(); !os.IsNotExist(err) {
				t.Errorf("there is an identity: %v", err)
			}
		})
	}
}

// TestAnswerIsVerified lets the service answer with certificates that are not valid for the
// pod.
func TestAnswerIsVerified(t *testing.T) {
	foreign := newAuthority(t, "root")
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func(*x509.Certificate)) func(*signingService) {
		return func(s *signingService) { s.change = f }
	}
	for name, tt := range map[string]struct {
		service func(*signingService)
		reason  string
	}{
		"another URI": {change(func(c *x509.Certificate) {
			c.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/a/sa/b"}}
		}), "answer"},
		"two URIs":         {change(func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), "answer"},
		"no URI":           {change(func(c *x509.Certificate) { c.URIs = nil }), "answer"},
		"another DNS name": {change(func(c *x509.Certificate) { c.DNSNames = []string{"a.b.sa.cluster.local"} }), "answer"},
		"two DNS names":    {change(func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "a.b.sa.cluster.local") }), "answer"},
		"another pod":      {change(func(c *x509.Certificate) { c.Subject.OrganizationalUnit = []string{"other"} }), "answer"},
		"another name": {change(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "a.b", OrganizationalUnit: []string{podUID}}
		}), "answer"},
		"another key":      {change(func(c *x509.Certificate) { c.PublicKey = other.Public() }), "answer"},
		"email":            {change(func(c *x509.Certificate) { c.EmailAddresses = []string{"a@example.com"} }), "answer"},
		"a CA":             {change(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }), "answer"},
		"for clients only": {change(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), "answer"},
		"over already":     {func(s *signingService) { s.life = -time.Second }, "answer"},
		"foreign CA":       {func(s *signingService) { s.signer = foreign }, "answer"},
		"no bundle":        {func(s *signingService) { s.bundle = nil }, "answer"},
		"bundle and more":  {func(s *signingService) { s.bundle = append(s.bundle, "-----BEGIN X-----\n-----END X-----\n"...) }, "answer"},
		"refused":          {func(s *signingService) { s.refuse = status.Error(codes.PermissionDenied, "not in the mesh") }, "permission_denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			tt.service(p.service)
			p.serve()
			p.start()
			p.until("failing", func() bool {
				return p.metric(`outrigger_agent_certificate_failures_total{reason="`+tt.reason+`"}`) != ""
			})
			if entries, err := os.ReadDir(p.path("identity")); err != nil || len(entries) != 0 {
				t.Errorf("there are %v, %v", entries, err)
			}
			// A good answer helps without a restart.
			good := newSigningService(t, "", p.ca)
			p.service.set(func() {
				p.service.refuse, p.service.change, p.service.life, p.service.signer, p.service.bundle = nil, nil, time.Hour, p.ca, good.bundle
			})
			p.untilReady()
		})
	}
}

// TestNoSecretIsShown looks for the key and the token in all of the agent's output.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.write("token", "a-very-secret-token")
	p.service.life = 2 * time.Second
	p.serve()
	p.start("--log-level", "debug")
	p.untilReady()
	key, err := os.ReadFile(p.path("identity/key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	p.service.set(func() { p.service.refuse = status.Error(codes.Unauthenticated, "no") })
	p.until("refused", func() bool {
		return p.metric(`outrigger_agent_certificate_failures_total{reason="unauthenticated"}`) != ""
	})
	said := p.log.String()
	for _, path := range []string{"/", "/metrics", "/ready", "/alive", "/identity/key.pem"} {
		_, text := p.ask("GET", path)
		said += text
	}
	for _, secret := range append(strings.Split(strings.TrimSpace(string(key)), "\n"), "a-very-secret-token") {
		if strings.Contains(said, secret) {
			t.Errorf("%q is in what the agent says", secret)
		}
	}
}
