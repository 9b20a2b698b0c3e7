package dashboard_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outrigger-mesh/outrigger/internal/dashboard"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// controllers answers as controllers do, by name and path.
type controllers map[string]map[string]any

func (c controllers) ask(_ context.Context, path string, take func(string, []byte) error) error {
	var failed []error
	for _, name := range []string{"a", "b"} {
		pages, ok := c[name]
		if !ok {
			continue
		}
		answer, known := pages[path]
		if err, isError := answer.(error); isError {
			failed = append(failed, err)
			continue
		}
		var text []byte
		if known {
			var err error
			if text, err = json.Marshal(answer); err != nil {
				return err
			}
		}
		err := take(name, text)
		if errors.Is(err, debug.ErrEnough) {
			return nil
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// trafficPath is what the dashboard asks for.
const trafficPath = debug.TrafficPath + "?period=4s"

var (
	desk    = traffic.End{Namespace: "shop", Workload: "desk", ServiceAccount: "desk"}
	cart    = traffic.End{Namespace: "shop", Workload: "cart", ServiceAccount: "carts"}
	refused = traffic.Counts{Denied: map[string]float64{"access": 4}}
)

// counted is a report with one flow.
func counted(flow traffic.Flow) traffic.Report {
	return traffic.Report{Pods: []traffic.Pod{{Name: name("shop", "desk"), Read: true, Seconds: 4, Flows: []traffic.Flow{flow}}}}
}

// measuredBy returns the edges of the first measurement.
func measuredBy(t *testing.T, c controllers) []dashboard.Edge {
	t.Helper()
	handler := dashboard.New(dashboard.Options{Ask: c.ask})
	deadline := time.Now().Add(10 * time.Second)
	for {
		var got dashboard.Mesh
		get(t, handler, "/api/mesh", &got)
		if got.Measured {
			return got.Edges
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing is measured: %q", got.Warnings)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func name(namespace, name string) mesh.Name { return mesh.Name{Namespace: namespace, Name: name} }

// shop is the mesh of these tests: two pods of a Deployment, one of which is connected to
// each controller, and a pod of its own.
func shop() debug.MeshPage {
	return debug.MeshPage{
		Pods: []debug.MeshPod{
			{Name: name("shop", "cart-1"), Owner: fact.Owner{Kind: "deployment", Name: "cart"}, ServiceAccount: "carts", Class: "envoy", Ready: true},
			{Name: name("shop", "cart-2"), Owner: fact.Owner{Kind: "deployment", Name: "cart"}, ServiceAccount: "carts", Class: "pipy", Ready: true},
			{Name: name("shop", "desk"), ServiceAccount: "desk", Class: "envoy"},
		},
		Services: []debug.MeshService{{Name: name("shop", "cart"), Ports: []fact.PortSpec{{Port: 80, Protocol: "http"}}, Pods: []string{"cart-1", "cart-2", "elsewhere"}}},
		Splits:   []debug.MeshSplit{}, Problems: []mesh.Problem{},
		Proxies: []registry.Proxy{{Name: name("shop", "cart-1"), State: registry.Current}},
	}
}

func connected(page debug.MeshPage, proxies ...registry.Proxy) debug.MeshPage {
	page.Proxies = proxies
	return page
}

func get(t *testing.T, handler http.Handler, path string, into any) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatal(err)
	}
}

func TestMesh(t *testing.T) {
	c := controllers{
		"a": {debug.MeshPath: shop()},
		"b": {debug.MeshPath: connected(shop(), registry.Proxy{Name: name("shop", "cart-2"), State: registry.Rejected})},
	}
	var got dashboard.Mesh
	get(t, dashboard.New(dashboard.Options{Ask: c.ask}), "/api/mesh", &got)
	want := []dashboard.Workload{
		{ID: "shop/cart", Namespace: "shop", Name: "cart", Kind: "deployment", ServiceAccount: "carts", Classes: []string{"envoy", "pipy"}, Pods: []dashboard.Pod{
			{Name: "cart-1", Class: "envoy", Ready: true, State: registry.Current}, {Name: "cart-2", Class: "pipy", Ready: true, State: registry.Rejected},
		}},
		{ID: "shop/desk", Namespace: "shop", Name: "desk", Kind: "pod", ServiceAccount: "desk", Classes: []string{"envoy"}, Pods: []dashboard.Pod{{Name: "desk", Class: "envoy"}}},
	}
	if diff := cmp.Diff(want, got.Workloads); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	services := []dashboard.Service{{
		ID: "shop/cart", Namespace: "shop", Name: "cart", Ports: []dashboard.ServicePort{{Port: 80, Protocol: "http"}}, Workloads: []string{"shop/cart"},
	}}
	if diff := cmp.Diff(services, got.Services); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	if got.Measured {
		t.Error("the traffic is measured, though no controller has measured it")
	}
}

// TestControllerAway shows what the other controller says, with a warning.
func TestControllerAway(t *testing.T) {
	c := controllers{"a": {debug.MeshPath: shop()}, "b": {debug.MeshPath: errors.New("controller b is away")}}
	var got dashboard.Mesh
	get(t, dashboard.New(dashboard.Options{Ask: c.ask}), "/api/mesh", &got)
	if len(got.Workloads) != 2 || len(got.Warnings) == 0 || got.Warnings[0] != "controller b is away" {
		t.Errorf("got %d workloads and the warnings %q", len(got.Workloads), got.Warnings)
	}
	away := controllers{"b": c["b"]}
	w := httptest.NewRecorder()
	dashboard.New(dashboard.Options{Ask: away.ask}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/mesh", nil))
	if w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), "controller b is away") {
		t.Errorf("without a controller: %d %s", w.Code, w.Body)
	}
}

// TestRule names the rule that refuses, also if the client's sidecar does not know what it
// refuses to call.
func TestRule(t *testing.T) {
	denied := explain.Explanation{Verdict: explain.Denied, Steps: []explain.Step{
		{Topic: "caller", Text: "a pod", Details: []string{"irrelevant"}},
		{Topic: "access", Text: "no rule matches", Details: []string{"TrafficTarget shop/cart is for others"}, Verdict: explain.Denied},
	}}
	for _, tt := range []struct {
		flow traffic.Flow
		want []string
	}{
		{
			traffic.Flow{Reporter: "source", Source: desk, Destination: cart, Service: "cart", Counts: refused},
			[]string{"no rule matches", "TrafficTarget shop/cart is for others"},
		},
		{
			traffic.Flow{Reporter: "source", Source: desk, Counts: refused},
			[]string{"Its own sidecar closes connections to what no rule lets shop/desk call.", "shop/cart:", "no rule matches", "TrafficTarget shop/cart is for others"},
		},
		{
			traffic.Flow{Reporter: "destination", Destination: cart, Counts: refused},
			[]string{"The caller is not known: it has no identity in the mesh."},
		},
		{
			traffic.Flow{Reporter: "destination", Source: desk, Destination: cart, Counts: traffic.Counts{Denied: map[string]float64{"rate_limit": 4}}},
			[]string{"a rate limit of the server is exceeded"},
		},
		{traffic.Flow{Reporter: "source", Source: desk, Destination: cart, Service: "cart", Counts: traffic.Counts{Requests: 4}}, nil},
	} {
		c := controllers{"a": {
			debug.MeshPath: shop(), debug.ExplainQuery("shop/desk", "shop/cart", "", ""): denied, trafficPath: counted(tt.flow),
		}}
		edges := measuredBy(t, c)
		if len(edges) != 1 {
			t.Fatalf("got the edges %v", edges)
		}
		if diff := cmp.Diff(tt.want, edges[0].Rule); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.flow, diff)
		}
	}
}

// TestEdges joins what several proxies have counted.
func TestEdges(t *testing.T) {
	ok := traffic.Counts{
		Requests: 30, Failed: 3, TLS: map[string]float64{"mutual": 30},
		Durations: traffic.Histogram{Buckets: []traffic.Bucket{{Bound: 0.01, Count: 30}}},
	}
	report := traffic.Report{Pods: []traffic.Pod{
		{Name: name("shop", "desk"), ServiceAccount: "desk", Read: true, Seconds: 10, Flows: []traffic.Flow{
			{Reporter: "source", Source: desk, Destination: cart, Service: "cart", Protocol: "http", Counts: ok},
			{Reporter: "source", Source: desk, Protocol: "tcp", Counts: traffic.Counts{Denied: map[string]float64{"egress": 5}}},
		}},
		{Name: name("shop", "cart-1"), Owner: fact.Owner{Kind: "deployment", Name: "cart"}, ServiceAccount: "carts", Read: true, Seconds: 5, Flows: []traffic.Flow{
			// The server knows the account only, which one workload has.
			{Reporter: "destination", Source: traffic.End{Namespace: "shop", ServiceAccount: "desk"}, Destination: cart, Protocol: "http", Counts: ok},
			{Reporter: "destination", Destination: cart, Protocol: "http", Counts: traffic.Counts{Requests: 5, TLS: map[string]float64{"none": 5}, Denied: map[string]float64{"plaintext": 5}}},
		}},
		{Name: name("shop", "cart-2"), Owner: fact.Owner{Kind: "deployment", Name: "cart"}, ServiceAccount: "carts", Read: true, Seconds: 5, Flows: []traffic.Flow{
			{Reporter: "destination", Source: traffic.End{Namespace: "shop", ServiceAccount: "desk"}, Destination: cart, Protocol: "http", Counts: ok},
		}},
		{Name: name("shop", "late"), Problem: "no answer in 5s"},
	}}
	c := controllers{"a": {debug.MeshPath: shop(), trafficPath: report}}
	got := measuredBy(t, c)
	for i := range got {
		got[i].Rule = nil
	}
	want := []dashboard.Edge{
		{Server: "shop/cart", Protocol: "http", Rate: 1, Success: 1, TLS: "none", Refused: 1, Reason: "plaintext"},
		{Client: "shop/desk", Protocol: "tcp", Success: 1, Refused: 0.5, Reason: "egress"},
		{Client: "shop/desk", Server: "shop/cart", Protocol: "http", Rate: 12, Success: 0.9, P50: 5, P95: 9.5, P99: 9.9, TLS: "mutual"},
		{Client: "shop/desk", Service: "shop/cart", Protocol: "http", Rate: 3, Success: 0.9, P50: 5, P95: 9.5, P99: 9.9, TLS: "mutual"},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPod shows a proxy as the controller does that it is connected to, with the problems of
// its pod and policies.
func TestPod(t *testing.T) {
	target := mesh.ObjectRef{Kind: "TrafficTarget", Namespace: "shop", Name: "cart"}
	page := shop()
	page.Problems = []mesh.Problem{
		{Object: target, Reason: "Invalid"}, {Object: mesh.ObjectRef{Kind: "Pod", Namespace: "shop", Name: "cart-2"}, Reason: "Late"},
		{Object: mesh.ObjectRef{Kind: "Pod", Namespace: "shop", Name: "desk"}, Reason: "Other"},
	}
	path := debug.ProxyPath + "?pod=shop%2Fcart-2"
	c := controllers{
		"a": {debug.MeshPath: page, path: map[string]any{"view": map[string]any{"from": "a"}}},
		"b": {debug.MeshPath: page, path: map[string]any{
			"view": map[string]any{"from": "b"}, "proxy": registry.Proxy{State: registry.Current},
			"policies": []mesh.ObjectRef{target}, "configuration": map[string]string{"x.yaml": "y"},
		}},
	}
	handler := dashboard.New(dashboard.Options{Ask: c.ask})
	var got dashboard.PodPage
	get(t, handler, "/api/pod?pod=shop/cart-2", &got)
	var reasons []string
	for _, p := range got.Problems {
		reasons = append(reasons, p.Reason)
	}
	if got.Controller != "b" || got.Proxy == nil || got.Configuration["x.yaml"] != "y" || strings.Join(reasons, " ") != "Invalid Late" {
		t.Errorf("got %+v", got)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/pod?pod=shop/nobody", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("an unknown pod: %d %s", w.Code, w.Body)
	}
}

func TestGuard(t *testing.T) {
	c := controllers{"a": {debug.MeshPath: shop()}}
	const key, host = "secret", "127.0.0.1:1234"
	handler := dashboard.New(dashboard.Options{Ask: c.ask, Key: key, Hosts: []string{host}})
	send := func(method, path string, change func(*http.Request)) *http.Response {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.Host = host
		if change != nil {
			change(r)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Result()
	}
	opened := send(http.MethodGet, "/?key="+key, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") })
	if opened.StatusCode != http.StatusSeeOther || opened.Header.Get("Location") != "/" || len(opened.Cookies()) != 1 {
		t.Fatalf("the key opens nothing: %v", opened)
	}
	cookie := opened.Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode {
		t.Errorf("other sites can use the cookie %v", cookie)
	}
	known := func(r *http.Request) { r.AddCookie(cookie) }
	for what, tt := range map[string]struct {
		method, path string
		change       func(*http.Request)
		want         int
	}{
		"the page":              {http.MethodGet, "/", known, http.StatusOK},
		"the data":              {http.MethodGet, "/api/mesh", known, http.StatusOK},
		"no key":                {http.MethodGet, "/api/mesh", nil, http.StatusUnauthorized},
		"no key for the page":   {http.MethodGet, "/", nil, http.StatusUnauthorized},
		"a wrong key":           {http.MethodGet, "/?key=wrong", nil, http.StatusUnauthorized},
		"a wrong cookie":        {http.MethodGet, "/api/mesh", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie.Name, Value: "wrong"}) }, http.StatusUnauthorized},
		"another site's script": {http.MethodGet, "/api/mesh", func(r *http.Request) { known(r); r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"another port's script": {http.MethodGet, "/api/mesh", func(r *http.Request) { known(r); r.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusForbidden},
		"another host's name":   {http.MethodGet, "/api/mesh", func(r *http.Request) { known(r); r.Host = "evil.example" }, http.StatusMisdirectedRequest},
		"a request that writes": {http.MethodPost, "/api/mesh", known, http.StatusMethodNotAllowed},
		"no file":               {http.MethodGet, "/assets/", known, http.StatusNotFound},
		"a file of the program": {http.MethodGet, "/assets/../dashboard.go", known, http.StatusTemporaryRedirect},
	} {
		response := send(tt.method, tt.path, tt.change)
		if response.StatusCode != tt.want {
			t.Errorf("%s: %s, want %d", what, response.Status, tt.want)
		}
		csp := response.Header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || response.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has the headers %v", what, response.Header)
		}
	}
}

// TestBundle limits what a browser loads, and requires that it loads nothing from elsewhere.
func TestBundle(t *testing.T) {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	err := fs.WalkDir(os.DirFS("web/dist"), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := os.ReadFile("web/dist/" + path)
		if err == nil {
			_, err = w.Write(file)
		}
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if compressed.Len() > 500_000 {
		t.Errorf("the page has %d bytes compressed, want at most 500000", compressed.Len())
	}
	handler := dashboard.New(dashboard.Options{Ask: controllers{}.ask})
	page := httptest.NewRecorder()
	handler.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/", nil))
	text := page.Body.String()
	if strings.Contains(text, "http://") || strings.Contains(text, "https://") || strings.Contains(text, "<script>") || strings.Contains(text, "<style") {
		t.Errorf("the page loads something from elsewhere or contains code:\n%s", text)
	}
	for part := range strings.SplitSeq(text, `"./`) {
		path, _, found := strings.Cut(part, `"`)
		if !found || !strings.HasPrefix(path, "assets/") {
			continue
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+path, nil))
		if body, err := io.ReadAll(w.Body); w.Code != http.StatusOK || err != nil || len(body) == 0 {
			t.Errorf("%s: status %d", path, w.Code)
		}
	}
}
