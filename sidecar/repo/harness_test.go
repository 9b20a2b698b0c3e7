package repo

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// core is a Controller for tests that set each proxy's files.
type core struct {
	*drivertest.Controller
	t  testing.TB
	ca drivertest.TestAuthority

	mu    sync.Mutex
	count int
	sets  map[mesh.Digest]mirror.Set
	// events are the reports as text, except those of kind Sent.
	events   []string
	sent     int
	size     int
	acks     int
	rejected []driver.Rejection
}

func newCore(t testing.TB) *core {
	t.Helper()
	c := &core{t: t, sets: map[mesh.Digest]mirror.Set{}}
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
		c.events = append(c.events, fmt.Sprintf("connect %s %s", r.Proxy.Name, r.Proxy.ProxyUID))
	case drivertest.Sent:
		c.sent += r.Resources
		c.size += r.Bytes
	case drivertest.Acked:
		timed := ""
		if !r.Since.IsZero() {
			timed = " timed"
		}
		c.acks++
		c.events = append(c.events, "acked "+r.Version+timed)
	case drivertest.Rejected:
		c.rejected = append(c.rejected, r.Rejection)
		c.events = append(c.events, "rejected "+r.Version)
	case drivertest.VersionSet:
		c.events = append(c.events, "version "+r.Version)
	case drivertest.Closed:
		c.events = append(c.events, "close")
	}
}

// proxyOf returns the proxy with the UID.
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

// put sets the proxy's files.
func (c *core) put(proxy *mesh.Proxy, set mirror.Set) {
	c.mu.Lock()
	c.count++
	outbound := mesh.NewOutbound(fmt.Sprint(c.count), mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{})
	view := mesh.NewView(mesh.Seal(proxy), testSettings, testInbound, outbound, testEgress)
	c.sets[view.Digest()] = set
	c.mu.Unlock()
	c.SetView(proxy.UID, view)
}

// set sets the proxy's files, given as alternating names and texts.
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

func (c *core) translate(view *mesh.View) mirror.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sets[view.Digest()]
}

func (c *core) refusals() []driver.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rejected)
}

// reported returns how often there was a report.
func (c *core) reported(event string) int {
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

var quietLog = slog.New(slog.DiscardHandler)

// harness is a Server of a core, on a loopback port.
type harness struct {
	*core
	server  *Server
	address string
	end     func()
}

const testMain = "main.js"

// serve starts a Server. Change, if given, may change it before.
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
			Context: ctx, Configurator: c, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
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

// url returns the URL of the proxy's files.
func (h *harness) url(uid string) string { return "https://" + h.address + Prefix + uid + "/" }

// http returns a client with the certificate. Concurrent requests have different
// connections.
func (h *harness) http(t testing.TB, certificate tls.Certificate) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: h.ca.Pool(), Certificates: []tls.Certificate{certificate}, ServerName: "controller",
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// client returns a client of the mirror protocol for the proxy.
func (h *harness) client(t testing.TB, uid string) *mirror.Client {
	return &mirror.Client{URL: h.url(uid), HTTP: h.http(t, h.ca.SignFor(proxyOf(uid), time.Hour))}
}

// poll polls once and expects a change.
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

// answer is the answer to a request.
type answer struct {
	code   int
	body   string
	header http.Header
}

// ask sends a request.
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
			t.Fatalf("timeout: %s", what)
		}
	}
}
