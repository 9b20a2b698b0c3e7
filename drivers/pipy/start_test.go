package pipy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// served is a controller with one proxy, as Start finds it.
type served struct {
	certificate.Manager
	driver.Configurator
	t testing.TB
	// controller is the server's certificate, which is its own root, and agent that of
	// the proxy, likewise.
	controller, agent tls.Certificate
	changes           chan string

	mu    sync.Mutex
	view  *mesh.View
	acked []string
}

// signed returns a certificate that has signed itself.
func signed(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.IsCA, template.BasicConstraintsValid = big.NewInt(1), true, true
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func poolOf(c tls.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Leaf)
	return pool
}

func newServed(t testing.TB) *served {
	proxy := servedView("10.0.0.1").Proxy
	uri, err := url.Parse(proxy.Identity.String())
	if err != nil {
		t.Fatal(err)
	}
	return &served{
		t: t, changes: make(chan string, 10), view: servedView("10.0.0.1"),
		controller: signed(t, &x509.Certificate{DNSNames: []string{"controller"}}),
		agent:      signed(t, &x509.Certificate{Subject: pkix.Name{OrganizationalUnit: []string{proxy.UID}}, URIs: []*url.URL{uri}}),
	}
}

// servedView is that of a proxy that may call three services, one of which has an
// endpoint at the address.
func servedView(endpoint string) *mesh.View {
	destinations, backends := make(map[string]*mesh.Destination), make(map[string]*mesh.Backend)
	for i := range 3 {
		service := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: fmt.Sprint("service-", i)}, Port: 80}
		destinations[service.String()] = mesh.Seal(&mesh.Destination{Name: service.String(), Service: service, Port: 80, Protocol: mesh.HTTP})
		backend := &mesh.Backend{Name: service.String(), Service: service, Protocol: mesh.HTTP}
		if i == 1 {
			backend.Endpoints = []mesh.Endpoint{{Addresses: []netip.Addr{netip.MustParseAddr(endpoint)}, Port: 8080}}
		}
		backends[service.String()] = mesh.Seal(backend)
	}
	proxy := &mesh.Proxy{
		Name: mesh.Name{Namespace: "shop", Name: "cart-1"}, UID: "uid-1", Class: name,
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"},
	}
	return mesh.NewView(mesh.Seal(proxy), mesh.Seal(&mesh.Settings{TrustDomain: "cluster.local"}), mesh.Seal(&mesh.Inbound{}),
		mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.TableOf(backends)), mesh.Seal(&mesh.Egress{}))
}

func (s *served) context(ctx context.Context, port uint32) *driver.ControllerContext {
	return &driver.ControllerContext{
		Context: ctx, ProxyServerPort: port, BindAddress: "127.0.0.1", SidecarClass: name,
		Configurator: s, MeshCatalog: s, CertManager: s, MsgBroker: s, Proxies: s,
		CancelFunc: func() { s.t.Error("the driver ends the controller") },
	}
}

func (s *served) set(view *mesh.View) {
	s.mu.Lock()
	s.view = view
	s.mu.Unlock()
	s.changes <- view.Proxy.UID
}

func (s *served) Snapshot() *mesh.Snapshot { return new(mesh.Snapshot) }

func (s *served) View(uid string) (*mesh.View, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view, uid == s.view.Proxy.UID
}

func (s *served) AwaitView(_ context.Context, peer driver.Peer) (*mesh.View, error) {
	if view, ok := s.View(peer.ProxyUID); ok {
		return view, nil
	}
	return nil, driver.ErrUnknownProxy
}

func (s *served) Subscribe(<-chan struct{}) <-chan string { return s.changes }

func (s *served) GetConfigResyncInterval() time.Duration { return 0 }

func (s *served) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: poolOf(s.agent),
		Certificates: []tls.Certificate{s.controller},
	}
}

func (s *served) Connect(driver.ConnectedProxy) (driver.ProxyConnection, error) { return s, nil }
func (s *served) Sent(string, int, int)                                         {}
func (s *served) Rejected(driver.Rejection)                                     {}
func (s *served) Close()                                                        {}
func (s *served) Acked(version string, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = append(s.acked, version)
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not happen that %s", what)
		}
	}
}

// TestStart serves the scripts and documents of a proxy on the port, of a change only
// the document that it changes, shows its debug page and ends with the context.
func TestStart(t *testing.T) {
	s := newServed(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint32(listener.Addr().(*net.TCPAddr).Port)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := (Driver{}).Start(s.context(ctx, port)); err == nil || !strings.HasPrefix(err.Error(), "pipy: listening for proxies: ") {
		t.Errorf("on a port that is taken Start returned %v", err)
	}
	listener.Close()
	arguments := s.context(ctx, port)
	probes, err := Driver{}.Start(arguments)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "it is ready", probes.Readiness)
	if !probes.Liveness() || probes.GetID() != "pipy" {
		t.Errorf("%q is alive: %t", probes.GetID(), probes.Liveness())
	}

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: poolOf(s.controller), ServerName: "controller", Certificates: []tls.Certificate{s.agent}}}
	defer transport.CloseIdleConnections()
	client := &mirror.Client{URL: fmt.Sprintf("https://%s/repo/uid-1/", listener.Addr()), HTTP: &http.Client{Transport: transport}}
	change, err := client.Poll(t.Context(), "")
	if err != nil || change == nil {
		t.Fatal(change, err)
	}
	set, err := change.Apply(mirror.Set{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{mainFile, settingsFile, inboundFile, egressFile, "config/backends/shop/service-1:80.json"} {
		if _, ok := set.Get(name); !ok {
			t.Errorf("there is no %s among %q", name, set.Names())
		}
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		change, err = client.Poll(t.Context(), mirror.Version(set))
	}()
	await(t, "the first version is acknowledged", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.acked, mirror.Version(set))
	})
	s.set(servedView("10.0.0.2"))
	<-answered
	if err != nil || change == nil || len(change.Files) != 1 || change.Files[0].Name != "config/backends/shop/service-1:80.json" || len(change.Gone) != 0 {
		t.Errorf("a changed endpoint is told as %+v, %v", change, err)
	}

	page := arguments.DebugHandlers["/debug/repo"]
	if page == nil {
		t.Fatal("there is no debug page")
	}
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/repo?proxy=uid-1", nil))
	var files map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &files); err != nil || files[mainFile] == nil {
		t.Errorf("the page is %d %s (%v)", w.Code, w.Body, err)
	}
	cancel()
	await(t, "nobody listens any more", func() bool {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil && !probes.Readiness()
	})
}

// TestStartLacks refuses a context that lacks something.
func TestStartLacks(t *testing.T) {
	if _, err := (Driver{}).Start(t.Context()); err == nil || err.Error() != "missing Controller Context" {
		t.Errorf("without a ControllerContext Start returned %v", err)
	}
	if _, err := (Driver{}).Start(&driver.ControllerContext{}); err == nil || !strings.HasPrefix(err.Error(), "pipy: ") {
		t.Errorf("without a catalog Start returned %v", err)
	}
}

// TestObjects names the service that a document is for.
func TestObjects(t *testing.T) {
	view := servedView("10.0.0.1")
	for name := range newTranslator().set(view).All() {
		want := "Pod shop/cart-1"
		for _, dir := range []string{destinationsDir, backendsDir} {
			if service, ok := strings.CutPrefix(name, dir); ok {
				want = "Service " + strings.TrimSuffix(service, ":80.json")
			}
		}
		if got := objects(view, name); len(got) != 1 || got[0].String() != want {
			t.Errorf("%s came of %v, not of %s", name, got, want)
		}
	}
}
