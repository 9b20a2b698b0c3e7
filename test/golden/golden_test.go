package golden_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/city"
)

// build builds the mesh of the manifests. Every pod gets an Envoy, unless it opts out or
// selects another class.
func build(t *testing.T, manifests io.Reader) *fact.Snapshot {
	t.Helper()
	snapshot, problems := load(t, manifests)
	for _, p := range problems {
		t.Errorf("reading: %s", p)
	}
	return snapshot
}

// load is build for manifests that may have Problems.
func load(t *testing.T, manifests io.Reader) (*fact.Snapshot, []mesh.Problem) {
	t.Helper()
	facts, problems := factsOf(t, manifests)
	return snapshotOf(facts), problems
}

func snapshotOf(facts []fact.Fact) *fact.Snapshot {
	return catalog.BuildFor(facts, catalog.Options{Features: sidecar.Features, Proxyless: sidecar.IsProxyless})
}

// factsOf reads the facts of manifests.
func factsOf(t *testing.T, manifests io.Reader) ([]fact.Fact, []mesh.Problem) {
	t.Helper()
	facts, problems, err := dir.Load([]string{"-"}, dir.Options{
		Mapper: source.MapperOptions{MeshName: "osm", SidecarClass: func(*corev1.Pod) string { return "" }, Resolver: source.NewResolver(source.ConfigOptions{
			Classes:      []string{"envoy", "pipy"},
			BuiltinImage: func(string, string) string { return "image" },
			Env:          func(string) string { return "" },
			InitImage:    "image",
		})},
		Stdin: manifests,
		Sidecar: func(pod *corev1.Pod, _ *corev1.Namespace) dir.Sidecar {
			if pod.Annotations["openservicemesh.io/sidecar-injection"] == "disabled" {
				return dir.Sidecar{}
			}
			return dir.Sidecar{Class: cmp.Or(pod.Annotations["openservicemesh.io/sidecar-class"], "envoy")}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return facts, problems
}

// viewOf returns the View of a pod.
func viewOf(t *testing.T, snapshot *fact.Snapshot, pod string) *mesh.View {
	t.Helper()
	w, ok := snapshot.Workloads.Get(pod)
	if !ok {
		t.Fatalf("pod %s does not exist; the pods are %v", pod, snapshot.Workloads.Names())
	}
	view, ok := snapshot.Views.Get(w.UID)
	if !ok {
		t.Fatalf("pod %s has no View", pod)
	}
	return view
}

// check has the real proxy validate the configuration, if its driver is a Checker.
func check(t *testing.T, view *mesh.View) {
	t.Helper()
	checker := driverOf(t, view).Checker
	if checker == nil {
		return
	}
	err := checker.Check(t.Context(), view)
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skipf("SKIPPED: %s has not been asked: %v", view.Proxy.Class, err)
	}
	if err != nil {
		t.Errorf("%s refuses the configuration of %s: %v", view.Proxy.Class, view.Proxy.Name, err)
	}
}

func driverOf(t *testing.T, view *mesh.View) driver.Capabilities {
	t.Helper()
	d, err := sidecar.Capabilities(view.Proxy.Class)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// translate returns the View's configuration by the driver of its class; nothing if the
// driver is not a Translator.
func translate(t *testing.T, view *mesh.View) []driver.File {
	t.Helper()
	translator := driverOf(t, view).Translator
	if translator == nil {
		return nil
	}
	files, err := translator.Translate(view)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestGolden translates the View of one proxy for each case. A case's comment describes
// it, and its last line names the pod: "proxy: namespace/name".
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(archive.Files) == 0 || archive.Files[0].Name != "manifests.yaml" {
				t.Fatalf("%s does not begin with manifests.yaml", file)
			}
			_, pod, ok := strings.Cut(strings.TrimSpace(string(archive.Comment)), "proxy: ")
			if !ok {
				t.Fatalf("the comment of %s does not end in a line proxy: namespace/name", file)
			}
			snapshot := build(t, bytes.NewReader(archive.Files[0].Data))
			view := viewOf(t, snapshot, pod)
			got := archive.Files[:1:1]
			add := func(name string, content []byte) {
				if len(bytes.TrimSpace(content)) > 0 {
					got = append(got, txtar.File{Name: name, Data: append(bytes.TrimRight(content, "\n"), '\n')})
				}
			}
			add("problems.txt", problemsOf(snapshot))
			content, err := json.MarshalIndent(view, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			add("view.json", content)
			for _, f := range translate(t, view) {
				// It is the same in every case, and a separate file of the driver.
				if f.Name != "bootstrap.yaml" {
					add(view.Proxy.Class+"/"+f.Name, f.Content)
				}
			}
			if os.Getenv("UPDATE") != "" {
				archive.Files = got
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := gocmp.Diff(string(txtar.Format(&txtar.Archive{Files: archive.Files})), string(txtar.Format(&txtar.Archive{Files: got}))); diff != "" {
				t.Errorf("%s (-want +got; UPDATE=1 writes the file):\n%s", file, diff)
			}
			check(t, view)
		})
	}
}

func problemsOf(snapshot *fact.Snapshot) []byte {
	var out bytes.Buffer
	for _, name := range snapshot.Problems.Names() {
		problems, _ := snapshot.Problems.Get(name)
		for _, p := range problems.List {
			out.WriteString(p.String() + "\n")
		}
	}
	return out.Bytes()
}

// TestCity has Envoy validate one proxy's configuration in a mesh of a thousand services.
func TestCity(t *testing.T) {
	for _, permissive := range []bool{true, false} {
		name := map[bool]string{true: "permissive", false: "by rules"}[permissive]
		t.Run(name, func(t *testing.T) {
			var manifests bytes.Buffer
			if err := city.Write(&manifests, city.Options{Services: 1000, Replicas: 2, Permissive: permissive}); err != nil {
				t.Fatal(err)
			}
			snapshot := build(t, &manifests)
			view := viewOf(t, snapshot, "ns-3/"+city.Name(33)+"-0")
			want := 10
			if permissive {
				want = 1000
			}
			if got := view.Outbound.Destinations.Len(); got != want {
				t.Errorf("the proxy sees %d destinations, want %d", got, want)
			}
			check(t, view)
		})
	}
}
