package chart_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
)

// osmPage is the page that TestEveryValueOfOpenServiceMesh writes.
const osmPage = "../../docs/osm-values.md"

const osmPageHead = `# Values of Open Service Mesh and osm-edge

Every value of the charts of Open Service Mesh v0.11, v1.2 and main and of osm-edge 1.3, and what it
does in [Outrigger's chart](../charts/outrigger/README.md). A file of such values is given as it is:

    outrigger install --values osm-values.yaml

Values that have no effect are named after the installation. Up to v0.11 the values were under
` + "`OpenServiceMesh`" + `, which is understood too. A value that becomes a field of the MeshConfig
does what [that field](meshconfig.md) does. This page is written by
` + "`UPDATE=1 go test ./charts/outrigger -run TestEveryValueOfOpenServiceMesh`" + `.

| value | in Outrigger |
|---|---|
`

// TestEveryValueOfOpenServiceMesh sets the values one by one. Each changes what is installed,
// or the notes say why it does not.
func TestEveryValueOfOpenServiceMesh(t *testing.T) {
	text, err := os.ReadFile("testdata/osm-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var samples map[string]any
	if err := yaml.UnmarshalStrict(text, &samples); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range samples {
		names = append(names, name)
	}
	slices.Sort(names)
	// Some say more of what another value switches on.
	needs := map[string]map[string]any{
		"osm.tracing.":           {"osm.tracing.enable": true},
		"osm.remoteLogging.":     {"osm.remoteLogging.enable": true},
		"osm.certmanager.":       {"osm.certificateProvider.kind": "cert-manager"},
		"osm.vault.":             {"osm.certificateProvider.kind": "vault", "osm.vault.host": "vault", "osm.vault.token": "t"},
		"osm.vault.secret.":      {"osm.certificateProvider.kind": "vault", "osm.vault.host": "vault", "osm.vault.secret.name": "token"},
		"osm.injector.autoScale": {"osm.injector.autoScale.enable": true, "osm.injector.autoScale.minReplicas": 3},
		"osm.osmController.auto": {"osm.osmController.autoScale.enable": true, "osm.osmController.autoScale.minReplicas": 3},
	}
	var page strings.Builder
	page.WriteString(osmPageHead)
	for _, name := range names {
		longest := ""
		for prefix := range needs {
			if strings.HasPrefix(name, prefix) && len(prefix) > len(longest) {
				longest = prefix
			}
		}
		base := maps.Clone(needs[longest])
		if _, given := base[name]; given && !strings.HasPrefix(name, "osm.vault.") {
			delete(base, name) // It is what the others need.
		}
		with := maps.Clone(base)
		if with == nil {
			with = map[string]any{}
		}
		with[name] = samples[name]
		says := effect(name, renderFlat(t, base), renderFlat(t, with))
		if says == "" {
			t.Errorf("%s changes nothing, and the notes do not say why", name)
		}
		fmt.Fprintf(&page, "| `%s` | %s |\n", name, says)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(osmPage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(osmPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(written)); diff != "" {
		t.Errorf("docs/osm-values.md is not what the chart does; write it with UPDATE=1 (-chart +page):\n%s", diff)
	}
}

// renderFlat renders values whose names are paths.
func renderFlat(t *testing.T, flat map[string]any) *chart.Release {
	t.Helper()
	values := map[string]any{}
	for name, value := range flat {
		inner := values
		parts := strings.Split(name, ".")
		for _, part := range parts[:len(parts)-1] {
			next, ok := inner[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				inner[part] = next
			}
			inner = next
		}
		inner[parts[len(parts)-1]] = value
	}
	release, err := chart.Render(t.Context(), namespace, values)
	if err != nil {
		t.Fatalf("%v: %v", flat, err)
	}
	return release
}

// effect says what a value does, from what is rendered without it and with it.
func effect(name string, before, after *chart.Release) string {
	for line := range strings.Lines(after.Notes) {
		paths, why, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "WARNING: "), ": no effect, because ")
		if !found {
			continue
		}
		for path := range strings.SplitSeq(paths, ", ") {
			if name == path || strings.HasPrefix(name, path+".") {
				return "no effect: " + why
			}
		}
	}
	field := ""
	for i, object := range after.Objects {
		if i >= len(before.Objects) || object == before.Objects[i] {
			continue
		}
		if strings.Contains(object, "\nkind: MeshConfig\n") && strings.Contains(before.Objects[i], "\nkind: MeshConfig\n") {
			field = changedField("spec", spec(before.Objects[i]), spec(object))
			continue
		}
		if !strings.Contains(object, "name: outrigger-preset-mesh-config\n") {
			return "the same"
		}
	}
	switch {
	case field != "":
		return "`" + field + "` of the MeshConfig"
	case !slices.Equal(before.Objects, after.Objects):
		return "the same"
	}
	return ""
}

func spec(object string) map[string]any {
	var decoded struct{ Spec map[string]any }
	if err := yaml.Unmarshal([]byte(object), &decoded); err != nil {
		return nil
	}
	return decoded.Spec
}

// changedField returns the path of the first field in which two maps differ.
func changedField(path string, before, after map[string]any) string {
	var keys []string
	for key := range after {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if cmp.Equal(before[key], after[key]) {
			continue
		}
		old, isMap := before[key].(map[string]any)
		now, isMapNow := after[key].(map[string]any)
		if isMapNow && (isMap || before[key] == nil) && len(now) > 0 {
			return changedField(path+"."+key, old, now)
		}
		return path + "." + key
	}
	return path
}
