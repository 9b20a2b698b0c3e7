package dir_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// statusAnnotation is the annotation of injected pods. In these tests its value is the class.
const statusAnnotation = "openservicemesh.io/sidecar-status"

func options() dir.Options {
	return dir.Options{Mapper: source.MapperOptions{
		MeshName: "osm",
		Resolver: source.NewResolver(source.ConfigOptions{
			Classes:      []string{"envoy", "pipy"},
			BuiltinImage: func(string, string) string { return "" },
			Env:          func(string) string { return "" },
		}),
		SidecarClass: func(pod *corev1.Pod) string { return pod.Annotations[statusAnnotation] },
	}}
}

// write creates a folder with files by name.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		writeFile(t, filepath.Join(folder, name), text)
	}
	return folder
}

// writeFile creates a file, or replaces it atomically.
func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(filepath.Dir(name), ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, name); err != nil {
		t.Fatal(err)
	}
}

// result is the result of a load.
type result struct {
	facts    []fact.Fact
	problems []string
}

// load reads a folder, and replaces the folder's name in Problems by DIR.
func load(t testing.TB, opts dir.Options, paths ...string) result {
	t.Helper()
	facts, problems, err := dir.Load(paths, opts)
	if err != nil {
		t.Fatal(err)
	}
	r := result{facts: facts}
	for _, p := range problems {
		text := p.String()
		for _, path := range paths {
			text = strings.ReplaceAll(text, path, "DIR")
		}
		r.problems = append(r.problems, text)
	}
	return r
}

func loadText(t testing.TB, opts dir.Options, text string) result {
	t.Helper()
	return load(t, opts, write(t, map[string]string{"all.yaml": text}))
}

// names returns the facts' objects of a kind.
func (r result) names(kind string) []string {
	var names []string
	for _, f := range r.facts {
		if f.Object.Kind == kind {
			names = append(names, strings.TrimPrefix(f.Object.Namespace+"/"+f.Object.Name, "/"))
		}
	}
	return names
}

// find returns the content of an object.
func find[T mesh.Digester](t testing.TB, r result, kind, namespace, name string) T {
	t.Helper()
	for _, f := range r.facts {
		if o := f.Object; o.Kind == kind && o.Namespace == namespace && o.Name == name {
			content, ok := f.Content.(T)
			if !ok {
				t.Fatalf("%s holds a %T", o, f.Content)
			}
			return content
		}
	}
	t.Fatalf("there is no %s %s/%s; there are: %s", kind, namespace, name, strings.Join(r.names(kind), ", "))
	panic("unreachable")
}

func (r result) wantProblems(t testing.TB, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// digests returns the digests of the facts, for comparisons.
func (r result) digests() map[string]mesh.Digest {
	all := make(map[string]mesh.Digest)
	for _, f := range r.facts {
		digest := mesh.DigestOf(f.Problems)
		if f.Content != nil {
			digest = mesh.JoinDigests(digest, f.Content.Digest())
		}
		all[f.Object.String()] = digest
	}
	return all
}

const shop = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: cart}}
  template:
    metadata: {labels: {app: cart}}
    spec:
      serviceAccountName: carts
      containers:
      - {name: cart, image: cart, ports: [{name: web, containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  selector: {app: cart}
  ports: [{name: http, port: 80, targetPort: web}]
`

func TestLoadFiles(t *testing.T) {
	service := func(name string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {ports: [{port: 80}]}\n", name)
	}
	json := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":"shop"},"spec":{"ports":[{"port":80}]}}`, name)
	}
	folder := write(t, map[string]string{
		"one.yaml":              "# nothing yet\n---\n---\n" + service("one") + "---\n" + service("two") + "...\n--- # a comment\n" + service("three"),
		"deep/er/list.yml":      "\ufeffapiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(service("four"), "\n", "\n  ") + "\n- {kind: List, apiVersion: v1, items: [" + json("five") + "]}\n",
		"row.json":              json("six") + "\n" + json("seven"),
		"typed.json":            `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"eight","namespace":"shop"}}]}`,
		"flow.yaml":             "{apiVersion: v1, kind: Service, metadata: {name: nine, namespace: shop}, }\n",
		"default.yaml":          "apiVersion: v1\nkind: Service\nmetadata: {name: ten}\n",
		"notes.txt":             service("not-read"),
		".hidden.yaml":          service("not-read"),
		"..2026/data.yaml":      service("not-read"),
		"unknown.yaml":          "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n---\napiVersion: apps/v1beta9\nkind: Widget\n---\nnull\n",
		"marker.yaml":           "--- {apiVersion: v1, kind: Service, metadata: {name: thirteen, namespace: shop}}\n--- # and another\n" + service("fourteen"),
		"mark.json":             "\ufeff" + json("fifteen") + json("sixteen"),
		"windows.yaml":          strings.ReplaceAll(service("eleven"), "\n", "\r\n"),
		"typed-empty.json":      `{"apiVersion":"v1","kind":"PodList","items":null}`,
		"separator-in-text.yml": "apiVersion: v1\nkind: Service\nmetadata:\n  name: twelve\n  namespace: shop\n  annotations:\n    text: |\n      a\n      --- b\n      c\n",
	})
	want := []string{
		"default/ten", "shop/eight", "shop/eleven", "shop/fifteen", "shop/five", "shop/four", "shop/fourteen", "shop/nine", "shop/one",
		"shop/seven", "shop/six", "shop/sixteen", "shop/thirteen", "shop/three", "shop/twelve", "shop/two",
	}
	r := load(t, options(), folder)
	same(t, "services of a folder", want, r.names("Service"))
	r.wantProblems(t)

	// A link to a folder is a folder. Files can be named one by one, and twice.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	same(t, "services of a link", want, load(t, options(), link).names("Service"))
	one := filepath.Join(folder, "one.yaml")
	r = load(t, options(), one, filepath.Join(folder, "notes.txt"), one)
	r.wantProblems(t)
	same(t, "services of files", []string{"shop/not-read", "shop/one", "shop/three", "shop/two"}, r.names("Service"))

	// Which of two objects counts does not depend on the order of the paths.
	files := write(t, map[string]string{"a.yaml": service("both"), "z.yaml": strings.Replace(service("both"), "80", "81", 1)})
	a, z := filepath.Join(files, "a.yaml"), filepath.Join(files, "z.yaml")
	same(t, "paths in another order", load(t, options(), a, z).digests(), load(t, options(), z, a).digests())

	opts := options()
	opts.Stdin = strings.NewReader(service("piped"))
	r = load(t, opts, "-", one)
	same(t, "services of standard input too", []string{"shop/one", "shop/piped", "shop/three", "shop/two"}, r.names("Service"))
}

func TestLoadFails(t *testing.T) {
	empty := t.TempDir()
	for _, tt := range []struct {
		path, want string
	}{
		{filepath.Join(empty, "nowhere"), "no such file"},
		{empty, "there is no .yaml, .yml or .json file in " + empty},
		{"-", "standard input (-) is not available"},
	} {
		if _, _, err := dir.Load([]string{tt.path}, options()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want it to hold %q", tt.path, err, tt.want)
		}
	}
}

func TestLoadProblems(t *testing.T) {
	const cart = "apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"broken YAML", cart + "---\nkind: [\n---\n" + strings.Replace(cart, "cart", "other", 1), []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml: in the document that begins on line 5: yaml: line 5: did not find expected node content"}},
		{"a key twice", cart + "---\nkind: Pod\nkind: Pod\n", []string{
			`File DIR/all.yaml: Unreadable: DIR/all.yaml: in the document that begins on line 5: yaml: unmarshal errors: line 6: key "kind" already set in map`}},
		{"a field of another type", cart + "---\napiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {ports: 80}\n", []string{
			"Service default/b: Unreadable: DIR/all.yaml:5: spec.ports must be a list, and is a number"}},
		{"a list where an object must be", cart + "---\n- a\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml:5: it is not a mapping"}},
		{"an item of a List", cart + "---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}, spec: []}\n- {}\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml:5, items[1]: it has no apiVersion or no kind",
			"Pod b/a: Unreadable: DIR/all.yaml:5, items[0]: spec must be a mapping, and is a list"}},
		{"a List without a list", cart + "---\n{apiVersion: v1, kind: List, items: {}}\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml:5: the items of a List are not a list"}},
		{"no name", cart + "---\napiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml:5: it has no metadata.name"}},
		{"a head of another type", cart + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: 1}\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml:5: name is 1, not a text; without quotes, YAML takes y, yes, no, on, off, true, 1234 and 1e3 for something else than a text, so put the value in quotes"}},
		{"an unknown version", cart + "---\napiVersion: access.smi-spec.io/v1alpha1\nkind: TrafficTarget\nmetadata: {name: a}\n", []string{
			`TrafficTarget default/a: Unreadable: DIR/all.yaml:5: version "v1alpha1" of kind TrafficTarget is not supported; use apiVersion: access.smi-spec.io/v1alpha3`}},
		{"an unknown kind of ours", cart + "---\napiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTargets\nmetadata: {name: a, namespace: shop}\n", []string{
			"TrafficTargets shop/a: UnknownKind: DIR/all.yaml:5: there is no kind TrafficTargets in access.smi-spec.io; correct its name, or remove the object, which has no effect"}},
		{"a split whose weights were quantities", cart + "---\napiVersion: split.smi-spec.io/v1alpha1\nkind: TrafficSplit\nmetadata: {name: a}\n", []string{
			`TrafficSplit default/a: Unreadable: DIR/all.yaml:5: version "v1alpha1" of kind TrafficSplit is not supported; use apiVersion: split.smi-spec.io/v1alpha4, and write the weights as whole numbers: in v1alpha1 they are quantities, where 500m is a half and 1 is 1000m`}},
		{"headers as a map", cart + "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\nmetadata: {name: a}\nspec: {matches: [{name: m, headers: {x-user: alice}}]}\n", []string{
			`HTTPRouteGroup default/a: Unreadable: DIR/all.yaml:5: the headers of a match must be a list of maps, not a map: write "headers: [{x-user: alice}, {x-version: v2}]", or each on a line that begins with "- "`}},
		{"metrics of SMI", cart + "---\napiVersion: metrics.smi-spec.io/v1alpha1\nkind: TrafficMetrics\nmetadata: {name: a}\n", []string{
			"TrafficMetrics a: UnknownKind: DIR/all.yaml:5: TrafficMetrics of metrics.smi-spec.io is not supported and has no effect; read the proxies' own metrics at port 15010, and remove it"}},
		{"a plugin of osm-edge", cart + "---\napiVersion: plugin.flomesh.io/v1alpha1\nkind: Plugin\nmetadata: {name: a}\n", []string{
			"Plugin a: UnknownKind: DIR/all.yaml:5: Plugin of plugin.flomesh.io is not supported and has no effect; sidecars don't support plugins; remove it"}},
		{"a kind of flomesh", cart + "---\napiVersion: flomesh.io/v1alpha1\nkind: MultiClusterService\nmetadata: {name: a}\n", []string{
			"MultiClusterService a: UnknownKind: DIR/all.yaml:5: MultiClusterService of flomesh.io is not supported and has no effect; remove it"}},
		{"another kind of Gateway API", cart + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\nmetadata: {name: a}\n", []string{
			"UDPRoute a: UnknownKind: DIR/all.yaml:5: UDPRoute of gateway.networking.k8s.io is not supported and has no effect; for traffic within the mesh, use the routes of Services (docs/gateway-api.md) and TrafficTarget; if it is for a gateway controller, move it to another folder"}},
		{"an unknown field of ours", cart + "---\napiVersion: split.smi-spec.io/v1alpha2\nkind: TrafficSplit\nmetadata: {name: a}\nspec: {service: cart, backend: []}\n", []string{
			`TrafficSplit default/a: Unreadable: DIR/all.yaml:5: strict decoding error: unknown field "spec.backend"; correct or remove it, until then the object is ignored`}},
		{"an unknown field of Kubernetes'", cart + "spec: {novelty: true}\n", nil},
		{"twice", cart + "---\n" + cart + "---\n" + strings.Replace(cart, "shop", "other", 1), []string{
			"Service shop/cart: Duplicate: DIR/all.yaml:5: ignored, because Service shop/cart in DIR/all.yaml:1 is used; remove one of the two"}},
		{"twice in two versions", cart + "---\napiVersion: split.smi-spec.io/v1alpha2\nkind: TrafficSplit\nmetadata: {name: a}\n---\napiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: {name: a}\n", []string{
			"TrafficSplit default/a: Duplicate: DIR/all.yaml:9: ignored, because TrafficSplit default/a in DIR/all.yaml:5 is used; remove one of the two"}},
		{"two MeshConfigs", cart + "---\napiVersion: config.openservicemesh.io/v1alpha1\nkind: MeshConfig\nmetadata: {name: a}\n---\napiVersion: config.openservicemesh.io/v1alpha2\nkind: MeshConfig\nmetadata: {name: b}\n", []string{
			"MeshConfig default/b: Duplicate: DIR/all.yaml:9: ignored, because MeshConfig default/a in DIR/all.yaml:5 is used; remove one of the two"}},
		{"not text", cart + "# \xff\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml: the file is not UTF-8 text; convert it"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := loadText(t, options(), tt.text)
			r.wantProblems(t, tt.want...)
			if !slices.Contains(r.names("Service"), "shop/cart") && tt.name != "not text" {
				t.Error("what is right is not read")
			}
		})
	}
}

func TestLoadBounds(t *testing.T) {
	folder := write(t, map[string]string{
		"large.yaml": shop + strings.Repeat("#", 32<<20),
		"bad.yaml":   strings.Repeat("---\n]\n", 200),
		"deep.json":  strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 20) + strings.Repeat("]}", 20),
		"alias.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n" + func() string {
			var b strings.Builder
			for c := 'b'; c < 'k'; c++ {
				fmt.Fprintf(&b, "%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
			}
			return b.String()
		}(),
	})
	r := load(t, options(), folder)
	if len(r.facts) > 0 {
		t.Errorf("facts %v", r.facts)
	}
	for _, want := range []string{
		"large.yaml: the file exceeds 32 MiB; split it",
		"bad.yaml:202: the rest of the file is ignored, because there are too many errors before it",
		"more than 10 Lists are nested",
		"excessive aliasing",
	} {
		if !slices.ContainsFunc(r.problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("no problem holds %q", want)
		}
	}
	if len(r.problems) > 110 {
		t.Errorf("%d problems", len(r.problems))
	}
}

func TestNamespaces(t *testing.T) {
	r := loadText(t, options(), shop+`---
apiVersion: v1
kind: Namespace
metadata: {name: outside}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: outside}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: a, namespace: policies}
---
apiVersion: config.openservicemesh.io/v1alpha1
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
`)
	members := make(map[string]bool)
	for _, name := range r.names("Namespace") {
		members[name] = find[*fact.Namespace](t, r, "Namespace", "", name).Member
	}
	same(t, "members", map[string]bool{"shop": true, "outside": false, "policies": true}, members)
}

// TestOnMeshConfig checks that OnMeshConfig is called before Sidecar, whose result depends on
// the MeshConfig.
func TestOnMeshConfig(t *testing.T) {
	preset := &v1alpha2.MeshConfig{}
	preset.Name = "preset"
	for text, want := range map[string]string{
		shop: "preset",
		shop + "---\napiVersion: config.openservicemesh.io/v1alpha1\nkind: MeshConfig\nmetadata: {name: own}\n": "own",
	} {
		var calls []string
		opts := options()
		opts.MeshConfig = preset
		opts.OnMeshConfig = func(obj *v1alpha2.MeshConfig) { calls = append(calls, obj.Name) }
		opts.Sidecar = func(*corev1.Pod, *corev1.Namespace) dir.Sidecar {
			calls = append(calls, "queried")
			return dir.Sidecar{}
		}
		loadText(t, opts, text)
		if len(calls) < 2 || calls[0] != want || calls[1] != "queried" {
			t.Errorf("got %q, want %s and then queries", calls, want)
		}
	}
}

func TestMeshConfig(t *testing.T) {
	opts := options()
	opts.MeshConfig = &v1alpha2.MeshConfig{}
	opts.MeshConfig.Namespace, opts.MeshConfig.Name = "osm-system", "preset"
	opts.MeshConfig.Spec.Traffic.EnablePermissiveTrafficPolicyMode = new(true)

	r := loadText(t, opts, shop)
	if !find[*mesh.Settings](t, r, "MeshConfig", "osm-system", "preset").PermissivePolicy {
		t.Error("the preset does not count")
	}
	r = loadText(t, opts, shop+"---\napiVersion: config.openservicemesh.io/v1alpha1\nkind: MeshConfig\nmetadata: {name: own}\nspec: {traffic: {enableEgress: true}}\n")
	same(t, "MeshConfigs", []string{"default/own"}, r.names("MeshConfig"))
	if own := find[*mesh.Settings](t, r, "MeshConfig", "default", "own"); own.PermissivePolicy || !own.Egress {
		t.Errorf("settings %+v", own)
	}
}

// TestOrder reads the objects of the sample in many orders and files.
func TestOrder(t *testing.T) {
	opts := options()
	opts.Sidecar = func(*corev1.Pod, *corev1.Namespace) dir.Sidecar { return dir.Sidecar{Class: "envoy"} }
	sample := filepath.Join("..", "..", "..", "samples", "bookstore-smi")
	want := load(t, opts, sample)
	want.wantProblems(t)
	var documents []string
	files, err := filepath.Glob(filepath.Join(sample, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, strings.Split(string(text), "\n---\n")...)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		random.Shuffle(len(documents), func(i, j int) { documents[i], documents[j] = documents[j], documents[i] })
		texts := make(map[string]string)
		for _, d := range documents {
			texts[fmt.Sprintf("%d.yaml", random.IntN(5))] += "---\n" + d + "\n"
		}
		got := load(t, opts, write(t, texts))
		got.wantProblems(t)
		same(t, "digests", want.digests(), got.digests())
		same(t, "order of facts", objects(want.facts), objects(got.facts))
	}
}

func objects(facts []fact.Fact) []mesh.ObjectRef {
	var all []mesh.ObjectRef
	for _, f := range facts {
		all = append(all, f.Object)
	}
	return all
}

// TestSamples checks that the samples have no Problems, and show what they should.
func TestSamples(t *testing.T) {
	opts := options()
	opts.Sidecar = func(pod *corev1.Pod, namespace *corev1.Namespace) dir.Sidecar {
		if namespace.Labels["openservicemesh.io/monitored-by"] != "osm" {
			return dir.Sidecar{}
		}
		return dir.Sidecar{Class: "envoy"}
	}
	for _, sample := range []string{"bookstore.yaml", "bookstore-smi"} {
		r := load(t, opts, filepath.Join("..", "..", "..", "samples", sample))
		r.wantProblems(t)
		for _, f := range r.facts {
			for _, p := range f.Problems {
				t.Errorf("%s: %s", sample, p)
			}
			if f.Content == nil {
				t.Errorf("%s: %s says nothing", sample, f.Object)
			}
		}
	}
	r := load(t, opts, filepath.Join("..", "..", "..", "samples", "bookstore-smi"))
	kinds := make(map[string]int)
	for _, f := range r.facts {
		kinds[f.Object.Kind]++
	}
	for _, kind := range []string{
		"MeshConfig", "Namespace", "Pod", "Service", "EndpointSlice", "TrafficTarget", "HTTPRouteGroup", "TCPRoute",
		"TrafficSplit", "Egress", "IngressBackend", "Retry", "UpstreamTrafficSetting",
	} {
		if kinds[kind] == 0 {
			t.Errorf("the sample has no %s", kind)
		}
	}
	split := find[*fact.Split](t, r, "TrafficSplit", "bookstore", "bookstore")
	same(t, "split", []fact.SplitBackend{{Service: "bookstore-v1", Weight: 90}, {Service: "bookstore-v2", Weight: 10}}, split.Backends)
	same(t, "a pod outside of the mesh", "", find[*fact.Workload](t, r, "Pod", "edge", "gateway-0").Class)
	// The two versions listen on different ports, so the service of both has two slices.
	var ports []uint16
	for _, name := range r.names("EndpointSlice") {
		namespace, name, _ := strings.Cut(name, "/")
		slice := find[*fact.EndpointSlice](t, r, "EndpointSlice", namespace, name)
		if slice.Service == "bookstore" {
			ports = append(ports, slice.Ports[1].Port)
		}
	}
	slices.Sort(ports)
	same(t, "ports of the slices of bookstore", []uint16{14001, 14011}, ports)
}
