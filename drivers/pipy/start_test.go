package pipy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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

// servedView returns the View of a proxy that may call three services, one of which has an
// endpoint at the address.
func servedView(endpoint string) *mesh.View {
	destinations, backends := make(map[string]*mesh.Destination), make(map[string]*mesh.Backend)
	for i := range 3 {
		service := mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: fmt.Sprint("service-", i)}, Port: 80}
		origins := []mesh.Origin{drivertest.Origin("Service", service.Name.String())}
		destinations[service.String()] = mesh.Seal(&mesh.Destination{Name: service.String(), Service: service, Origins: origins, Port: 80, Protocol: mesh.HTTP})
		backend := &mesh.Backend{Name: service.String(), Service: service, Origins: origins, Protocol: mesh.HTTP}
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

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// TestStart checks that Start serves the scripts and documents of a proxy on the port,
// sends only changed documents, shows its debug page and ends with the context.
func TestStart(t *testing.T) {
	var mu sync.Mutex
	var acked []string
	view := servedView("10.0.0.1")
	c, err := drivertest.NewController(name, func(r drivertest.Report) {
		mu.Lock()
		defer mu.Unlock()
		if r.Kind == drivertest.Acked {
			acked = append(acked, r.Version)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	c.SetView(view.Proxy.UID, view)
	agent, err := c.Authority().IssueTo(view.Proxy, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := (Driver{}).Start(c.Context(ctx, port)); err == nil || !strings.HasPrefix(err.Error(), "pipy: listening for proxies: ") {
		t.Errorf("on a port in use Start returned %v", err)
	}
	listener.Close()
	arguments := c.Context(ctx, port)
	arguments.CancelFunc = func() { t.Error("the driver ends the controller") }
	probes, err := Driver{}.Start(arguments)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "it is ready", probes.Readiness)
	if !probes.Liveness() || probes.GetID() != "pipy" {
		t.Errorf("%q is alive: %t", probes.GetID(), probes.Liveness())
	}

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.Authority().Pool(), ServerName: drivertest.ControllerName, Certificates: []tls.Certificate{agent}}}
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
			t.Errorf("%s is missing among %q", name, set.Names())
		}
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		change, err = client.Poll(t.Context(), mirror.Version(set))
	}()
	await(t, "the first version is acknowledged", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(acked, mirror.Version(set))
	})
	c.SetView(view.Proxy.UID, servedView("10.0.0.2"))
	<-answered
	if err != nil || change == nil || len(change.Files) != 1 || change.Files[0].Name != "config/backends/shop/service-1:80.json" || len(change.Gone) != 0 {
		t.Errorf("a changed endpoint is sent as %+v, %v", change, err)
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

// TestStartLacks checks that Start refuses an incomplete context.
func TestStartLacks(t *testing.T) {
	if _, err := (Driver{}).Start(t.Context()); err == nil || err.Error() != "missing Controller Context" {
		t.Errorf("without a ControllerContext Start returned %v", err)
	}
	if _, err := (Driver{}).Start(&driver.ControllerContext{}); err == nil || !strings.HasPrefix(err.Error(), "pipy: ") {
		t.Errorf("without a catalog Start returned %v", err)
	}
}

// TestObjects checks that the object of a document is its service.
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
			t.Errorf("%s has the objects %v, want %s", name, got, want)
		}
	}
}
