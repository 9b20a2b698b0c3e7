package convert_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/convert"
)

// TestOtherMeshes compares the policies and Notes for the objects of other meshes with golden files.
func TestOtherMeshes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var objects []*unstructured.Unstructured
			for document := range strings.SplitSeq(string(archive.Files[0].Data), "\n---\n") {
				o := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
					t.Fatal(err)
				}
				if !convert.IsOtherMesh(o.GroupVersionKind().GroupKind()) {
					t.Errorf("%s is not read", o.GetKind())
				}
				objects = append(objects, o)
			}
			made, notes := convert.AccessPolicies(catalog.Build(nil), nil, objects)
			var policies, lines strings.Builder
			var texts []string
			for _, policy := range made {
				text, err := yaml.Marshal(policy.Object)
				if err != nil {
					t.Fatal(err)
				}
				policies.WriteString("---\n" + string(text))
				compact, _ := json.Marshal(policy.Object)
				texts = append(texts, string(compact))
			}
			for _, f := range loadManifests(t, texts) {
				if len(f.Problems) > 0 && f.Object.Kind != "MeshConfig" {
					t.Errorf("the mesh does not take what was made: %s", f.Problems[0])
				}
			}
			for _, note := range notes {
				lines.WriteString(note.String() + "\n")
			}
			got := &txtar.Archive{Files: []txtar.File{archive.Files[0], {Name: "policies.yaml", Data: []byte(policies.String())}, {Name: "notes", Data: []byte(lines.String())}}}
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(got))); diff != "" {
				t.Errorf("(-want +got, UPDATE=1 accepts it)\n%s", diff)
			}
		})
	}
}

// TestBrokenObjects converts objects of other meshes in which values have been replaced by others, of
// any type. None may end the program.
func TestBrokenObjects(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	files, _ := filepath.Glob("testdata/*.txtar")
	var seeds []map[string]any
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(archive.Files[0].Data), "\n---\n") {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatal(err)
			}
			seeds = append(seeds, object)
		}
	}
	var broken func(value any) any
	broken = func(value any) any {
		if r.IntN(8) == 0 {
			return pick[any](r, nil, "", "*", "a\x1b[2J\nb", 1.5, -1.0, 1e30, true, []any{}, []any{nil}, map[string]any{}, map[string]any{"a": nil}, strings.Repeat("x", 5000))
		}
		switch value := value.(type) {
		case map[string]any:
			other := map[string]any{}
			for _, key := range slices.Sorted(maps.Keys(value)) {
				other[key] = broken(value[key])
			}
			return other
		case []any:
			var other []any
			for _, element := range value {
				other = append(other, broken(element))
			}
			return other
		}
		return value
	}
	policies := 0
	for range 300 {
		var objects []*unstructured.Unstructured
		for _, seed := range seeds {
			object := map[string]any{"apiVersion": seed["apiVersion"], "kind": seed["kind"]}
			for _, key := range []string{"metadata", "spec"} {
				object[key] = broken(seed[key])
			}
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
		made, notes := convert.AccessPolicies(catalog.Build(nil), nil, objects)
		policies += len(made)
		for _, note := range notes {
			if note.Message == "" {
				t.Errorf("a Note of %s is empty", note.Object)
			}
		}
	}
	if policies < 300 {
		t.Errorf("only %d policies were made", policies)
	}
}
