package offline_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// fakeEngine returns short operations of the kinds that the real engine returns. A pod's
// annotation "fake" selects another behaviour.
type fakeEngine struct{}

const fakeStatus = "fake/status"

func (fakeEngine) Inject(_ context.Context, req inject.Request) inject.Result {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Pod, &pod); err != nil {
		return inject.Result{Decision: inject.Decision{Outcome: inject.Deny, Reason: "pod_invalid", Message: err.Error()}}
	}
	switch value := pod.Annotations["fake"]; {
	case value == "skip" || req.Namespace == "kube-system":
		return inject.Result{Decision: inject.Decision{Outcome: inject.Skip, Reason: "namespace_exempt", Message: "namespace " + req.Namespace}}
	case value == "deny":
		return inject.Result{Decision: inject.Decision{Outcome: inject.Deny, Reason: "uid_conflict", Message: "container app runs as user 1500"}}
	}
	r := inject.Result{Decision: inject.Decision{Outcome: inject.Inject, Reason: "annotation_enabled"}}
	if pod.Annotations[fakeStatus] != "" {
		return r
	}
	add := func(path string, value any) {
		r.Patch = append(r.Patch, inject.Operation{Op: "add", Path: path, Value: value})
	}
	status := "injected"
	switch {
	case len(pod.Annotations) > 0:
		add("/metadata/annotations/fake~1status", status)
	case len(pod.Labels) > 0 || pod.Name != "":
		add("/metadata/annotations", map[string]string{fakeStatus: status})
	default:
		add("/metadata", map[string]any{"annotations": map[string]string{fakeStatus: status}})
	}
	for i, c := range pod.Spec.Containers {
		if c.ReadinessProbe != nil {
			path := "/spec/containers/" + strconv.Itoa(i) + "/readinessProbe/httpGet/port"
			r.Patch = append(r.Patch, inject.Operation{Op: "replace", Path: path, Value: 15901})
		}
	}
	init := corev1.Container{Name: "fake-init", Image: "fake/init"}
	if len(pod.Spec.InitContainers) > 0 {
		add("/spec/initContainers/0", init)
	} else {
		add("/spec/initContainers", []corev1.Container{init})
	}
	add("/spec/containers/-", corev1.Container{Name: "fake-proxy", Image: "fake/proxy", Command: []string{"yes", "1:30"}})
	r.Added = []string{"fake-init", "fake-proxy"}
	return r
}

// fakeUninject reverts fakeEngine. The original port of probes is 8080.
func fakeUninject(raw []byte) ([]inject.Operation, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(raw, &pod); err != nil {
		return nil, err
	}
	if pod.Annotations[fakeStatus] == "" {
		return nil, nil
	}
	var operations []inject.Operation
	remove := func(path string) { operations = append(operations, inject.Operation{Op: "remove", Path: path}) }
	switch {
	case len(pod.Annotations) > 1:
		remove("/metadata/annotations/fake~1status")
	case len(pod.Labels) > 0 || pod.Name != "":
		remove("/metadata/annotations")
	default:
		remove("/metadata")
	}
	if len(pod.Spec.InitContainers) == 1 {
		remove("/spec/initContainers")
	} else {
		remove("/spec/initContainers/0")
	}
	for i, c := range slices.Backward(pod.Spec.Containers) {
		if c.Name == "fake-proxy" {
			remove("/spec/containers/" + strconv.Itoa(i))
		} else if c.ReadinessProbe != nil {
			path := "/spec/containers/" + strconv.Itoa(i) + "/readinessProbe/httpGet/port"
			operations = append(operations, inject.Operation{Op: "replace", Path: path, Value: 8080})
		}
	}
	return operations, nil
}

// TestGolden injects the files of each case under in/, and compares output and
// report with those under want/. UPDATE=1 rewrites them.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { golden(t, name) })
	}
}

func golden(t *testing.T, name string) {
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var sources []offline.Source
	got := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if in, ok := strings.CutPrefix(f.Name, "in/"); ok {
			sources = append(sources, offline.Source{Name: in, Data: f.Data})
			got.Files = append(got.Files, f)
		}
	}
	result, err := offline.InjectFiles(t.Context(), fakeEngine{}, sources, offline.Options{Namespace: "shop"})
	for _, out := range result.Outputs {
		got.Files = append(got.Files, txtar.File{Name: "want/" + out.Source.Name, Data: out.Data})
	}
	var report bytes.Buffer
	if err := result.WriteText(&report); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		report.WriteString("error: " + err.Error() + "\n")
	}
	got.Files = append(got.Files, txtar.File{Name: "want/report", Data: report.Bytes()})
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(name, txtar.Format(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(got))); diff != "" {
		t.Errorf("UPDATE=1 accepts the difference (-want +got):\n%s", diff)
	}
	if err == nil {
		checkRoundTrip(t, fakeEngine{}, fakeUninject, sources, strings.Contains(string(archive.Comment), "byte for byte"))
	}
}

// checkRoundTrip checks that injection is idempotent and that uninjection restores the
// documents.
func checkRoundTrip(t *testing.T, engine offline.Engine, uninject offline.UninjectFunc, sources []offline.Source, sameBytes bool) {
	t.Helper()
	opts := offline.Options{Namespace: "shop"}
	injected := sourcesOf(must(t)(offline.InjectFiles(t.Context(), engine, sources, opts)))
	again := sourcesOf(must(t)(offline.InjectFiles(t.Context(), engine, injected, opts)))
	back := sourcesOf(must(t)(offline.UninjectFiles(t.Context(), uninject, injected)))
	for i := range sources {
		if diff := cmp.Diff(string(injected[i].Data), string(again[i].Data)); diff != "" {
			t.Errorf("%s: a second injection changes the file:\n%s", sources[i].Name, diff)
		}
		if diff := cmp.Diff(meaning(t, sources[i].Data), meaning(t, back[i].Data)); diff != "" {
			t.Errorf("%s: uninject does not give back what was injected (-before +after):\n%s", sources[i].Name, diff)
		}
		if diff := cmp.Diff(string(sources[i].Data), string(back[i].Data)); sameBytes && diff != "" {
			t.Errorf("%s: uninject does not give back the text (-before +after):\n%s", sources[i].Name, diff)
		}
	}
}

func must(t *testing.T) func(*offline.Result, error) *offline.Result {
	return func(r *offline.Result, err error) *offline.Result {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%v", err, r.Rows)
		}
		return r
	}
}

func sourcesOf(r *offline.Result) []offline.Source {
	sources := make([]offline.Source, len(r.Outputs))
	for i, out := range r.Outputs {
		sources[i] = offline.Source{Name: out.Source.Name, Data: out.Data}
	}
	return sources
}

// meaning returns the decoded content of a stream of documents.
func meaning(t testing.TB, text []byte) []any {
	t.Helper()
	var all []any
	for part := range bytes.SplitSeq(append([]byte("\n"), text...), []byte("\n---")) {
		var v any
		if err := yaml.Unmarshal(part, &v); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		dropEmptyMetadata(v)
		all = append(all, v)
	}
	return all
}

func dropEmptyMetadata(v any) {
	switch v := v.(type) {
	case map[string]any:
		if m, ok := v["metadata"].(map[string]any); ok && len(m) == 0 {
			delete(v, "metadata")
		}
		for _, value := range v {
			dropEmptyMetadata(value)
		}
	case []any:
		for _, value := range v {
			dropEmptyMetadata(value)
		}
	}
}
