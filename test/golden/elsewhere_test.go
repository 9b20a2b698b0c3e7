package golden_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/manifest"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// routed is a mesh with the kinds of Gateway API.
const routed = `
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: {app: cart},
  ports: [{name: http, port: 80}, {name: grpc, port: 81}, {name: tcp-db, port: 82}, {name: tcp-tls, port: 83}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop, labels: {app: cart}}, spec: {serviceAccountName: cart, containers: [{name: app}]}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Service, metadata: {name: depot, namespace: back}, spec: {clusterIP: 10.96.0.2, selector: {app: depot}, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: depot, namespace: back, labels: {app: depot}}, spec: {serviceAccountName: depot, containers: [{name: app}]}, status: {podIP: 10.0.0.2}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: web, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: cart, port: 80}],
  rules: [{matches: [{path: {value: /depot}}], backendRefs: [{name: depot, namespace: back, port: 80}]}, {backendRefs: [{name: cart, port: 80}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: web, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: cart, port: 81}],
  rules: [{matches: [{method: {service: a.B}}], backendRefs: [{name: cart, port: 81}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1alpha2, kind: TCPRoute, metadata: {name: web, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: cart, port: 82}],
  rules: [{backendRefs: [{name: cart, port: 82}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1alpha3, kind: TLSRoute, metadata: {name: web, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: cart, port: 83}],
  hostnames: [cart.example], rules: [{backendRefs: [{name: cart, port: 83}]}]}}
---
{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: web, namespace: back},
  spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: "", kind: Service, name: depot}]}}
`

// anywhere are the kinds whose objects say themselves which callers or namespaces they are for.
var anywhere = []string{"GatewayClass", "Egress", "Retry", "ClusterAccessPolicy"}

// twinOf is the namespace that has the same objects as another one.
func twinOf(namespace string) string { return "twin-of-" + namespace }

type manifestObject = map[string]any

// objectsOf reads the objects of manifests.
func objectsOf(t *testing.T, text []byte) []manifestObject {
	t.Helper()
	var objects []manifestObject
	for _, document := range manifest.Split(text) {
		var o manifestObject
		if err := yaml.Unmarshal(document.Text, &o); err != nil {
			t.Fatal(err)
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
	return objects
}

// moved returns a copy of an object in the other namespace, which refers to what it referred to.
func moved(o manifestObject) manifestObject {
	o = maps.Clone(o)
	metadata := maps.Clone(o["metadata"].(manifestObject))
	metadata["namespace"] = twinOf(metadata["namespace"].(string))
	o["metadata"] = metadata
	return o
}

// twin returns a copy of a value of an object in which everything is in the other namespaces, the
// hosts and addresses too.
func twin(value any, namespaces []string) any {
	switch value := value.(type) {
	case manifestObject:
		copied := manifestObject{}
		for key, field := range value {
			copied[key] = twin(field, namespaces)
			if text, ok := field.(string); ok && key == "namespace" {
				copied[key] = twinOf(text)
			}
		}
		return copied
	case []any:
		var copied []any
		for _, element := range value {
			copied = append(copied, twin(element, namespaces))
		}
		return copied
	case string:
		for _, namespace := range namespaces {
			value = strings.ReplaceAll(value, "."+namespace+".", "."+twinOf(namespace)+".")
		}
		return strings.NewReplacer("10.0.0.", "10.9.0.", "10.96.0.", "10.97.0.").Replace(value)
	}
	return value
}

// textOf is the text of what the View says about its own namespace: not about the twins that it may
// call.
func textOf(t *testing.T, view *mesh.View) string {
	t.Helper()
	own := func(name string) bool { return !strings.Contains(name, twinOf("")) }
	parts := []any{view.Proxy, view.Settings, view.Inbound, view.Egress}
	for name, d := range view.Outbound.Destinations.All() {
		if own(name) {
			parts = append(parts, d)
		}
	}
	for name, b := range view.Outbound.Backends.All() {
		if own(name) {
			parts = append(parts, b)
		}
	}
	text, err := json.MarshalIndent(parts, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSameNamesElsewhere adds the objects of each golden case again in other namespaces, under the
// same names: first the policies, which still refer to the first namespaces, then everything.
// Neither changes anything for the first ones.
func TestSameNamesElsewhere(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]byte{"routes": []byte(routed)}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cases[strings.TrimSuffix(filepath.Base(file), ".txtar")] = archive.Files[0].Data
	}
	seen := map[string]bool{}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, text)
			var namespaces []string
			for _, o := range objects {
				if namespace, ok := o["metadata"].(manifestObject)["namespace"].(string); ok {
					namespaces = append(namespaces, namespace)
				}
			}
			var policies, all []manifestObject
			for _, o := range objects {
				version, kind := o["apiVersion"].(string), o["kind"].(string)
				full := mesh.ObjectRef{APIVersion: version, Kind: kind}.FullKind()
				if slices.Contains(source.Policies(), full) {
					seen[full] = true
					if !slices.Contains(anywhere, kind) {
						policies = append(policies, moved(o))
					}
				}
				if kind != "MeshConfig" && kind != "Namespace" && kind != "ClusterAccessPolicy" && kind != "GatewayClass" {
					all = append(all, twin(o, namespaces).(manifestObject))
				}
			}
			want := snapshotWith(t, objects)
			for what, more := range map[string][]manifestObject{"the policies": policies, "everything": all} {
				got := snapshotWith(t, append(slices.Clone(objects), more...))
				for uid, view := range want.Views.All() {
					now, ok := got.Views.Get(uid)
					if !ok {
						t.Fatalf("with %s: %s has no View", what, view.Proxy.Name)
					}
					if diff := gocmp.Diff(textOf(t, view), textOf(t, now)); diff != "" {
						t.Errorf("with %s in other namespaces the View of %s changes (-before +after):\n%s", what, view.Proxy.Name, diff)
					}
				}
			}
		})
	}
	for _, kind := range source.Policies() {
		if !seen[kind] {
			t.Errorf("no case has a %s", kind)
		}
	}
}

// snapshotWith builds the mesh of the objects.
func snapshotWith(t *testing.T, objects []manifestObject) *fact.Snapshot {
	t.Helper()
	var text strings.Builder
	for _, o := range objects {
		document, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n" + string(document))
	}
	snapshot, _ := load(t, strings.NewReader(text.String()))
	return snapshot
}
