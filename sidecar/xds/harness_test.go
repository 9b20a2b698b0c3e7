package xds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	configv1alpha2 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// The types of the tests, in their order. What is in a resource is nobody's business
// but that of the page that shows it, so all are clusters.
const (
	prefix    = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	secrets   = "type.googleapis.com/test.Secret"
	clusters  = prefix
	endpoints = "type.googleapis.com/test.Endpoint"
	listeners = "type.googleapis.com/test.Listener"
	routes    = "type.googleapis.com/test.Route"
)

var testTypes = []Type{
	{URL: secrets, Named: true},
	{URL: clusters, Asks: endpoints},
	{URL: endpoints, Named: true},
	{URL: listeners, Held: true},
	{URL: routes, Named: true, Held: true},
}

// state is the content of resources by type and name: "clusters" to "a" to "1".
type state map[string]map[string]string

// with returns a copy with the resource changed, or without it if there is no content.
func (s state) with(typeURL, name, content string) state {
	next := state{}
	for t, resources := range s {
		next[t] = maps.Clone(resources)
	}
	if next[typeURL] == nil {
		next[typeURL] = map[string]string{}
	}
	if next[typeURL][name] = content; content == "" {
		delete(next[typeURL], name)
	}
	return next
}

// resourceOf returns a resource. A cluster "a" asks for the endpoints "a@<content>".
func resourceOf(typeURL, name, content string) *Resource {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&clusterv3.Cluster{Name: name, AltStatName: content})
	if err != nil {
		panic(err)
	}
	r := NewResource(typeURL, name, body, mesh.DigestBytes([]byte(typeURL+"\x00"+name+"\x00"+content)))
	if typeURL == clusters {
		r.Asks = name + "@" + content
	}
	return r
}

// config returns what is made of the state after another, as a translator does.
func (s state) config(former Config) Config {
	if former == nil {
		former = make(Config, len(testTypes))
	}
	config := slices.Clone(former)
	for i, t := range testTypes {
		var changes []mesh.Change[*Resource]
		for name := range config[i].All() {
			if _, ok := s[t.URL][name]; !ok {
				changes = append(changes, mesh.Change[*Resource]{Name: name, Delete: true})
			}
		}
		for name, content := range s[t.URL] {
			changes = append(changes, mesh.Change[*Resource]{Name: name, Value: resourceOf(t.URL, name, content)})
		}
		config[i] = config[i].With(changes...)
	}
	return config
}

// core is what a controller gives a driver, for a test that says what each proxy gets.
type core struct {
	t  testing.TB
	ca authority
	// types are those that are served; nil means testTypes.
	types []Type

	mu       sync.Mutex
	count    int
	views    map[string]*mesh.View
	configs  map[mesh.Digest]Config
	watchers []chan string
	ready    chan struct{}
	notAfter time.Duration
	resync   time.Duration
	connect  error
	// events are what the registry is told, but for what was sent.
	events                     []string
	responses, resources, size int
	acks                       int
	rejected                   []driver.Rejection
}

func newCore(t testing.TB) *core {
	ready := make(chan struct{})
	close(ready)
	return &core{t: t, ca: newAuthority(t), views: map[string]*mesh.View{}, configs: map[mesh.Digest]Config{}, ready: ready, notAfter: time.Hour}
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

// put has the proxy get the Config, and returns its View.
func (c *core) put(proxy *mesh.Proxy, config Config) *mesh.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	outbound := mesh.NewOutbound(fmt.Sprint(c.count), mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{})
	view := mesh.NewView(mesh.Seal(proxy), testSettings, testInbound, outbound, testEgress)
	c.views[proxy.UID], c.configs[view.Digest()] = view, config
	for _, watcher := range c.watchers {
		watcher <- proxy.UID
	}
	return view
}

// set has the proxy get what the state says.
func (c *core) set(uid string, s state) *mesh.View {
	c.mu.Lock()
	var former Config
	if view := c.views[uid]; view != nil {
		former = c.configs[view.Digest()]
	}
	c.mu.Unlock()
	return c.put(proxyOf(uid), s.config(former))
}

// back has the proxy get a View that there was.
func (c *core) back(view *mesh.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.views[view.Proxy.UID] = view
	for _, watcher := range c.watchers {
		watcher <- view.Proxy.UID
	}
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

func (c *core) translate(view *mesh.View) Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.configs[view.Digest()]
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
	server := c.ca.issue(c.t, &x509.Certificate{DNSNames: []string{"controller"}}, time.Hour)
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
	c.events = append(c.events, fmt.Sprintf("connect %s %s %q", p.Name, p.ProxyUID, p.Version))
	return &proxyConnection{core: c}, nil
}

type proxyConnection struct {
	core *core
	once sync.Once
}

func (c *proxyConnection) Sent(_ string, resources, bytes int) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.responses++
	c.core.resources += resources
	c.core.size += bytes
}

func (c *proxyConnection) Acked(version string, since time.Time) {
	c.core.note("acked %s", version)
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.acks++
}

func (c *proxyConnection) Rejected(r driver.Rejection) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.rejected = append(c.core.rejected, r)
	c.core.events = append(c.core.events, fmt.Sprintf("rejected %q", r.Resources))
}

func (c *proxyConnection) Close() { c.once.Do(func() { c.core.note("close") }) }

func (c *core) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

func (c *core) rejections() []driver.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rejected)
}

// told reports whether the registry was told.
func (c *core) told(event string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.events, event)
}

// runs reports whether the registry was last told that the View runs.
func (c *core) runs(view *mesh.View) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.events) > 0 && c.events[len(c.events)-1] == "acked "+view.Digest().String()
	}
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
	a.Certificate = a.issue(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, 24*time.Hour)
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

// harness is a Server of a core, in memory.
type harness struct {
	*core
	server   *Server
	listener *bufconn.Listener
	end      func()
}

// server returns a Server of the core.
func (c *core) server(t testing.TB, ctx context.Context, patience time.Duration) *Server {
	t.Helper()
	types := c.types
	if types == nil {
		types = testTypes
	}
	server, err := New(Options{
		Controller: &driver.ControllerContext{
			Context: ctx, Configurator: configurator{core: c}, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
			Log: quietLog,
		},
		Types: types, Translate: c.translate, Patience: patience,
		Objects: func(view *mesh.View, typeURL, name string) []mesh.ObjectRef {
			return []mesh.ObjectRef{{Kind: "Service", Namespace: view.Proxy.Namespace, Name: name}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func (c *core) serve(t testing.TB, patience time.Duration) *harness {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server := c.server(t, ctx, patience)
	h := &harness{core: c, server: server, listener: bufconn.Listen(64 << 10)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, h.listener) }()
	h.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	t.Cleanup(h.end)
	return h
}

// dial connects with the certificate.
func (h *harness) dial(t testing.TB, certificate tls.Certificate) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:controller", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return h.listener.DialContext(ctx)
	}), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: h.ca.pool(), Certificates: []tls.Certificate{certificate}, ServerName: "controller",
	})), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not happen that %s", what)
		}
	}
}

var _ discoveryv3.AggregatedDiscoveryServiceServer = service{}
