package identity_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func TestNewManagerRefuses(t *testing.T) {
	for _, options := range []identity.Options{
		{TrustDomain: func() string { return "" }},
		{DNSNames: []string{serverName}},
	} {
		if m, err := identity.NewManager(options); err == nil {
			t.Errorf("NewManager(%v) = %v", options, m)
		}
	}
}

func TestBundleIsTheUnion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newIssuer(t, "a"), newIssuer(t, "b"), newIssuer(t, "c")
		m := run(t, identity.Options{}, a, b, a, c)
		first := m.TrustBundle()
		if got := slices.Sorted(slices.Values(subjects(t, first))); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("the bundle holds %q, want each root once", got)
		}
		// Callers may modify the result.
		clear(m.TrustBundle())

		other := run(t, identity.Options{}, c, b, a)
		if diff := cmp.Diff(string(first), string(other.TrustBundle())); diff != "" {
			t.Errorf("the bundle depends on the order of the issuers (-want +got):\n%s", diff)
		}
	})
}

func TestNothingBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := identity.NewManager(identity.Options{
			DNSNames: []string{serverName}, TrustDomain: func() string { return trustDomain }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		synctest.Wait()
		if m.Fault() == nil || len(m.TrustBundle()) > 0 {
			t.Errorf("there is no fault or a bundle: %v, %q", m.Fault(), m.TrustBundle())
		}
		csr, _ := request(t, shopper)
		if _, _, err := m.Sign(t.Context(), csr, shopper); !errors.Is(err, issuer.ErrUnavailable) {
			t.Errorf("Sign says %v, want that it is worth another try", err)
		}
		a := newIssuer(t, "a")
		decided := trust(t, a)
		a.fail(errDown)
		m.SetTrust(decided)
		synctest.Wait()
		select {
		case <-m.Ready():
			t.Error("it is ready without a certificate of its own")
		default:
		}
		if m.Fault() == nil {
			t.Error("nothing says that the issuer is away")
		}
		if _, _, err := handshake(m.ServerTLS(), &tls.Config{ServerName: serverName, RootCAs: pool(t, m.TrustBundle())}); err == nil {
			t.Error("a client got through before there is a certificate")
		}
		a.fail(nil)
		select {
		case <-m.Ready():
		case <-time.After(10 * time.Second):
			t.Fatal("the issuer is there again, and after 10 s it was not asked")
		}
		if m.Fault() != nil {
			t.Errorf("there is still a fault: %v", m.Fault())
		}
	})
}

// SetTrust changes the bundle at once, whatever the state of the issuers.
func TestTrustIsInForceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newIssuer(t, "a"), newIssuer(t, "b")
		m := run(t, identity.Options{}, a)
		stop := make(chan struct{})
		changed, stopped := m.TrustBundleChanged(t.Context().Done()), m.TrustBundleChanged(stop)
		close(stop)
		synctest.Wait()
		m.SetTrust(trust(t, a))
		select {
		case <-changed:
			t.Error("a change was announced, and there was none")
		default:
		}
		m.SetTrust(trust(t, a, b))
		<-changed
		if got := slices.Sorted(slices.Values(subjects(t, m.TrustBundle()))); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("the bundle is of %q, want a and b", got)
		}
		a.fail(errDown)
		b.fail(errDown)
		time.Sleep(10 * time.Hour)
		if got := slices.Sorted(slices.Values(subjects(t, m.TrustBundle()))); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("with the issuers away the bundle is of %q, want a and b", got)
		}
		select {
		case <-stopped:
			t.Error("somebody who wanted to know no more was notified")
		default:
		}
	})
}

// A CA that was replaced after the last evaluation signs with an untrusted root.
func TestSignWithRootsThatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newIssuer(t, "a")
		var m *identity.Manager
		failing := errors.New("nothing could be decided")
		refresh := func(context.Context) error {
			m.SetTrust(trust(t, a))
			return nil
		}
		m = run(t, identity.Options{Refresh: func(ctx context.Context) error { return refresh(ctx) }}, a)
		a.replace(newCA(t, "b"))
		csr, _ := request(t, shopper)
		chain, bundle, err := m.Sign(t.Context(), csr, shopper)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(firstBlock(t, chain))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool(t, bundle)}); err != nil {
			t.Errorf("the bundle of the answer does not verify its chain: %v", err)
		}
		a.replace(newCA(t, "c"))
		refresh = func(context.Context) error { return failing }
		if _, _, err := m.Sign(t.Context(), csr, shopper); !errors.Is(err, issuer.ErrUnavailable) || !errors.Is(err, failing) {
			t.Errorf("of a certificate that nobody can verify Sign says %v", err)
		}
	})
}

func TestLife(t *testing.T) {
	for _, tt := range []struct {
		life func() time.Duration
		want time.Duration
	}{
		{nil, 24 * time.Hour},
		{func() time.Duration { return 0 }, 24 * time.Hour},
		{func() time.Duration { return -time.Hour }, 24 * time.Hour},
		{func() time.Duration { return 90 * time.Minute }, 90 * time.Minute},
		{func() time.Duration { return time.Millisecond }, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := run(t, identity.Options{Life: tt.life}, newIssuer(t, "a"))
			if got := time.Until(credential(t, m, shopper).Leaf.NotAfter).Round(time.Second); got != tt.want {
				t.Errorf("a certificate is valid for %s, want %s", got, tt.want)
			}
		})
	}
}

// own returns the controller's current certificate.
func own(t *testing.T, m *identity.Manager) *x509.Certificate {
	t.Helper()
	_, by, err := handshake(m.ServerTLS(), &tls.Config{
		ServerName: serverName, RootCAs: pool(t, m.TrustBundle()), Certificates: []tls.Certificate{credential(t, m, shopper)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return by.PeerCertificates[0]
}

func TestOwnCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newIssuer(t, "a")
		m := run(t, identity.Options{Life: func() time.Duration { return time.Hour }}, a)
		first := own(t, m)
		if diff := cmp.Diff([]string{serverName, "outrigger-controller.osm-system"}, first.DNSNames); diff != "" {
			t.Errorf("the names of the controller's certificate (-want +got):\n%s", diff)
		}
		time.Sleep(35 * time.Minute)
		if !own(t, m).Equal(first) {
			t.Error("it was renewed before two thirds of its life")
		}
		time.Sleep(6 * time.Minute)
		second := own(t, m)
		if second.Equal(first) || bytes.Equal(second.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo) {
			t.Error("after two thirds of its life it was not renewed with another key")
		}
		// While the issuer is unavailable, the old certificate stays in use.
		a.fail(errDown)
		time.Sleep(50 * time.Minute)
		if m.Fault() == nil {
			t.Error("nothing reports that the certificate could not be renewed")
		}
		a.fail(nil)
		time.Sleep(time.Minute)
		if third := own(t, m); third.Equal(second) {
			t.Error("it was not renewed when the issuer was there again")
		}
	})
}

func TestOwnCertificateFollowsTheIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newIssuer(t, "a"), newIssuer(t, "b")
		m := run(t, identity.Options{}, a)
		m.SetTrust(trust(t, b, a))
		synctest.Wait()
		if got := own(t, m).Issuer.CommonName; got != "b" {
			t.Errorf("the controller's certificate is of %s, want b", got)
		}
		// The same issuer with another CA.
		b.replace(newCA(t, "c"))
		m.SetTrust(trust(t, b))
		synctest.Wait()
		if got := own(t, m).Issuer.CommonName; got != "c" {
			t.Errorf("the controller's certificate is of %s, want c", got)
		}
	})
}

// A proxy with a certificate of the old root can connect while both roots are trusted, and
// is rejected once the old one is removed, even if it resumes a session.
func TestRootRotationOnTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newIssuer(t, "a"), newIssuer(t, "b")
		m := run(t, identity.Options{}, a)
		server := m.ServerTLS()
		old := credential(t, m, shopper)
		client := &tls.Config{
			ServerName: serverName, RootCAs: pool(t, append(a.roots(t), b.roots(t)...)),
			Certificates: []tls.Certificate{old}, ClientSessionCache: tls.NewLRUClientSessionCache(8),
		}
		for _, step := range []struct {
			what    string
			signing issuer.Issuer
			trusted []issuer.Issuer
			refused bool
		}{
			{"before", a, nil, false},
			{"the next root is trusted too", a, []issuer.Issuer{b}, false},
			{"the next issuer signs", b, []issuer.Issuer{a}, false},
			{"the old root is gone", b, nil, true},
		} {
			m.SetTrust(trust(t, step.signing, step.trusted...))
			synctest.Wait()
			seen, by, err := handshake(server, client)
			if refused := err != nil; refused != step.refused {
				t.Errorf("%s: the proxy was refused: %v, want %t", step.what, err, step.refused)
			}
			if by.DidResume {
				t.Errorf("%s: a session was resumed", step.what)
			}
			if err == nil {
				peer, err := driver.PeerOf(&seen)
				if want := (driver.Peer{Identity: identityOf(shopper), ProxyUID: shopper.PodUID, NotAfter: old.Leaf.NotAfter}); err != nil || peer != want {
					t.Errorf("%s: PeerOf = %v, %v, want %v", step.what, peer, err, want)
				}
			}
		}
		client.Certificates = []tls.Certificate{credential(t, m, shopper)}
		if _, _, err := handshake(server, client); err != nil {
			t.Errorf("a proxy with a certificate of the new root: %v", err)
		}
	})
}

func TestServerTLSRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := run(t, identity.Options{Life: func() time.Duration { return time.Hour }}, newIssuer(t, "a"))
		otherMesh := run(t, identity.Options{}, newIssuer(t, "a"))
		good := credential(t, m, shopper)
		for name, change := range map[string]func(*tls.Config){
			"no certificate":          func(c *tls.Config) { c.Certificates = nil },
			"one of another mesh":     func(c *tls.Config) { c.Certificates = []tls.Certificate{credential(t, otherMesh, shopper)} },
			"TLS 1.2":                 func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
			"one that is expired now": func(*tls.Config) { time.Sleep(61 * time.Minute) },
		} {
			client := &tls.Config{ServerName: serverName, Certificates: []tls.Certificate{good}}
			change(client)
			client.RootCAs = pool(t, m.TrustBundle())
			if _, _, err := handshake(m.ServerTLS(), client); err == nil {
				t.Errorf("%s: the client got through", name)
			}
		}
	})
}

func TestServerTLSNextProtos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := run(t, identity.Options{}, newIssuer(t, "a"))
		server, untouched := m.ServerTLS(), m.ServerTLS()
		server.NextProtos = []string{"h2"}
		client := &tls.Config{
			ServerName: serverName, RootCAs: pool(t, m.TrustBundle()), NextProtos: []string{"http/1.1", "h2"},
			Certificates: []tls.Certificate{credential(t, m, shopper)},
		}
		for want, config := range map[string]*tls.Config{"h2": server, "": untouched} {
			if _, by, err := handshake(config, client); err != nil || by.NegotiatedProtocol != want {
				t.Errorf("the protocol is %q, %v, want %q", by.NegotiatedProtocol, err, want)
			}
		}
	})
}

func TestCertificatesAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m := run(t, identity.Options{
			Life: func() time.Duration { return time.Hour }, MaxRecords: 16, Registerer: registry,
		}, newIssuer(t, "a"))
		leaf := credential(t, m, shopper).Leaf
		got := m.Certificates()
		want := []identity.Issued{{
			Identity: "spiffe://cluster.local/ns/shop/sa/web.v1", Pod: "shop/web-1", PodUID: "7d8a3c",
			DNSNames: []string{"web.v1.shop.sa.cluster.local"}, Serial: leaf.SerialNumber.Text(16),
			NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, Issuer: "CN=a",
		}}
		if diff := cmp.Diff(want, got.Issued); diff != "" {
			t.Errorf("issued (-want +got):\n%s", diff)
		}
		if len(got.Bundle) != 1 || got.Bundle[0].Subject != "CN=a" || len(got.Bundle[0].Fingerprint) != 64 {
			t.Errorf("the bundle is shown as %v", got.Bundle)
		}
		if got.Controller == nil || got.Controller.Serial != own(t, m).SerialNumber.Text(16) {
			t.Errorf("the controller's certificate is shown as %v", got.Controller)
		}

		var last string
		for range 100 {
			last = credential(t, m, shopper).Leaf.SerialNumber.Text(16)
		}
		issued := m.Certificates().Issued
		if len(issued) > 16 || len(issued) < 12 || issued[len(issued)-1].Serial != last {
			t.Errorf("of 102 certificates %d are remembered, want at most 16 and the last among them", len(issued))
		}
		values := gather(t, registry)
		for name, want := range map[string]float64{
			"outrigger_identity_certificates_issued_total workload":                              102,
			"outrigger_identity_certificates_issued_total controller":                            1,
			"outrigger_identity_issue_duration_seconds":                                          102,
			"outrigger_identity_root_expiry_timestamp_seconds " + got.Bundle[0].Fingerprint[:16]: float64(got.Bundle[0].NotAfter.Unix()),
			"outrigger_identity_controller_certificate_expiry_timestamp_seconds":                 float64(got.Controller.NotAfter.Unix()),
		} {
			if values[name] != want {
				t.Errorf("%s is %v, want %v; there are %v", name, values[name], want, values)
			}
		}
		time.Sleep(61 * time.Minute)
		if issued := m.Certificates().Issued; len(issued) > 0 {
			t.Errorf("%d expired certificates are remembered", len(issued))
		}
	})
}
