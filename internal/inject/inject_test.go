package inject_test

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// configurator is a fixed configuration.
type configurator struct {
	mesh         v1alpha2.MeshConfig
	class        string
	images       map[string]string
	disabledMTLS bool
	life         time.Duration
}

func (c *configurator) GetMeshConfig() *v1alpha2.MeshConfig { return &c.mesh }
func (c *configurator) GetSidecarClass() string             { return c.class }
func (c *configurator) GetSidecarImage(class string) string {
	if image, ok := c.images[class]; ok {
		return image
	}
	return sidecar.Image(class, "linux")
}
func (c *configurator) GetSidecarWindowsImage(class string) string { return c.images[class+"/windows"] }
func (c *configurator) GetInitContainerImage(string) string        { return "outrigger/init:test" }
func (c *configurator) GetProxyServerPort(string) uint32           { return 0 }
func (c *configurator) IsMTLSDisabled(string) bool                 { return c.disabledMTLS }
func (c *configurator) IsPrivilegedInitContainer() bool {
	return c.mesh.Spec.Sidecar.EnablePrivilegedInitContainer
}
func (c *configurator) GetSidecarLogLevel() string             { return "error" }
func (c *configurator) GetMaxDataPlaneConnections() int        { return 0 }
func (c *configurator) GetConfigResyncInterval() time.Duration { return 0 }
func (c *configurator) GetServiceCertValidityPeriod() time.Duration {
	return cmp.Or(c.life, 24*time.Hour)
}
func (c *configurator) IsDebugServerEnabled() bool { return false }
func (c *configurator) GetTrustDomain() string     { return "cluster.local" }

// environment is what surrounds an injector under test.
type environment struct {
	config       string
	values       string
	revision     string
	classic      bool
	namespace    inject.Namespace
	configurator *configurator
}

// ordinary is a monitored namespace with injection enabled.
func ordinary() *environment {
	return &environment{
		namespace: inject.Namespace{
			Name:        "shop",
			Labels:      map[string]string{metadata.MonitoredBy: "osm"},
			Annotations: map[string]string{metadata.Injection: "enabled"},
		},
		configurator: &configurator{class: "envoy"},
	}
}

func (w *environment) options() inject.Options {
	revision := w.revision
	if revision == "" {
		revision = "default"
	}
	return inject.Options{
		MeshName: "osm", MeshNamespace: "osm-system", Revision: revision,
		Namespace:      func(context.Context, string) (*inject.Namespace, error) { return &w.namespace, nil },
		Configurator:   func() driver.Configurator { return w.configurator },
		NativeSidecars: func(context.Context) (bool, error) { return !w.classic, nil },
		Log:            slog.New(slog.DiscardHandler),
	}
}

func (w *environment) injector(t testing.TB) *inject.Injector {
	t.Helper()
	config, err := inject.NewConfig(w.config, w.values)
	if err != nil {
		t.Fatal(err)
	}
	return inject.New(w.options(), config)
}

// uid is an admission review's.
const uid = "6fd4b4ad-7a5c-4f4c-a2b4-6a1c8f5c1b11"

func (w *environment) request(pod string) inject.Request {
	return inject.Request{UID: uid, Namespace: w.namespace.Name, Pod: []byte(pod), KeepForeign: true}
}

// patched applies the result's patch as the API server does.
func patched(t testing.TB, pod []byte, ops []inject.Operation) []byte {
	t.Helper()
	if len(ops) == 0 {
		return pod
	}
	encoded, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(encoded)
	if err != nil {
		t.Fatalf("the patch is none: %v\n%s", err, encoded)
	}
	out, err := patch.Apply(pod)
	if err != nil {
		t.Fatalf("the patch does not apply: %v\n%s", err, encoded)
	}
	return out
}

const smallPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"cart-7d9f-","labels":{"app":"cart"},"annotations":{"note":"mine"}},
"spec":{"serviceAccountName":"cart","containers":[{"name":"cart","image":"shop/cart:1","ports":[{"name":"http","containerPort":8080}],
"env":[{"name":"MODE","value":"fast"}],"readinessProbe":{"httpGet":{"path":"/ready","port":"http"}},"livenessProbe":{"tcpSocket":{"port":8080}},
"resources":{"requests":{"cpu":"100m","memory":"64Mi"}}}],"volumes":[{"name":"data","emptyDir":{}}]}}`

func TestInjectSmallPod(t *testing.T) {
	for _, class := range sidecar.Drivers() {
		t.Run(class, func(t *testing.T) {
			w := ordinary()
			w.configurator.class = class
			i := w.injector(t)
			r := i.Inject(t.Context(), w.request(smallPod))
			if r.Decision.Outcome != inject.Inject {
				t.Fatalf("decision is %+v", r.Decision)
			}
			once := patched(t, []byte(smallPod), r.Patch)
			again := i.Inject(t.Context(), w.request(string(once)))
			if len(again.Patch) != 0 {
				t.Errorf("a second injection changes the pod: %+v", again.Patch)
			}
			back, err := inject.Uninject(once)
			if err != nil {
				t.Fatal(err)
			}
			if !jsonpatch.Equal(patched(t, once, back), []byte(smallPod)) {
				t.Errorf("uninject gives %s, want %s", patched(t, once, back), smallPod)
			}
			var pretty any
			_ = json.Unmarshal(once, &pretty)
			s, _ := json.MarshalIndent(pretty, "", " ")
			t.Logf("%s", s)
		})
	}
}

// TestHooksAreNotForEverybody checks that clients which reach the agent's port but may not
// read the pod cannot trigger the app's hooks.
func TestHooksAreNotForEverybody(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"cart"},"spec":{"containers":[{"name":"cart","image":"shop/cart:1",
"lifecycle":{"preStop":{"httpGet":{"path":"/shutdown","port":8080}},"postStart":{"httpGet":{"path":"/begin","port":8080}}}}]}}`
	w := ordinary()
	i := w.injector(t)
	paths := func(r inject.Request) [2]string {
		injected := decode(t, patched(t, []byte(pod), i.Inject(t.Context(), r).Patch))
		hooks := container(injected, "cart").Lifecycle
		paths := [2]string{hooks.PostStart.HTTPGet.Path, hooks.PreStop.HTTPGet.Path}
		for _, path := range paths {
			if spec := variable(proxy(t, injected), "OUTRIGGER_AGENT"); !strings.Contains(spec, `"path":"`+path+`"`) {
				t.Errorf("the agent does not get the hook %s: %s", path, spec)
			}
		}
		return paths
	}
	request := w.request(pod)
	first := paths(request)
	for n, want := range [2]string{"/app-lifecycle/" + request.UID + "/cart/postStart", "/app-lifecycle/" + request.UID + "/cart/preStop"} {
		if first[n] != want {
			t.Errorf("the hook's path is %s, want %s", first[n], want)
		}
	}
	if paths(request) != first {
		t.Error("the same review has other paths")
	}
	request.UID = ""
	if offline := paths(request); offline[1] != "/app-lifecycle/cart/preStop" {
		t.Errorf("offline the hook's path is %s", offline[1])
	}
}

func BenchmarkInjectSmallPod(b *testing.B) {
	w := ordinary()
	i := w.injector(b)
	req := w.request(smallPod)
	b.ReportAllocs()
	for b.Loop() {
		if r := i.Inject(b.Context(), req); r.Decision.Outcome != inject.Inject {
			b.Fatal(r.Decision)
		}
	}
}
