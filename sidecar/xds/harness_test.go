package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
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

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// The resource types of the tests in sending order. All resources are encoded as
// clusters, since only the debug page decodes them.
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

// with returns a copy with the resource set, or removed if content is empty.
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

// resourceOf returns a resource. Cluster "a" refers to the endpoints "a@<content>".
func resourceOf(typeURL, name, content string) *Resource {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&clusterv3.Cluster{Name: name, AltStatName: content})
	if err != nil {
		panic(err)
	}
	r := NewResource(typeURL, name, mesh.DigestBytes([]byte(typeURL+"\x00"+name+"\x00"+content)), body[:len(body)/2], body[len(body)/2:])
	if typeURL == clusters {
		r.Asks = name + "@" + content
	}
	return r
}

// config returns the Config of the state. Unchanged parts are shared with former.
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

// core implements a controller for a driver. The test sets the configuration of each
// proxy.
type core struct {
	*drivertest.Controller
	t  testing.TB
	ca drivertest.TestAuthority
	// types are those that are served; nil means testTypes.
	types    []Type
	notAfter time.Duration

	mu      sync.Mutex
	count   int
	configs map[mesh.Digest]Config
	// events are the calls that the registry received, except for Sent.
	events []string
	// sent is the version of the last Sent.
	sent                       string
	responses, resources, size int
	acks                       int
	rejected                   []driver.Rejection
}

func newCore(t testing.TB) *core {
	t.Helper()
	c := &core{t: t, configs: map[mesh.Digest]Config{}, notAfter: time.Hour}
	var err error
	if c.Controller, err = drivertest.NewController("test", c.report); err != nil {
		t.Fatal(err)
	}
	c.ca = drivertest.TestAuthority{Authority: c.Authority(), T: t}
	return c
}

func (c *core) report(r drivertest.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Kind {
	case drivertest.Connected:
		c.events = append(c.events, fmt.Sprintf("connect %s %s %q", r.Proxy.Name, r.Proxy.ProxyUID, r.Proxy.Version))
	case drivertest.Sent:
		c.sent = r.Version
		if r.Bytes > 0 {
			c.responses++
		}
		c.resources += r.Resources
		c.size += r.Bytes
	case drivertest.Acked:
		c.acks++
		c.events = append(c.events, "acked "+r.Version)
	case drivertest.Rejected:
		c.rejected = append(c.rejected, r.Rejection)
		c.events = append(c.events, fmt.Sprintf("rejected %q", r.Rejection.Resources))
	case drivertest.Closed:
		c.events = append(c.events, "close")
	}
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

// put sets the Config of the proxy and returns its View.
func (c *core) put(proxy *mesh.Proxy, config Config) *mesh.View {
	c.mu.Lock()
	c.count++
	outbound := mesh.NewOutbound(fmt.Sprint(c.count), mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{})
	view := mesh.NewView(mesh.Seal(proxy), testSettings, testInbound, outbound, testEgress)
	c.configs[view.Digest()] = config
	c.mu.Unlock()
	c.SetView(proxy.UID, view)
	return view
}

// set sets the configuration of the proxy to the state.
func (c *core) set(uid string, s state) *mesh.View {
	var former Config
	if view, ok := c.View(uid); ok {
		former = c.translate(view)
	}
	return c.put(proxyOf(uid), s.config(former))
}

// connection returns what a stream of a test reports to.
func (c *core) connection() driver.ProxyConnection {
	c.t.Helper()
	connection, err := c.Connect(driver.ConnectedProxy{})
	if err != nil {
		c.t.Fatal(err)
	}
	return connection
}

func (c *core) translate(view *mesh.View) Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.configs[view.Digest()]
}

func (c *core) rejections() []driver.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rejected)
}

// reported reports whether the registry received the event.
func (c *core) reported(event string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.events, event)
}

// runs reports whether the registry was last informed that the proxy runs the View.
func (c *core) runs(view *mesh.View) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.events) > 0 && c.events[len(c.events)-1] == "acked "+view.Digest().String()
	}
}

var quietLog = slog.New(slog.DiscardHandler)

// harness is a Server of a core, with an in-memory listener.
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
			Context: ctx, Configurator: c, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
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
		MinVersion: tls.VersionTLS13, RootCAs: h.ca.Pool(), Certificates: []tls.Certificate{certificate}, ServerName: "controller",
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
			t.Fatalf("condition not reached: %s", what)
		}
	}
}

var _ discoveryv3.AggregatedDiscoveryServiceServer = service{}
