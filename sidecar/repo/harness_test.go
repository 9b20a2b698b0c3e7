package repo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	configv1alpha2 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// core is what a controller gives a driver, for a test that says what each proxy gets.
type core struct {
	t     testing.TB
	ca    authority
	ready chan struct{}

	mu       sync.Mutex
	count    int
	views    map[string]*mesh.View
	sets     map[mesh.Digest]mirror.Set
	watchers []chan string
	resync   time.Duration
	connect  error
	// events are what the registry is told, but for what was sent.
	events   []string
	sent     int
	size     int
	acks     int
	rejected []driver.Rejection
}

func newCore(t testing.TB) *core {
	ready := make(chan struct{})
	close(ready)
	return &core{t: t, ca: newAuthority(t), views: map[string]*mesh.View{}, sets: map[mesh.Digest]mirror.Set{}, ready: ready}
}

// proxyOf returns a proxy by its UID.
func proxyOf(uid string) *mesh.Proxy {
	return &mesh.Proxy{
		Name: mesh.Name{Namespace: "shop", Name: "pod-" + uid}, UID: uid, Class: "test",
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"},
	}
}

var (
	testSettings = mesh.Seal(&mesh.Settings{TrustDomain: "cluster.local", InboundTLS: mesh.Strict})
	testInbound  = mesh.Seal(&mesh.Inbound{TLS: mesh.Strict})
	testEgress   = mesh.Seal(&mesh.Egress{})
)

// put has the proxy get the files, and tells the brokers.
func (c *core) put(proxy *mesh.Proxy, set mirror.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	outbound := mesh.NewOutbound(fmt.Sprint(c.count), mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{})
	view := mesh.NewView(mesh.Seal(proxy), testSettings, testInbound, outbound, testEgress)
	c.views[proxy.UID], c.sets[view.Digest()] = view, set
	for _, watcher := range c.watchers {
		watcher <- proxy.UID
	}
}

// set has the proxy get the files, given as names and texts in turn.
func (c *core) set(uid string, files ...string) mirror.Set {
	set := setOf(c.t, files...)
	c.put(proxyOf(uid), set)
	return set
}

func setOf(t testing.TB, files ...string) mirror.Set {
	t.Helper()
	var all []*mirror.File
	for i := 0; i < len(files); i += 2 {
		file, err := mirror.NewFile(files[i], files[i+1])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file)
	}
	return mirror.NewSet(all...)
}

// drop has the proxy's pod go away.
func (c *core) drop(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.views, uid)
	for _, watcher := range c.watchers {
		watcher <- uid
	}
}

func (c *core) translate(view *mesh.View) mirror.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets[view.Digest()]
}

func (c *core) Ready() <-chan struct{} { return c.ready }

func (c *core) Snapshot() *mesh.Snapshot { return &mesh.Snapshot{Settings: testSettings} }

func (c *core) View(uid string) (*mesh.View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	view, ok := c.views[uid]
	return view, ok
}

func (c *core) AwaitView(_ context.Context, peer driver.Peer) (*mesh.View, error) {
	view, ok := c.View(peer.ProxyUID)
	if !ok {
		return nil, fmt.Errorf("pod UID %q: %w", peer.ProxyUID, driver.ErrUnknownProxy)
	}
	return view, nil
}

func (c *core) Subscribe(<-chan struct{}) <-chan string {
	c.mu.Lock()
	defer c.mu.Unlock()
	watcher := make(chan string, 1<<16)
	c.watchers = append(c.watchers, watcher)
	return watcher
}

func (c *core) TrustBundle() []byte { return nil }

func (c *core) TrustBundleChanged(<-chan struct{}) <-chan struct{} { return nil }

func (c *core) ServerTLS() *tls.Config {
	server := c.ca.issue(c.t, &x509.Certificate{DNSNames: []string{"controller"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Hour)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.ca.pool(), Certificates: []tls.Certificate{server},
	}
	chosen := config.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return chosen, nil }
	return config
}

func (c *core) Connect(p driver.ConnectedProxy) (driver.ProxyConnection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connect != nil {
		return nil, c.connect
	}
	c.events = append(c.events, fmt.Sprintf("connect %s %s", p.Name, p.ProxyUID))
	return &proxyConnection{core: c}, nil
}

type proxyConnection struct {
	core *core
	once sync.Once
}

func (c *proxyConnection) Sent(_ string, resources, bytes int) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.sent += resources
	c.core.size += bytes
}

func (c *proxyConnection) Acked(version string, since time.Time) {
	timed := ""
	if !since.IsZero() {
		timed = " timed"
	}
	c.core.note("acked %s%s", version, timed)
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.acks++
}

func (c *proxyConnection) Rejected(r driver.Rejection) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.rejected = append(c.core.rejected, r)
	c.core.events = append(c.core.events, "rejected "+r.Version)
}

func (c *proxyConnection) Close() { c.once.Do(func() { c.core.note("close") }) }

func (c *core) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

func (c *core) refusals() []driver.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rejected)
}

// told reports how often the registry was told.
func (c *core) told(event string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for _, e := range c.events {
		if e == event {
			count++
		}
	}
	return count
}

// configurator is a MeshConfig's, of which only the class and the interval count.
type configurator struct {
	driver.Configurator
	core *core
}

func (configurator) GetMeshConfig() *configv1alpha2.MeshConfig { return new(configv1alpha2.MeshConfig) }
func (configurator) GetSidecarClass() string                   { return "test" }
func (c configurator) GetConfigResyncInterval() time.Duration {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	return c.core.resync
}

// authority signs certificates.
type authority struct{ tls.Certificate }

func newAuthority(t testing.TB) authority {
	a := authority{}
	a.Certificate = a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, 24*time.Hour)
	return a
}

func (a authority) issue(t testing.TB, template *x509.Certificate, life time.Duration) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(life)
	parent, signer := template, any(key)
	if a.Leaf != nil {
		parent, signer = a.Leaf, a.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Leaf)
	return pool
}

// workload returns the certificate of the proxy.
func (a authority) workload(t testing.TB, proxy *mesh.Proxy, life time.Duration) tls.Certificate {
	uri, err := url.Parse(proxy.Identity.String())
	if err != nil {
		t.Fatal(err)
	}
	return a.issue(t, &x509.Certificate{
		Subject: pkix.Name{OrganizationalUnit: []string{proxy.UID}}, URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, life)
}

var quietLog = slog.New(slog.DiscardHandler)

// harness is a Server of a core, on a port of loopback.
type harness struct {
	*core
	server  *Server
	address string
	end     func()
}

const testMain = "main.js"

// serve begins to serve. Change, if given, may change the server before that.
func (c *core) serve(t testing.TB, change ...func(*Server)) *harness {
	t.Helper()
	return c.serveAt(t, "127.0.0.1:0", change...)
}

// serveAt is serve at an address.
func (c *core) serveAt(t testing.TB, address string, change ...func(*Server)) *harness {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server, err := New(Options{
		Controller: &driver.ControllerContext{
			Context: ctx, Configurator: configurator{core: c}, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
			Log: quietLog,
		},
		Translate: c.translate,
		Objects: func(view *mesh.View, file string) []mesh.ObjectRef {
			return []mesh.ObjectRef{{Kind: "Service", Namespace: view.Proxy.Namespace, Name: file}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range change {
		change(server)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{core: c, server: server, address: listener.Addr().String()}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	h.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	t.Cleanup(h.end)
	return h
}

// url returns the address of the proxy's files.
func (h *harness) url(uid string) string { return "https://" + h.address + Prefix + uid + "/" }

// http returns a client with the certificate, of which every request may have a
// connection of its own.
func (h *harness) http(t testing.TB, certificate tls.Certificate) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: h.ca.pool(), Certificates: []tls.Certificate{certificate}, ServerName: "controller",
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// client returns a client of the mirror protocol for the proxy.
func (h *harness) client(t testing.TB, uid string) *mirror.Client {
	return &mirror.Client{URL: h.url(uid), HTTP: h.http(t, h.ca.workload(t, proxyOf(uid), time.Hour))}
}

// poll asks once and expects a change.
func poll(t testing.TB, client *mirror.Client, has mirror.Set, others ...string) mirror.Set {
	t.Helper()
	have := ""
	if has.Len() > 0 {
		have = mirror.Version(has)
	}
	change, err := client.Poll(t.Context(), have, others...)
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		t.Fatal("there is no change")
	}
	next, err := change.Apply(has)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// answer is what a request was answered with.
type answer struct {
	code   int
	body   string
	header http.Header
}

// ask makes a request.
func ask(t testing.TB, client *http.Client, method, address, body string, header ...string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, string(content), response.Header}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not happen that %s", what)
		}
	}
}
