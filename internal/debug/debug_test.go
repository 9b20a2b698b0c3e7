package debug_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func handler(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func TestMerge(t *testing.T) {
	core := map[string]http.Handler{"/debug/proxy": handler("core"), "/debug/config": handler("core")}
	all, err := debug.Merge(core, map[string]http.Handler{"/debug/xds": handler("driver")}, nil)
	if err != nil || len(all) != 3 {
		t.Errorf("got %d pages and the error %v", len(all), err)
	}
	for want, pages := range map[string]map[string]http.Handler{
		"there twice":   {"/debug/config": handler("driver")},
		"below /debug/": {"/proxy": handler("driver")},
		"no path":       {"GET /debug/x": handler("driver")},
		"no handler":    {"/debug/x": nil},
	} {
		if _, err := debug.Merge(core, pages); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one with %q", pages, err, want)
		}
	}
}

// poll asks until the answer is as wanted.
func poll(t *testing.T, what string, check func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !check() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it does not come to that", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestSwitch turns the server on and off, and shows other pages while it is on.
func TestSwitch(t *testing.T) {
	address := freeAddress(t)
	s := debug.NewServer(address, slog.New(slog.DiscardHandler))
	s.Show(map[string]http.Handler{"/debug/a": handler("first")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	get := func(path string) string {
		response, err := client.Get("http://" + address + path)
		if err != nil {
			return "nobody"
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err.Error()
		}
		return response.Status[:3] + " " + strings.TrimSpace(string(body))
	}
	if got := get("/debug/a"); got != "nobody" {
		t.Errorf("before it is on: %s", got)
	}
	for range 3 {
		s.Switch(true)
		poll(t, "on", func() bool { return get("/debug/a") == "200 first" })
		s.Switch(false)
		poll(t, "off", func() bool { return get("/debug/a") == "nobody" })
	}
	s.Switch(true)
	poll(t, "on", func() bool { return get("/debug/a") == "200 first" })
	s.Show(map[string]http.Handler{"/debug/b": handler("second")})
	if got := get("/debug/b"); got != "200 second" {
		t.Errorf("another page: %s", got)
	}
	if got := get("/debug/a"); !strings.HasPrefix(got, "404") {
		t.Errorf("a page that is gone: %s", got)
	}
	for _, path := range []string{"/", "/debug", "/debug/"} {
		if got := get(path); !strings.Contains(got, `"/debug/b"`) {
			t.Errorf("the index at %s: %s", path, got)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+"/debug/b", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, response.Status)
		}
	}
	cancel()
	<-done
	if got := get("/debug/b"); got != "nobody" {
		t.Errorf("after the end: %s", got)
	}
}

// TestTakenPort has the server wait for its port.
func TestTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := debug.NewServer(taken.Addr().String(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	s.Switch(true)
	s.Switch(true)
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	poll(t, "the port is free", func() bool {
		response, err := http.Get("http://" + taken.Addr().String() + "/debug")
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
	cancel()
	<-done
}

// TestPages asks for each page of core.
func TestPages(t *testing.T) {
	obj := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{
		Namespace: "osm-system", Name: "osm-mesh-config",
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"authorization": "Bearer 123"}`},
	}}
	obj.Spec.Observability.RemoteLogging.Authorization = "Bearer 123"
	obj.Spec.FeatureFlags.EnableRetryPolicy = new(true)
	obj.Spec.Traffic.EnablePermissiveTrafficPolicyMode = new(true)
	config := source.NewConfig(obj, source.ConfigOptions{
		BuiltinImage: func(string, string) string { return "" }, Env: func(string) string { return "" },
	})
	pod := fact.Fact{Object: mesh.ObjectRef{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "cart"}, Content: mesh.Seal(&fact.Workload{
		Name: mesh.Name{Namespace: "shop", Name: "cart"}, UID: "1", ServiceAccount: "cart", Class: "nobody's",
		Owner: fact.Owner{Kind: "deployment", Name: "carts"},
	})}
	namespace := func(name string, member bool) fact.Fact {
		return fact.Fact{Object: mesh.ObjectRef{APIVersion: "v1", Kind: "Namespace", Name: name}, Content: mesh.Seal(&fact.Namespace{Name: name, Member: member})}
	}
	retry := fact.Fact{
		Object:  mesh.ObjectRef{APIVersion: "policy.openservicemesh.io/v1alpha1", Kind: "Retry", Namespace: "shop", Name: "r"},
		Content: mesh.Seal(&fact.RetryRule{Name: mesh.Name{Namespace: "shop", Name: "r"}}),
	}
	services := []fact.Fact{}
	for i, name := range []string{"new", "web"} {
		services = append(services, fact.Fact{
			Object: mesh.ObjectRef{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: name},
			Content: mesh.Seal(&fact.Service{
				Name: mesh.Name{Namespace: "shop", Name: name}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})},
				Ports: []fact.PortSpec{{Port: 80, Target: 8080, Protocol: "http"}},
			}),
		})
	}
	slice := fact.Fact{
		Object: mesh.ObjectRef{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", Namespace: "shop", Name: "web-1"},
		Content: mesh.Seal(&fact.EndpointSlice{
			Name: mesh.Name{Namespace: "shop", Name: "web-1"}, Service: "web", Ports: []fact.SlicePort{{Port: 8080}},
			Endpoints: []fact.SliceEndpoint{{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Workload: "cart", Ready: true, Serving: true}},
		}),
	}
	split := fact.Fact{
		Object:  mesh.ObjectRef{APIVersion: "split.smi-spec.io/v1alpha4", Kind: "TrafficSplit", Namespace: "shop", Name: "canary"},
		Content: mesh.Seal(&fact.Split{Name: mesh.Name{Namespace: "shop", Name: "canary"}, Root: "web", Backends: []fact.SplitBackend{{Service: "web", Weight: 9}, {Service: "new", Weight: 1}}}),
	}
	cat := catalog.New(catalog.Options{HoldOff: time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		cat.Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	cat.Apply(services...)
	cat.Apply(slice, split, pod, namespace("shop", true), namespace("elsewhere", false), retry,
		fact.Fact{Object: mesh.ObjectRef{Kind: "MeshConfig", Name: "m"}, Content: config.Settings()})
	cat.Synced()
	<-cat.Ready()

	pages, err := debug.Merge(debug.Pages(debug.Sources{
		Catalog: cat, Config: config,
		Proxies: func() []registry.Proxy {
			return []registry.Proxy{{Name: mesh.Name{Namespace: "shop", Name: "cart"}, UID: "1", State: "Current"}}
		},
		Problems: func() []mesh.Problem {
			return []mesh.Problem{{Object: mesh.ObjectRef{Kind: "File", Name: "a.yaml"}, Reason: "Unreadable"}}
		},
		Certificates: func() any { return map[string]string{"bundle": "of roots"} },
		Traffic: func(_ context.Context, period time.Duration, namespaces []string) (*traffic.Report, error) {
			if slices.Contains(namespaces, "lost") {
				return nil, errors.New("it takes too long")
			}
			return &traffic.Report{Services: []mesh.Name{{Namespace: strings.Join(namespaces, " and "), Name: period.String()}}}, nil
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for path := range pages {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	want := "/debug/certs /debug/config /debug/explain /debug/feature-flags /debug/mesh /debug/namespaces /debug/policies /debug/pprof/ /debug/pprof/cmdline /debug/pprof/profile /debug/pprof/symbol /debug/pprof/trace /debug/problems /debug/proxy /debug/traffic"
	if got := strings.Join(paths, " "); got != want {
		t.Errorf("pages %s, want %s", got, want)
	}
	mux := http.NewServeMux()
	for path, page := range pages {
		mux.Handle("GET "+path, page)
	}
	for _, tt := range []struct {
		path   string
		status int
		// has are parts of the answer without white space, and not none of it.
		has []string
		not string
	}{
		{"/debug/proxy", 200, []string{`[{"name":{"namespace":"shop","name":"cart"},"uid":"1"`}, "view"},
		{"/debug/proxy?pod=shop/cart", 200, []string{`{"proxy":{"name":{"namespace":"shop"`, `"view":{"proxy":{"namespace":"shop","name":"cart","uid":"1"`, `"note":"sidecar:unknowndriver`}, ""},
		{"/debug/proxy?pod=shop/nobody", 404, []string{"nopodshop/nobodyhasaproxy"}, ""},
		{"/debug/proxy?pod=", 404, nil, ""},
		{"/debug/mesh", 200, []string{
			`"pods":[{"namespace":"shop","name":"cart","owner":{"kind":"deployment","name":"carts"},"serviceAccount":"cart","class":"nobody's","ready":false}]`,
			`{"namespace":"shop","name":"web","ports":[{"port":80,"target":8080,"protocol":"http"}],"pods":["cart"]}]`,
			`"splits":[{"service":{"namespace":"shop","name":"web","port":80},"route":"shop/canary","shares":[{"service":{"namespace":"shop","name":"web"},"weight":9},{"service":{"namespace":"shop","name":"new"},"weight":1}]}]`,
			`"kind":"Retry"`, `"reason":"Unreadable"`, `"proxies":[{`,
		}, ""},
		{"/debug/explain?from=shop/cart&to=shop/web&method=GET&path=/", 200, []string{`"verdict":"`, `"topic":"caller"`}, ""},
		{"/debug/explain?from=shop/cart&to=shop/nothing&method=GET&path=/", 404, nil, ""},
		{"/debug/explain?from=cart&to=shop/web", 404, []string{"NAMESPACE/NAME"}, ""},
		{"/debug/config", 200, []string{`"authorization":"(hidden)"`, `"defaultClass":"envoy"`, `"settings":{"trustDomain":"cluster.local"`}, "123"},
		{"/debug/certs", 200, []string{`{"bundle":"ofroots"}`}, ""},
		{"/debug/policies", 200, []string{`"kind":"Retry"`, `"says":{"namespace":"shop","name":"r"`, `"problems":[`}, "Pod"},
		{"/debug/namespaces", 200, []string{`[{"apiVersion":"v1","kind":"Namespace","name":"shop"`}, "elsewhere"},
		{"/debug/problems", 200, []string{`"reason":"Unreadable"`, `"kind":"Retry"`}, ""},
		{"/debug/feature-flags", 200, []string{`"set":{"enableRetryPolicy":true}`, `"enableEgressPolicy":true`}, ""},
		{"/debug/traffic", 200, []string{`"services":[{"namespace":"","name":"0s"}]`}, ""},
		{"/debug/traffic?period=10s&namespace=shop&namespace=front", 200, []string{`{"namespace":"shopandfront","name":"10s"}`}, ""},
		{"/debug/traffic?period=10", 400, []string{"giveadurationsuchas10s,atmost5m0s"}, ""},
		{"/debug/traffic?period=6m", 400, []string{"atmost5m0s"}, ""},
		{"/debug/traffic?period=-1s", 400, nil, ""},
		{"/debug/traffic?namespace=lost", 503, []string{"ittakestoolong"}, ""},
		{"/debug/pprof/", 200, []string{"goroutine"}, ""},
	} {
		t.Run(tt.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, tt.path, nil))
			body := strings.Join(strings.Fields(w.Body.String()), "")
			if w.Code != tt.status {
				t.Errorf("status %d: %s", w.Code, body)
			}
			for _, part := range tt.has {
				if !strings.Contains(body, part) {
					t.Errorf("%s has no %s", body, part)
				}
			}
			if tt.not != "" && strings.Contains(body, tt.not) {
				t.Errorf("%s has %s", body, tt.not)
			}
			if isPprof := strings.HasPrefix(tt.path, "/debug/pprof"); w.Code == 200 && !isPprof && !json.Valid(w.Body.Bytes()) {
				t.Errorf("it is no JSON: %s", body)
			}
		})
	}
}
