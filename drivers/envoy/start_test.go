package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// freePort returns a recently free port, and a listener on another one.
func freePort(t *testing.T) (free uint16, taken net.Listener) {
	t.Helper()
	var listeners [2]net.Listener
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
	}
	listeners[0].Close()
	t.Cleanup(func() { listeners[1].Close() })
	return uint16(listeners[0].Addr().(*net.TCPAddr).Port), listeners[1]
}

// TestStart serves on the port, shows the debug page and stops with the context.
func TestStart(t *testing.T) {
	c := newCore(t)
	f := views()["http"]
	c.set(f.view())
	free, taken := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	if _, err := (Driver{}).Start(c.context(ctx, uint16(taken.Addr().(*net.TCPAddr).Port))); err == nil || !strings.HasPrefix(err.Error(), "envoy: listening for proxies: ") {
		t.Errorf("with a taken port Start returned %v", err)
	}

	arguments := c.context(ctx, free)
	probes, err := Driver{}.Start(arguments)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", free)
	eventually(t, "it is ready", probes.Readiness)
	if !probes.Liveness() || probes.GetID() != "envoy" {
		t.Errorf("%q is alive: %t", probes.GetID(), probes.Liveness())
	}
	page := arguments.DebugHandlers["/debug/xds"]
	if page == nil {
		t.Fatal("there is no debug page")
	}
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/xds?proxy=uid-1", nil))
	var resources map[string]map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &resources); err != nil || resources["Cluster"]["bookstore/bookstore:14001"] == nil {
		t.Errorf("the page is %d %s (%v)", w.Code, w.Body, err)
	}
	cancel()
	eventually(t, "nobody listens any more", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err != nil && !probes.Readiness()
	})
}

// TestPort checks that the bootstrap has the class's port of the MeshConfig.
func TestPort(t *testing.T) {
	inj := &driver.InjectorContext{
		Pod:   &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}},
		PodOS: "linux", OsmNamespace: "osm-system", Configurator: otherPort{newCore(t).Controller},
		Sidecar: driver.Sidecar{Class: "proxies", Image: "envoy", InitImage: "init", LogLevel: "error"},
	}
	if err := (Driver{}).Patch(inj); err != nil {
		t.Fatal(err)
	}
	for _, e := range inj.Pod.Spec.Containers[1].Env {
		if e.Name == agentspec.EnvSpec && (!strings.Contains(e.Value, "port_value: 15999}") || strings.Contains(e.Value, "15128")) {
			t.Errorf("the agent's Spec is %s", e.Value)
		}
	}
}

type otherPort struct{ *drivertest.Controller }

func (otherPort) GetProxyServerPort(class string) uint32 {
	if class == "proxies" {
		return 15999
	}
	return 1
}

// TestObjects checks which objects a resource belongs to.
func TestObjects(t *testing.T) {
	f := views()["http"]
	view := f.view()
	config := NewTranslator().Config(view)
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		found, want := false, "Service bookstore/bookstore"
		if typeURL == clusterType || typeURL == endpointType {
			want += ", UpstreamTrafficSetting bookstore/bookstore"
		}
		for name := range config.table(typeURL).All() {
			var got []string
			for _, object := range objects(view, typeURL, name) {
				got = append(got, object.String())
			}
			if len(got) == 0 {
				t.Errorf("%s %s belongs to nothing", typeURL, name)
			}
			found = found || strings.Join(got, ", ") == want
		}
		if !found {
			t.Errorf("no %s belongs to %s", typeURL, want)
		}
	}
	if got := objects(view, listenerType, inboundListener); len(got) != 1 || got[0].String() != "Pod bookbuyer/bookbuyer-1" {
		t.Errorf("the inbound listener belongs to %v", got)
	}
}
