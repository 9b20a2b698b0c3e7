package convert_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/convert"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// cluster has the services and pods, and permissive mode.
const cluster = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {openservicemesh.io/monitored-by: osm}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {containers: [{name: app, image: a}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: tcp-db, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: v1, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 8080}, {name: tcp-db, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: v2, namespace: shop}
spec: {clusterIP: 10.96.0.3, ports: [{name: http, port: 80}, {name: tcp-db, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
`

// policies are what is converted.
const policies = `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: beta, namespace: shop}
spec:
  matches:
  - {name: path, pathRegex: "/beta/.*", methods: [GET, PUT]}
  - {name: user, headers: [{x-user: "tester-.*"}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: beta, namespace: shop}
spec: {service: cart, matches: [{kind: HTTPRouteGroup, name: beta}], backends: [{service: v2, weight: 1}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: cart, namespace: shop}
spec: {service: cart, backends: [{service: v1, weight: 9}, {service: v2, weight: 1}]}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: cart, namespace: shop}
spec: {host: cart.shop.svc.cluster.local, timeouts: {request: 90500ms}}
`

func facts(t *testing.T, manifests ...string) []fact.Fact {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(strings.Join(manifests, "\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	read, problems, err := dir.Load([]string{folder}, dir.Options{
		Mapper: source.MapperOptions{
			MeshName: "osm", SidecarClass: func(*corev1.Pod) string { return "envoy" },
			Resolver: source.NewResolver(source.ConfigOptions{
				Classes: []string{"envoy"}, BuiltinImage: func(string, string) string { return "" }, Env: func(string) string { return "" },
			}),
		},
	})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	return read
}

// destinations returns what the pod web calls, without the names of routes, and with routes
// in an order of their own.
func destinations(t *testing.T, facts []fact.Fact) map[string]mesh.Destination {
	t.Helper()
	s := catalog.Build(facts)
	out := map[string]mesh.Destination{}
	for _, view := range s.Views.All() {
		for name, d := range view.Outbound.Destinations.All() {
			one := mesh.Destination{Protocol: d.Protocol, Backends: d.Backends}
			for _, route := range d.Routes {
				route.Origin, route.Rule = mesh.Origin{}, ""
				if route.Retry != nil {
					retry := *route.Retry
					retry.Origin, route.Retry = mesh.Origin{}, &retry
				}
				for _, method := range append(route.Match.Methods, "")[:max(len(route.Match.Methods), 1)] {
					each := route
					if each.Match.Methods = nil; method != "" {
						each.Match.Methods = []string{method}
					}
					one.Routes = append(one.Routes, each)
				}
			}
			slices.SortStableFunc(one.Routes, func(a, b mesh.Route) int {
				return strings.Compare(mesh.DigestOf(a.Match).String(), mesh.DigestOf(b.Match).String())
			})
			out[name] = one
		}
	}
	if len(out) == 0 {
		t.Fatal("there are no destinations")
	}
	return out
}

// TestRoutesDoTheSame holds that the routes, without the splits, send requests and
// connections where the splits do.
func TestRoutesDoTheSame(t *testing.T) {
	before := facts(t, cluster, policies)
	routes, notes := convert.Routes(before)
	for _, note := range notes {
		if note.Object.Kind == "TrafficSplit" && !strings.Contains(note.Message, "most specific") {
			t.Error(note)
		}
	}
	after := []string{cluster}
	for _, route := range routes {
		text, err := yaml.Marshal(route.Object)
		if err != nil {
			t.Fatal(err)
		}
		after = append(after, string(text))
	}
	read := facts(t, after...)
	if diff := cmp.Diff(destinations(t, before), destinations(t, read), cmp.AllowUnexported(mesh.Sealed{})); diff != "" {
		t.Errorf("with splits and with routes (-splits +routes):\n%s", diff)
	}
	if problems := catalog.Build(read).Problems; problems.Len() > 0 {
		for _, p := range problems.All() {
			t.Error(p.List)
		}
	}
}

// TestNotes checks the notes about objects without an equivalent route.
func TestNotes(t *testing.T) {
	_, notes := convert.Routes(facts(t, cluster, `
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: a, namespace: shop}
spec: {service: gone, backends: [{service: v1, weight: 1}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: b, namespace: shop}
spec: {service: cart, matches: [{kind: HTTPRouteGroup, name: gone}, {kind: HTTPRouteGroup, name: hosts}], backends: [{service: gone, weight: 1}, {service: headless, weight: 1}, {service: v1, weight: 1}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: hosts, namespace: shop}
spec: {matches: [{name: one, headers: [{host: "a.b"}]}, {name: two, headers: [{x-user: "a.*"}, {x-user: ".*b"}]}]}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: d, namespace: shop}
spec: {source: {kind: ServiceAccount, name: a, namespace: shop}, destinations: [{kind: Service, name: cart, namespace: shop}], retryPolicy: {retryOn: 5xx}}
`))
	var got []string
	for _, note := range notes {
		got = append(got, note.Object.String()+" "+note.Field)
	}
	want := []string{
		"TrafficSplit shop/a spec.service", "TrafficSplit shop/b spec.matches[0]", "TrafficSplit shop/b spec.backends[0].service",
		"TrafficSplit shop/b spec.backends[1].service", "Retry shop/d ", "HTTPRouteGroup shop/hosts ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notes (-want +got):\n%s\n%v", diff, notes)
	}
}
