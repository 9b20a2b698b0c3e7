package convert_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/convert"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
)

// randomBase has the services of the random meshes: m has two ports, m-80 the name that the route
// of one of them would have, t is for connections, and named has an HTTP port only.
const randomBase = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: a, labels: {openservicemesh.io/monitored-by: osm}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: a}
spec: {containers: [{name: app, image: a}]}
`

var randomServices = map[string]string{
	"s": "[{name: http, port: 80}]", "m": "[{name: http, port: 80}, {name: http-b, port: 81}]", "m-80": "[{name: http, port: 80}]",
	"t": "[{name: tcp-x, port: 90}]", "v1": "[{name: http, port: 80}, {name: tcp-x, port: 90}]", "v2": "[{name: http, port: 80}, {name: tcp-x, port: 91}]",
	"v3": "[{name: http-b, port: 8080}]", "named": "[{name: http, port: 80}]", "db": "[{name: tcp-db, port: 5432}]",
}

var randomPaths = []string{
	"/a", "/a/b", "/a//b", "/a%2Fb", "/a/../b", "/a b", "/a/.*", "/[ab]", "/.*", ".*", "/a\\.html", "/" + strings.Repeat("x", 1100),
}

// randomMesh is a generated mesh, whose objects are JSON.
type randomMesh struct {
	objects []string
	splits  map[string]string // root by the object's text
}

func (m *randomMesh) add(version, kind, name string, spec any) string {
	text, err := json.Marshal(map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name, "namespace": "a"}, "spec": spec})
	if err != nil {
		panic(err)
	}
	m.objects = append(m.objects, string(text))
	return string(text)
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// newRandomMesh returns a mesh with up to three groups, up to four splits, and at times routes,
// timeouts and policies at the limits of the CRDs.
func newRandomMesh(r *rand.Rand) *randomMesh {
	m := &randomMesh{splits: make(map[string]string)}
	groups := []string{"missing"}
	for g := range r.IntN(4) {
		var matches []any
		count := 1 + r.IntN(2)
		if r.IntN(10) == 0 {
			count = 20
		}
		for i := range count {
			match := map[string]any{"name": fmt.Sprint("m", i)}
			if r.IntN(4) > 0 {
				path := pick(r, randomPaths...)
				if count > 2 {
					path = fmt.Sprint("/p", i)
				}
				match["pathRegex"] = path
			}
			if r.IntN(3) == 0 {
				match["methods"] = pick(r, []string{"GET"}, []string{"*"}, []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
			}
			if r.IntN(3) == 0 {
				match["headers"] = pick(r, []map[string]string{{"x-user": "a"}}, []map[string]string{{"x-user": "a.*"}, {"x-user": ".*b"}}, []map[string]string{{"x-user": "a"}}, []map[string]string{{"host": "s.a"}}, []map[string]string{{"x-user": ".*"}})
			}
			matches = append(matches, match)
		}
		name := fmt.Sprint("g", g)
		m.add("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", name, map[string]any{"matches": matches})
		groups = append(groups, name)
	}
	count := 1 + r.IntN(4)
	if r.IntN(20) == 0 {
		count = 18
	}
	for i := range count {
		root := pick(r, "s", "s", "s", "m", "m-80", "t")
		var backends []any
		for range 1 + r.IntN(3) {
			weight := pick(r, 0, 1, 1, 2, 99, 1_000_000, 2_000_000, 1_999_999)
			backends = append(backends, map[string]any{"service": pick(r, "v1", "v2", "v3", "named", root, "db", "gone"), "weight": weight})
		}
		spec := map[string]any{"service": root, "backends": backends}
		if r.IntN(3) > 0 || count > 4 {
			spec["matches"] = []any{map[string]any{"kind": "HTTPRouteGroup", "name": pick(r, groups...)}}
		}
		m.splits[m.add("split.smi-spec.io/v1alpha4", "TrafficSplit", fmt.Sprintf("x%02d", i), spec)] = root
	}
	if r.IntN(4) == 0 {
		m.add("policy.openservicemesh.io/v1alpha1", "UpstreamTrafficSetting", "u", map[string]any{"host": "s.a.svc.cluster.local", "timeouts": map[string]any{"request": pick(r, "3s", "90500ms", "200000h")}})
	}
	if r.IntN(4) == 0 {
		parent := pick(r, "s", "m")
		m.add("gateway.networking.k8s.io/v1", "HTTPRoute", pick(r, "s", "other"), map[string]any{
			"parentRefs": []any{map[string]any{"group": "", "kind": "Service", "name": parent}},
			"rules":      []any{map[string]any{"matches": []any{map[string]any{"path": map[string]any{"value": "/a"}}}, "backendRefs": []any{map[string]any{"name": "v1", "port": 80}}}},
		})
	}
	return m
}

// question is one about the mesh, and root its service.
type question struct {
	root, to, method, path string
	headers                []string
}

func randomQuestions(r *rand.Rand) []question {
	var all []question
	for range 12 {
		q := question{root: pick(r, "s", "s", "s", "m", "m-80", "t"), method: pick(r, "GET", "GET", "POST", "CONNECT"), path: pick(r, "/", "/a", "/a/b", "/a//b", "/a/../b", "/b", "/a.html", "/p3", "/p19", "/"+strings.Repeat("x", 1100))}
		q.to = "a/" + q.root + ":80"
		switch q.root {
		case "m":
			q.to = "a/m:" + pick(r, "80", "81")
		case "t":
			q = question{root: "t", to: "a/t:90"}
		}
		if q.method != "" && r.IntN(3) == 0 {
			q.headers = []string{pick(r, "x-user=a", "x-user=ab", "x-user=")}
		}
		all = append(all, q)
	}
	return all
}

// answer returns what 'outrigger explain' says about a question, without the names of routes.
func answer(t *testing.T, s *fact.Snapshot, facts []fact.Fact, q question) string {
	t.Helper()
	asked, err := explain.NewQuestion("a/client", q.to, q.method, q.path, q.headers)
	if err != nil {
		t.Fatal(err)
	}
	e, err := explain.Explain(s, facts, source.Policies(), asked)
	if err != nil {
		t.Fatal(err)
	}
	text := string(e.Verdict)
	for _, step := range e.Steps {
		switch {
		case step.Topic != "route":
			text += "\n" + step.Topic + " " + step.Text
		case step.Verdict != "":
			text += "\nroute " + string(step.Verdict) + " " + step.Reason
		}
	}
	return text
}

// loadFacts is as facts, but the objects may have Problems.
func loadFacts(t *testing.T, objects []string) []fact.Fact {
	t.Helper()
	texts := []string{randomBase}
	for i, name := range slices.Sorted(maps.Keys(randomServices)) {
		texts = append(texts, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: a}\nspec: {clusterIP: 10.96.0.%d, ports: %s}\n", name, i+1, randomServices[name]))
	}
	return loadManifests(t, append(texts, objects...))
}

// loadManifests returns the facts of objects, which may have Problems.
func loadManifests(t *testing.T, texts []string) []fact.Fact {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(strings.Join(texts, "\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	read, _, err := dir.Load([]string{folder}, dir.Options{
		Mapper: source.MapperOptions{
			MeshName: "osm", SidecarClass: func(*corev1.Pod) string { return "envoy" },
			Resolver: source.NewResolver(source.ConfigOptions{
				Classes: []string{"envoy"}, BuiltinImage: func(string, string) string { return "" }, Env: func(string) string { return "" },
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// TestRandomMeshes converts random meshes and asks 'outrigger explain' before and after. An answer
// may only differ if a Note says so. OUTRIGGER_CONVERT_MESHES sets how many there are, and
// OUTRIGGER_CONVERT_SEED the first one.
func TestRandomMeshes(t *testing.T) {
	number := func(name string, otherwise int) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
		if err != nil {
			t.Fatal(name, err)
		}
		return n
	}
	meshes, seed := number("OUTRIGGER_CONVERT_MESHES", 60), number("OUTRIGGER_CONVERT_SEED", 1)
	asked, different, converted := 0, 0, 0
	for n := seed; n < seed+meshes && !t.Failed(); n++ {
		r := rand.New(rand.NewPCG(uint64(n), 0))
		m := newRandomMesh(r)
		before := loadFacts(t, m.objects)
		routes, notes := convert.Routes(before)
		var after []string
		for _, object := range m.objects {
			if root, ok := m.splits[object]; !ok || hasNote(notes, "of a/"+root+" gets no route") || !isParent(routes, root) {
				after = append(after, object)
			} else {
				converted++
			}
		}
		for _, route := range routes {
			text, err := json.Marshal(route.Object)
			if err != nil {
				t.Fatal(err)
			}
			after = append(after, string(text))
		}
		expectAccepted(t, routes, m.objects)
		facts := loadFacts(t, after)
		former, now := catalog.Build(before), catalog.Build(facts)
		for _, q := range randomQuestions(r) {
			asked++
			was, is := answer(t, former, before, q), answer(t, now, facts, q)
			isClosed := q.method == "" && strings.HasPrefix(was, string(explain.Unreachable)) && strings.HasPrefix(is, string(explain.Unreachable))
			if was == is || isClosed {
				continue
			}
			different++
			if !isNoted(notes, q.root, was, is) {
				t.Errorf("seed %d: %+v\nbefore: %s\nafter: %s\nnotes: %v\nobjects:\n%s", n, q, was, is, notes, strings.Join(m.objects, "\n"))
				break
			}
		}
	}
	t.Logf("%d questions, of which %d have another answer and a note; %d splits were replaced", asked, different, converted)
	if converted < meshes/2 {
		t.Errorf("only %d splits of %d meshes were converted", converted, meshes)
	}
}

func hasNote(notes []convert.Note, text string) bool {
	return slices.ContainsFunc(notes, func(n convert.Note) bool { return strings.Contains(n.Message, text) })
}

// isNoted reports whether a note is about the difference of two answers.
func isNoted(notes []convert.Note, root, was, is string) bool {
	if strings.Contains(was, "no_endpoint") && strings.Contains(is, "answered with 500") {
		return hasNote(notes, "answers such requests with 503")
	}
	return hasNote(notes, "check these requests") || hasNote(notes, "are rounded")
}

func isParent(routes []*unstructured.Unstructured, root string) bool {
	return slices.ContainsFunc(routes, func(r *unstructured.Unstructured) bool {
		parents, _, _ := unstructured.NestedSlice(r.Object, "spec", "parentRefs")
		return parents[0].(map[string]any)["name"] == root
	})
}

// The rules of the CRD of HTTPRoutes for a path that is compared exactly.
var (
	crdPath    = regexp.MustCompile(`^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$`)
	crdNotPath = []string{"//", "/./", "/../", "%2f", "%2F", "#"}
)

// expectAccepted fails the test unless the CRDs accept the routes, and none takes the place of
// another.
func expectAccepted(t *testing.T, routes []*unstructured.Unstructured, existing []string) {
	t.Helper()
	names := make(map[string]bool)
	for _, object := range existing {
		var o unstructured.Unstructured
		if err := json.Unmarshal([]byte(object), &o.Object); err != nil {
			t.Fatal(err)
		}
		names[o.GetKind()+"/"+o.GetName()] = true
	}
	for _, object := range routes {
		name := object.GetKind() + "/" + object.GetName()
		if names[name] {
			t.Errorf("%s is there twice", name)
		}
		names[name] = true
		text, _ := json.Marshal(object.Object)
		var route gateway.HTTPRoute
		if err := json.Unmarshal(text, &route); err != nil {
			t.Fatal(err)
		}
		all := 0
		if len(route.Spec.Rules) == 0 || len(route.Spec.Rules) > 16 {
			t.Errorf("%s has %d rules", name, len(route.Spec.Rules))
		}
		for _, rule := range route.Spec.Rules {
			all += max(len(rule.Matches), 1)
			if len(rule.Matches) > 64 || len(rule.BackendRefs) > 16 || object.GetKind() == "TCPRoute" && len(rule.BackendRefs) == 0 {
				t.Errorf("%s has a rule with %d matches and %d backends", name, len(rule.Matches), len(rule.BackendRefs))
			}
			for _, b := range rule.BackendRefs {
				if *b.Weight < 0 || *b.Weight > 1_000_000 {
					t.Errorf("%s has the weight %d", name, *b.Weight)
				}
			}
			for _, m := range rule.Matches {
				if p := m.Path; p != nil && (len(*p.Value) > 1024 || *p.Type == gateway.PathMatchExact && (!strings.HasPrefix(*p.Value, "/") || !crdPath.MatchString(*p.Value) ||
					slices.ContainsFunc(crdNotPath, func(no string) bool { return strings.Contains(*p.Value, no) }) || strings.HasSuffix(*p.Value, "/.") || strings.HasSuffix(*p.Value, "/.."))) {
					t.Errorf("%s has the path %s", name, *p.Value)
				}
				headers := make(map[string]bool)
				for _, h := range m.Headers {
					if headers[string(h.Name)] || h.Value == "" || len(h.Value) > 4096 {
						t.Errorf("%s has the header match %v", name, h)
					}
					headers[string(h.Name)] = true
				}
			}
		}
		if all > 128 {
			t.Errorf("%s has %d matches", name, all)
		}
	}
}
