package chart_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const readme = `# The chart outrigger

The control plane of Outrigger, a service mesh whose sidecar is a plug-in. The chart is embedded in
the program: ` + "`outrigger install`" + ` installs it, and ` + "`outrigger manifests`" + ` prints its manifests.

    helm install outrigger oci://ghcr.io/outrigger-mesh/charts/outrigger --namespace osm-system --create-namespace

[values-ha.yaml](values-ha.yaml) has values for high availability. The values under ` + "`osm`" + ` have
the names of Open Service Mesh and osm-edge. Up to Open Service Mesh v0.11 these were under
` + "`OpenServiceMesh`" + `, which is supported too and takes precedence. The notes after an
installation list the values that have no effect.

This page is generated from values.yaml by ` + "`UPDATE=1 go test ./charts/outrigger -run TestReadme`" + `.

| value | default | what it does |
|---|---|---|
`

// TestReadme checks that the chart's README lists every value with its default and its
// comment in values.yaml, and that every value has a comment.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(readme)
	for _, row := range rows(t, "", root.Content[0]) {
		page.WriteString(row)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("README.md", []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(written)); diff != "" {
		t.Errorf("README.md is out of date; write it with UPDATE=1 (-values +README):\n%s", diff)
	}
}

// rows returns the table's rows for the values in a mapping. A mapping with a description
// is one row; otherwise each value in it is.
func rows(t *testing.T, prefix string, mapping *yaml.Node) (all []string) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		_, description, found := strings.Cut(strings.ReplaceAll("\n"+key.HeadComment, "\n# ", "\n"), "\n-- ")
		if !found {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				t.Errorf("values.yaml does not describe %s", name)
			}
			all = append(all, rows(t, name+".", value)...)
			continue
		}
		var decoded any
		if err := value.Decode(&decoded); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		description = strings.ReplaceAll(strings.ReplaceAll(description, "\n", " "), "|", "\\|")
		all = append(all, fmt.Sprintf("| `%s` | `%s` | %s |\n", name, text, description))
	}
	return all
}
