package identity_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// shownBy returns the certificate that the repository shows now to a client that trusts
// its roots, and what it saw of the client.
func shownBy(t *testing.T, m *identity.Manager, change ...func(*tls.Config)) (*x509.Certificate, tls.ConnectionState) {
	t.Helper()
	client := &tls.Config{
		ServerName: serverName, RootCAs: pool(t, m.RepositoryRoot()), Certificates: []tls.Certificate{credential(t, m, shopper)},
	}
	for _, f := range change {
		f(client)
	}
	seen, by, err := handshake(m.RepositoryTLS(), client)
	if err != nil {
		t.Fatal(err)
	}
	return by.PeerCertificates[0], seen
}

// The root of the repository verifies the repository and nothing else, so that a proxy
// which verifies no name can still take nobody else for the controller.
func TestRepositoryRootIsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := run(t, identity.Options{}, newIssuer(t, "a"))
		leaf, seen := shownBy(t, m)
		if diff := cmp.Diff([]string{serverName, "outrigger-controller.osm-system"}, leaf.DNSNames); diff != "" {
			t.Errorf("the names of the repository's certificate (-want +got):\n%s", diff)
		}
		peer, err := driver.PeerOf(&seen)
		if err != nil || peer.Identity != identityOf(shopper) || peer.ProxyUID != shopper.PodUID {
			t.Errorf("PeerOf = %v, %v, want %v", peer, err, shopper)
		}
		repository, mesh := pool(t, m.RepositoryRoot()), pool(t, m.TrustBundle())
		for what, verified := range map[string]bool{
			"the bundle verifies the repository":                      verifies(mesh, leaf),
			"the repository's root verifies the controller otherwise": verifies(repository, own(t, m)),
			"the repository's root verifies a workload":               verifies(repository, credential(t, m, shopper).Leaf),
		} {
			if verified {
				t.Error(what)
			}
		}
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			_, seen := shownBy(t, m, func(c *tls.Config) { c.MinVersion, c.MaxVersion = version, version })
			if seen.Version != version {
				t.Errorf("%s became %s", tls.VersionName(version), tls.VersionName(seen.Version))
			}
		}
		server := m.RepositoryTLS()
		server.NextProtos = []string{"http/1.1"}
		client := &tls.Config{
			ServerName: serverName, RootCAs: repository, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{credential(t, m, shopper)},
		}
		if _, by, err := handshake(server, client); err != nil || by.NegotiatedProtocol != "http/1.1" {
			t.Errorf("the protocol is %q, %v, want http/1.1", by.NegotiatedProtocol, err)
		}
	})
}

func verifies(roots *x509.CertPool, leaf *x509.Certificate) bool {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

func TestRepositoryTLSRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repository := newIssuer(t, "repository")
		m := run(t, identity.Options{Life: func() time.Duration { return time.Hour }}, newIssuer(t, "a"))
		m.UseRepository(repository, repository.roots(t))
		if err := m.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A controller whose workloads the root of this repository has signed.
		stranger := run(t, identity.Options{}, repository)
		good := credential(t, m, shopper)
		for name, change := range map[string]func(*tls.Config){
			"no certificate":                func(c *tls.Config) { c.Certificates = nil },
			"one of the repository's root":  func(c *tls.Config) { c.Certificates = []tls.Certificate{credential(t, stranger, shopper)} },
			"one that is expired meanwhile": func(*tls.Config) { time.Sleep(61 * time.Minute) },
		} {
			client := &tls.Config{ServerName: serverName, Certificates: []tls.Certificate{good}}
			change(client)
			client.RootCAs = pool(t, m.RepositoryRoot())
			if _, _, err := handshake(m.RepositoryTLS(), client); err == nil {
				t.Errorf("%s: the client got through", name)
			}
		}
	})
}

// Older versions say no at another moment, when both sides write; a pipe has no room for
// that.
func TestRepositoryTLSRefusesOlderVersions(t *testing.T) {
	t.Parallel()
	m := run(t, identity.Options{}, newIssuer(t, "a"))
	stranger := run(t, identity.Options{}, newIssuer(t, "a"))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", m.RepositoryTLS())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write([]byte{1})
				_ = c.Close()
			}()
		}
	}()
	dial := func(version uint16, certificates ...tls.Certificate) error {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 30 * time.Second}, "tcp", listener.Addr().String(), &tls.Config{
			ServerName: serverName, RootCAs: pool(t, m.RepositoryRoot()), MinVersion: version, MaxVersion: version, Certificates: certificates,
		})
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		return err
	}
	good := credential(t, m, shopper)
	if err := dial(tls.VersionTLS12, good); err != nil {
		t.Errorf("with TLS 1.2: %v", err)
	}
	for name, err := range map[string]error{
		"TLS 1.1":                          dial(tls.VersionTLS11, good),
		"TLS 1.2 and no certificate":       dial(tls.VersionTLS12),
		"TLS 1.2 and one of somebody else": dial(tls.VersionTLS12, credential(t, stranger, shopper)),
	} {
		if err == nil {
			t.Errorf("%s: the client got through", name)
		}
	}
}

func TestRepositoryCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := run(t, identity.Options{Life: func() time.Duration { return time.Hour }}, newIssuer(t, "a"))
		first, _ := shownBy(t, m)
		time.Sleep(35 * time.Minute)
		if now, _ := shownBy(t, m); !now.Equal(first) {
			t.Error("it was renewed before two thirds of its life")
		}
		time.Sleep(6 * time.Minute)
		second, _ := shownBy(t, m)
		if second.Equal(first) || bytes.Equal(second.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo) {
			t.Error("after two thirds of its life it was not renewed with another key")
		}
	})
}

func TestRepositoryFollowsItsRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := run(t, identity.Options{}, newIssuer(t, "a"))
		former, next := newIssuer(t, "former"), newIssuer(t, "next")
		m.UseRepository(former, append(former.roots(t), next.roots(t)...))
		if err := m.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"former", "next"}, subjects(t, m.RepositoryRoot())); diff != "" {
			t.Errorf("the roots, the one that signs first (-want +got):\n%s", diff)
		}
		if leaf, _ := shownBy(t, m); leaf.Issuer.CommonName != "former" {
			t.Errorf("%s signs, want former", leaf.Issuer)
		}
		// What cannot be used leaves what is.
		broken := newIssuer(t, "broken")
		broken.fail(errDown)
		for name, use := range map[string]func(){
			"an issuer that fails":        func() { m.UseRepository(broken, broken.roots(t)) },
			"roots that do not verify it": func() { m.UseRepository(next, former.roots(t)) },
			"no roots":                    func() { m.UseRepository(next, []byte("?")) },
		} {
			use()
			if err := m.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "repository") {
				t.Errorf("%s: Refresh says %v", name, err)
			}
			if leaf, _ := shownBy(t, m); leaf.Issuer.CommonName != "former" {
				t.Errorf("%s: %s signs, want former", name, leaf.Issuer)
			}
		}
		m.UseRepository(next, next.roots(t))
		if err := m.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if leaf, _ := shownBy(t, m); leaf.Issuer.CommonName != "next" {
			t.Errorf("%s signs, want next", leaf.Issuer)
		}
		shown := m.Certificates()
		if shown.Repository == nil || shown.Repository.Issuer != "CN=next" || len(shown.RepositoryRoots) != 1 || shown.RepositoryRoots[0].Subject != "CN=next" {
			t.Errorf("the debug page says %+v of %+v", shown.Repository, shown.RepositoryRoots)
		}
	})
}

// Nobody is told to be ready, and no agent gets a certificate, without the root of the
// repository: it would wait for it for two thirds of its certificate's life.
func TestNothingWithoutTheRepository(t *testing.T) {
	t.Parallel()
	m, err := identity.NewManager(identity.Options{
		DNSNames: []string{serverName}, TrustDomain: func() string { return trustDomain }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Use(newIssuer(t, "a"))
	go m.Run(t.Context())
	if err := m.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "repository") {
		t.Errorf("Refresh says %v, want that the repository has no root", err)
	}
	select {
	case <-m.Ready():
		t.Error("it is ready without a root of the repository")
	default:
	}
	if _, _, err := handshake(m.RepositoryTLS(), &tls.Config{ServerName: serverName, InsecureSkipVerify: true}); err == nil {
		t.Error("a client got through before there is a certificate")
	}
	key := loadTokenKey(t, t.TempDir())
	client := serve(t, identity.ServiceOptions{Manager: m, Reviewer: key}).client(t)
	csr, _ := request(t, shopper)
	ask := func() (*identityv1.SignResponse, error) {
		return client.Sign(bearer(t.Context(), mint(t, key, claims(shopper))), &identityv1.SignRequest{Csr: csr})
	}
	if _, err := ask(); status.Code(err) != codes.Unavailable {
		t.Errorf("an agent is told %v, want that it is worth another try", err)
	}
	repository := newIssuer(t, "repository")
	m.UseRepository(repository, repository.roots(t))
	select {
	case <-m.Ready():
	case <-time.After(30 * time.Second):
		t.Fatal(errors.Join(errors.New("it is not ready"), m.Fault()))
	}
	answer, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(repository.roots(t)), string(answer.GetRepositoryRoot())); diff != "" {
		t.Errorf("the root of the repository (-want +got):\n%s", diff)
	}
}
