package offline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// realEngine returns an injector with the standard drivers and the namespaces of the
// manifests; like offline injection it also accepts any other namespace.
func realEngine(t testing.TB, manifests *offline.Manifests) *inject.Injector {
	t.Helper()
	config, err := inject.NewConfig("", "")
	if err != nil {
		t.Fatal(err)
	}
	mesh := source.NewConfig(nil, source.ConfigOptions{
		Classes: sidecar.Drivers(), BuiltinImage: sidecar.Image, Env: func(string) string { return "" }, InitImage: "outrigger/init:test",
	})
	return inject.New(inject.Options{
		MeshName: "osm", MeshNamespace: "osm-system", Revision: "default",
		Namespace:      offline.NamespaceLookup(manifests.Namespaces(), "osm"),
		Configurator:   func() driver.Configurator { return mesh },
		NativeSidecars: func(context.Context) (bool, error) { return true, nil },
		Log:            slog.New(slog.DiscardHandler),
	}, config)
}

// TestRealRoundTrip injects and uninjects the golden cases with the real engine.
func TestRealRoundTrip(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range cases {
		if filepath.Base(name) == "refused.txtar" {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var sources []offline.Source
			for _, f := range archive.Files {
				if in, ok := strings.CutPrefix(f.Name, "in/"); ok {
					sources = append(sources, offline.Source{Name: in, Data: f.Data})
				}
			}
			engine := realEngine(t, offline.Parse(sources))
			// A template without metadata is restored with empty metadata, which is
			// equal for Kubernetes but not as text.
			sameBytes := strings.Contains(string(archive.Comment), "byte for byte") && !bytes.Contains(archive.Files[0].Data, []byte("  template:\n    spec:"))
			checkRoundTrip(t, engine, inject.Uninject, sources, sameBytes)
		})
	}
}

// TestSameAsWebhook checks for each object that offline injection and the webhook return
// the same pod.
func TestSameAsWebhook(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/kinds.txtar")
	if err != nil {
		t.Fatal(err)
	}
	text := archive.Files[0].Data
	manifests := offline.Parse([]offline.Source{{Name: "kinds.yaml", Data: text}})
	engine := realEngine(t, manifests)
	result := must(t)(manifests.Inject(t.Context(), engine, offline.Options{Namespace: "shop"}))
	before, after := meaning(t, text), meaning(t, result.Outputs[0].Data)
	for i, row := range result.Rows {
		t.Run(row.Kind, func(t *testing.T) {
			created := template(t, before[i])
			if row.Kind != "Pod" {
				// Offline, the end of a generated name is not known.
				created = owned(t, created, row.Kind, strings.TrimSuffix(row.Name, "-*"))
			}
			pod, err := json.Marshal(created)
			if err != nil {
				t.Fatal(err)
			}
			r := engine.Inject(t.Context(), inject.Request{Namespace: row.Namespace, Pod: pod})
			if len(r.Patch) > 0 {
				encoded, err := json.Marshal(r.Patch)
				if err != nil {
					t.Fatal(err)
				}
				patch, err := jsonpatch.DecodePatch(encoded)
				if err != nil {
					t.Fatal(err)
				}
				if pod, err = patch.Apply(pod); err != nil {
					t.Fatal(err)
				}
			}
			var want map[string]any
			if err := yaml.Unmarshal(pod, &want); err != nil {
				t.Fatal(err)
			}
			if metadata, ok := want["metadata"].(map[string]any); ok {
				delete(metadata, "ownerReferences")
			}
			if diff := cmp.Diff(want, template(t, after[i])); diff != "" {
				t.Errorf("(-webhook +offline):\n%s", diff)
			}
			if (row.Outcome == offline.Injected) != (r.Decision.Outcome == inject.Inject) {
				t.Errorf("offline %s, webhook %s", row.Outcome, r.Decision.Outcome)
			}
		})
	}
}

// owned returns a pod as a controller creates it from a template.
func owned(t *testing.T, template map[string]any, kind, name string) map[string]any {
	t.Helper()
	pod := maps.Clone(template)
	metadata, _ := pod["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = make(map[string]any)
	}
	metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": true}}
	pod["metadata"] = metadata
	return pod
}

// template returns an object's pod template, or the object if it has none.
func template(t *testing.T, object any) map[string]any {
	t.Helper()
	v, ok := object.(map[string]any)
	if !ok {
		t.Fatalf("no object: %v", object)
	}
	if inner, ok := v["template"]; ok {
		return template(t, inner)
	}
	spec, _ := v["spec"].(map[string]any)
	for _, name := range []string{"template", "jobTemplate"} {
		if inner, ok := spec[name]; ok {
			return template(t, inner)
		}
	}
	return v
}

func TestReal(t *testing.T) {
	const text = `apiVersion: v1
kind: Namespace
metadata:
  name: quiet
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: quiet}
spec: &spec
  template:
    spec:
      containers:
      - name: cart
        image: cart
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  template:
    metadata: {creationTimestamp: null}
    spec:
      # the app
      containers:
      - name: cart
        image: cart # pinned
        readinessProbe:
          httpGet: {path: /, port: http}
        ports:
        - {name: http, containerPort: 80}
`
	sources := []offline.Source{{Name: "in.yaml", Data: []byte(text)}}
	manifests := offline.Parse(sources)
	result := must(t)(manifests.Inject(t.Context(), realEngine(t, manifests), offline.Options{}))
	var report strings.Builder
	if err := result.WriteText(&report); err != nil {
		t.Fatal(err)
	}
	want := `Deployment/quiet/cart: skipped: namespace_not_monitored: namespace quiet has no label openservicemesh.io/monitored-by=osm
Deployment/shop/cart: injected (outrigger-init, outrigger-proxy)
2 objects: 1 injected, 1 skipped
`
	if diff := cmp.Diff(want, report.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	out := string(result.Outputs[0].Data)
	if os.Getenv("SHOW") != "" {
		t.Log(out)
	}
	for _, keeps := range []string{"# the app\n", "image: cart # pinned\n", "- {name: http, containerPort: 80}\n"} {
		if !strings.Contains(out, keeps) {
			t.Errorf("%q is gone from\n%s", keeps, out)
		}
	}
}

// TestNamesLikeNumbers injects objects whose names YAML would read as numbers, booleans or null.
func TestNamesLikeNumbers(t *testing.T) {
	for _, name := range []string{"1234", "true", "null", "1e3", "on", "1.0", "y", "0x1", "1_000", "08"} {
		text := fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: %[1]q, namespace: %[1]q}\nspec:\n  template:\n    metadata:\n      labels: {app: %[1]q}\n"+
			"    spec:\n      serviceAccountName: %[1]q\n      containers:\n      - name: app\n        image: app\n", name)
		sources := []offline.Source{{Name: "in.yaml", Data: []byte(text)}}
		result := must(t)(offline.InjectFiles(t.Context(), realEngine(t, offline.Parse(sources)), sources, offline.Options{}))
		var d appsv1.Deployment
		if err := yaml.UnmarshalStrict(result.Outputs[0].Data, &d); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, result.Outputs[0].Data)
		}
		pod := &d.Spec.Template
		var workload string
		for _, c := range pod.Spec.InitContainers {
			for _, e := range c.Env {
				if e.Name == "OUTRIGGER_WORKLOAD" {
					workload = e.Value
				}
			}
		}
		if d.Name != name || d.Namespace != name || pod.Labels["app"] != name || pod.Spec.ServiceAccountName != name || workload != name {
			t.Errorf("%s: the names are %q", name, []string{d.Name, d.Namespace, pod.Labels["app"], pod.Spec.ServiceAccountName, workload})
		}
		back := must(t)(offline.UninjectFiles(t.Context(), inject.Uninject, sourcesOf(result)))
		if string(back.Outputs[0].Data) != text {
			t.Errorf("%s comes back as %s", name, back.Outputs[0].Data)
		}
	}
}
