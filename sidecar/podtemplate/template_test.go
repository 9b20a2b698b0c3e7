package podtemplate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"syntax", "{{ if }}", "template bad:"},
		{"function", "{{ shell }}", `template bad: template: bad:1: function "shell" not defined`},
		{"block without an end", "{{ define \"x\" }}", "template bad:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse("bad", tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse returned %v, want %s", err, tt.want)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown data", "{{ .Imagine }}", "can't evaluate field Imagine"},
		{"missing value", "{{ .Values.none }}", `map has no entry for key "none"`},
		{"unknown block", `{{ template "outrigger.none" . }}`, `template "outrigger.none" not defined`},
		{"block that calls itself", `{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}`, "exceeded maximum template depth"},
		{"not YAML", "spec: [", "it does not render a partial pod"},
		{"not a pod", "spec: {containers: [{nam: x}]}", `unknown field "nam"`},
		{"a list", "- a", "it does not render a partial pod"},
		{"key twice", "spec: {hostname: a}\nspec: {hostname: b}", `key "spec" already set`},
		{"two documents", "spec: {hostname: a}\n---\nspec: {hostNetwork: true}", "it renders several YAML documents, not one"},
		{"container without a name", "spec: {containers: [{image: x}]}", "a container in it has no name"},
		{"container with an empty value as its name", `spec: {containers: [{name: {{ .Pod.Annotation "value" }}}]}`, "a container in it has no name"},
		{"volume without a name", "spec: {volumes: [{emptyDir: {}}]}", "a volume in it has no name"},
		{"container twice", "spec: {containers: [{name: a}], initContainers: [{name: a}]}", `it renders the container "a" twice`},
		{"container twice by a value", `spec: {containers: [{name: shop}, {name: {{ .Namespace }}}]}`, `it renders the container "shop" twice`},
		{"volume twice", "spec: {volumes: [{name: a}, {name: a}]}", `it renders the volume "a" twice`},
		{"name of the pod", "metadata: {name: x}", "it renders more than labels, annotations and a spec"},
		{"status", "status: {phase: Running}", "it renders more than labels, annotations and a spec"},
		{"ephemeral container", "spec: {ephemeralContainers: [{name: x}]}", "it renders more than labels, annotations and a spec"},
		{"too much", `metadata: {annotations: {a: {{ repeat 1048576 "x" }}}}`, "it renders more than 1048576 bytes"},
		{"too much in parts", `{{ range until 1000 }}# {{ repeat 2000 "x" }}` + "\n{{ end }}", "it renders more than 1048576 bytes"},
		{"its own error", `{{ fail "name a region" }}`, "name a region"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, err := renderText(t, tt.text, arguments(""))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "template test: ") {
				t.Errorf("it gives %v and the error %v, want %s", pod, err, tt.want)
			}
		})
	}
}

func TestRenderNothing(t *testing.T) {
	for _, text := range []string{"", "# nothing", "---\n# nothing\n---\n", `{{ if eq .Class "other" }}spec: {}{{ end }}`} {
		pod, err := renderText(t, text, arguments(""))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		before := arguments("").Pod
		after := before.DeepCopy()
		if err := Merge(after, pod); err != nil || diffPods(before, after) != "" {
			t.Errorf("%q changed the pod, or gave the error %v", text, err)
		}
	}
}

// TestSetIsSharedSafely renders one template from many goroutines, for pods with different
// values and structures.
func TestSetIsSharedSafely(t *testing.T) {
	set, err := NewSet(map[string]string{
		"t": `metadata: {annotations: {own: {{ .Pod.Annotation "value" }}, before: "{{ len .Values }}{{ len .Values.deep }}"}}
{{ $_ := set .Values "seen" true }}{{ $_ := set .Values.deep "seen" true -}}
spec: {containers: [{name: s, image: {{ .Image }}, env: [{name: N, value: "{{ plain (.Pod.Annotation "value") }}"}]}]}`,
	}, map[string]any{"deep": map[string]any{}, "list": []any{map[string]any{}}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			// More structures than a template caches.
			for j := range maxRead {
				inj := arguments(fmt.Sprintf("%d-%d", i, j))
				inj.Sidecar.Image = fmt.Sprintf("image-%d", j)
				if err := set.Apply(inj, "t", nil); err != nil {
					t.Error(err)
					return
				}
				got := inj.Pod.Spec.Containers[2]
				value := inj.Pod.Annotations["value"]
				if inj.Pod.Annotations["own"] != value || got.Env[0].Value != value || got.Image != inj.Sidecar.Image || inj.Pod.Annotations["before"] != "20" {
					t.Errorf("for %s and %s it gave %v and %v", value, inj.Sidecar.Image, inj.Pod.Annotations, got)
				}
			}
		})
	}
	wg.Wait()
	if n := len(set.templates["t"].read); n > maxRead {
		t.Errorf("the template remembers %d texts, want at most %d", n, maxRead)
	}
}

func TestSet(t *testing.T) {
	set, err := NewSet(map[string]string{"b": "", "a": ""}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, set.Names()); diff != "" {
		t.Errorf("Names() (-want +got):\n%s", diff)
	}
	if !set.Has("a") || set.Has("A") || set.Has("c") {
		t.Errorf("Has: a %t, A %t, c %t", set.Has("a"), set.Has("A"), set.Has("c"))
	}
	if err := set.Apply(arguments(""), "c", nil); err == nil || err.Error() != `there is no template "c"; there are: [a b]` {
		t.Errorf("Apply of an unknown template returned %v", err)
	}
	if _, err := NewSet(map[string]string{"a": "", "bad": "{{"}, nil); err == nil || !strings.HasPrefix(err.Error(), "template bad: ") {
		t.Errorf("NewSet of a bad template returned %v", err)
	}
}

func TestApply(t *testing.T) {
	const own = `metadata: {annotations: {from: driver, agent: {{ .AgentSpec }}}}`
	spec := &agentspec.Spec{Command: []string{"/proxy"}}

	inj := arguments("")
	inj.AppProbes = []agentspec.Probe{{Path: "/app-health/web/readyz", Kind: agentspec.TCP, Port: 80, TimeoutSeconds: 1}}
	inj.Sidecar.DisabledMTLS = true
	ctx, cancel := context.WithCancel(inj)
	if err := Apply(ctx, "test", own, spec); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"value": "", "from": "driver",
		"agent": `{"command":["/proxy"],"probes":[{"path":"/app-health/web/readyz","kind":"TCP","port":80,"timeoutSeconds":1}],"disabledMTLS":true}`}
	if diff := cmp.Diff(want, inj.Pod.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&agentspec.Spec{Command: []string{"/proxy"}}, spec); diff != "" {
		t.Errorf("the driver's spec was changed:\n%s", diff)
	}

	// The user's template with the driver's name replaces the driver's.
	set, err := NewSet(map[string]string{"test": `metadata: {annotations: {from: {{ .Values.who }}}}`}, map[string]any{"who": "user"})
	if err != nil {
		t.Fatal(err)
	}
	theirs := arguments("")
	theirs.Templates = set
	if err := Apply(theirs, "test", own, spec); err != nil {
		t.Fatal(err)
	}
	if got := theirs.Pod.Annotations["from"]; got != "user" {
		t.Errorf("the template of %s was used, want the user's", got)
	}

	cancel()
	untouched := inj.Pod.DeepCopy()
	if err := Apply(ctx, "test", `metadata: {labels: {late: "true"}}`, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply with a cancelled ctx returned %v", err)
	}
	if diff := diffPods(untouched, inj.Pod); diff != "" {
		t.Errorf("Apply with a cancelled ctx changed the pod:\n%s", diff)
	}
	if err := Apply(context.Background(), "test", own, spec); err == nil || err.Error() != "missing Injector Context" {
		t.Errorf("Apply without an InjectorContext returned %v", err)
	}
	if err := Apply(arguments(""), "test", "{{", spec); err == nil || !strings.HasPrefix(err.Error(), "template test: ") {
		t.Errorf("Apply of a bad template returned %v", err)
	}
	volume := arguments("")
	if err := Apply(volume, "test", "spec: {volumes: [{name: a, emptyDir: {}}]}", spec); err != nil {
		t.Fatal(err)
	}
	err = Apply(volume, "test", "spec: {volumes: [{name: a, configMap: {name: c}}]}", spec)
	if err == nil || !strings.Contains(err.Error(), `template test: the pod has its own volume "a"`) {
		t.Errorf("Apply with a clash of volumes returned %v", err)
	}
}

func TestBlocks(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		native, windows          bool
		initContainers, ordinary []string
	}{
		{name: "native", native: true, initContainers: []string{"outrigger-init", "outrigger-proxy"}, ordinary: []string{"web", "helper"}},
		{name: "classic", initContainers: []string{"outrigger-init"}, ordinary: []string{"web", "helper", "outrigger-proxy"}},
		{name: "native on Windows", native: true, windows: true, initContainers: []string{"outrigger-proxy"}, ordinary: []string{"web", "helper"}},
		{name: "classic on Windows", windows: true, ordinary: []string{"web", "helper", "outrigger-proxy"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inj := arguments("")
			inj.Sidecar.Native = tt.native
			if tt.windows {
				inj.PodOS = "windows"
			}
			if err := Apply(inj, "test", `{{ template "outrigger.pod" . }}`, &agentspec.Spec{Command: []string{"/proxy"}}); err != nil {
				t.Fatal(err)
			}
			var initContainers, ordinary []string
			for _, c := range inj.Pod.Spec.InitContainers {
				initContainers = append(initContainers, c.Name)
			}
			for _, c := range inj.Pod.Spec.Containers {
				ordinary = append(ordinary, c.Name)
			}
			if diff := cmp.Diff(tt.initContainers, initContainers); diff != "" {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.ordinary, ordinary); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}

// BenchmarkSetApply measures the templates' part of an injection.
func BenchmarkSetApply(b *testing.B) {
	set, err := NewSet(map[string]string{"t": `{{ template "outrigger.pod" . }}`}, nil)
	if err != nil {
		b.Fatal(err)
	}
	spec := &agentspec.Spec{Command: []string{"/proxy"}}
	b.ReportAllocs()
	for b.Loop() {
		if err := set.Apply(arguments("v"), "t", spec); err != nil {
			b.Fatal(err)
		}
	}
}
