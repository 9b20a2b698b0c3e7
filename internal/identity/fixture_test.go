package identity_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	trustDomain = "cluster.local"
	serverName  = "outrigger-controller.osm-system.svc"
)

// shopper is the workload of most tests.
var shopper = identity.Workload{Namespace: "shop", ServiceAccount: "web.v1", Pod: "web-1", PodUID: "7d8a3c"}

func identityOf(w identity.Workload) mesh.Identity {
	return mesh.Identity{TrustDomain: trustDomain, Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}
}

// testIssuer is an own CA that can be made to fail and whose roots can be replaced.
type testIssuer struct {
	name string

	mu    sync.Mutex
	ca    *issuer.CA
	fault error
	asked int
}

func newIssuer(t testing.TB, name string) *testIssuer {
	t.Helper()
	return &testIssuer{name: name, ca: newCA(t, name)}
}

func newCA(t testing.TB, name string) *issuer.CA {
	t.Helper()
	cert, key, err := issuer.NewRoot(name, issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := issuer.FromPEM(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (i *testIssuer) String() string { return i.name }

// fail makes it fail, or work again if err is nil.
func (i *testIssuer) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fault = err
}

// replace replaces its CA, like a change of the Secret.
func (i *testIssuer) replace(ca *issuer.CA) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ca = ca
}

func (i *testIssuer) present() (*issuer.CA, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	return i.ca, i.fault
}

func (i *testIssuer) Issue(ctx context.Context, request issuer.Request) ([]*x509.Certificate, error) {
	ca, err := i.present()
	if err != nil {
		return nil, err
	}
	return ca.Issue(ctx, request)
}

func (i *testIssuer) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	ca, err := i.present()
	if err != nil {
		return nil, err
	}
	return ca.Roots(ctx)
}

// roots returns the PEM of its root.
func (i *testIssuer) roots(t testing.TB) []byte {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	roots, err := i.ca.Roots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pki.Encode(roots...)
}

var errDown = fmt.Errorf("%w: somebody pulled the plug", issuer.ErrUnavailable)

// run starts a manager with an issuer and waits until it is ready.
func run(t testing.TB, options identity.Options, signing issuer.Issuer, trusted ...issuer.Issuer) *identity.Manager {
	t.Helper()
	m := begin(t, options, signing, trusted...)
	select {
	case <-m.Ready():
	case <-time.After(time.Minute):
		t.Fatalf("the manager is not ready: %v", m.Fault())
	}
	return m
}

// begin starts a manager, which ends with the test.
func begin(t testing.TB, options identity.Options, signing issuer.Issuer, trusted ...issuer.Issuer) *identity.Manager {
	t.Helper()
	options.DNSNames = []string{serverName, "outrigger-controller.osm-system"}
	options.TrustDomain = func() string { return trustDomain }
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	m, err := identity.NewManager(options)
	if err != nil {
		t.Fatal(err)
	}
	m.SetTrust(trust(t, signing, trusted...))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return m
}

// trust is the trust in the issuers' current roots; the first issuer signs.
func trust(t testing.TB, signing issuer.Issuer, others ...issuer.Issuer) *issuer.Trust {
	t.Helper()
	decided := &issuer.Trust{Signing: signing}
	for _, i := range append([]issuer.Issuer{signing}, others...) {
		roots, err := i.Roots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		decided.Roots = append(decided.Roots, roots...)
	}
	return decided
}

// request returns a CSR with exactly a workload's names, and its key.
func request(t testing.TB, w identity.Workload) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return csrOf(t, template(w), key), key
}

// template is a request with exactly a workload's names.
func template(w identity.Workload) *x509.CertificateRequest {
	id := identityOf(w)
	uri, err := url.Parse(id.String())
	if err != nil {
		panic(err)
	}
	return &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: id.CommonName(), OrganizationalUnit: []string{w.PodUID}},
		URIs:     []*url.URL{uri},
		DNSNames: []string{id.DNSName()},
	}
}

func csrOf(t testing.TB, template *x509.CertificateRequest, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// credential gets a certificate signed as an agent would.
func credential(t testing.TB, m *identity.Manager, w identity.Workload) tls.Certificate {
	t.Helper()
	csr, key := request(t, w)
	chain, _, err := m.Sign(t.Context(), csr, w)
	if err != nil {
		t.Fatal(err)
	}
	return pair(t, chain, key)
}

func pair(t testing.TB, chain []byte, key *ecdsa.PrivateKey) tls.Certificate {
	t.Helper()
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(chain, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pool returns the roots of PEM.
func pool(t testing.TB, text []byte) *x509.CertPool {
	t.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		t.Fatalf("there are no certificates in %q", text)
	}
	return p
}

// subjects returns the subjects of a bundle's roots, in its order.
func subjects(t testing.TB, text []byte) []string {
	t.Helper()
	var list []string
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			return list
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c.Subject.CommonName)
	}
}

// handshake connects a client to a server over a pipe, sends a byte each way, and returns
// both connection states.
func handshake(server, client *tls.Config) (seen, by tls.ConnectionState, err error) {
	a, b := net.Pipe()
	s, c := tls.Server(a, server), tls.Client(b, client)
	defer s.Close()
	defer c.Close()
	served := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte{1})
		if err != nil {
			// The client waits for data that does not come.
			_ = a.Close()
		}
		served <- err
	}()
	_, clientErr := c.Read(make([]byte, 1))
	if clientErr != nil {
		_ = b.Close()
	}
	err = errors.Join(<-served, clientErr)
	return s.ConnectionState(), c.ConnectionState(), err
}

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// gather returns the values of all counters and gauges, by name and labels.
func gather(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			key := family.GetName()
			for _, label := range metric.GetLabel() {
				key += " " + label.GetValue()
			}
			switch {
			case metric.GetCounter() != nil:
				values[key] = metric.GetCounter().GetValue()
			case metric.GetGauge() != nil:
				values[key] = metric.GetGauge().GetValue()
			case metric.GetHistogram() != nil:
				values[key] = float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

// firstBlock returns the DER of the first certificate.
func firstBlock(t testing.TB, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("there is no PEM in %q", text)
	}
	return block.Bytes
}
