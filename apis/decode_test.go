package apis_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	splitv1alpha2 "github.com/outrigger-mesh/outrigger/apis/split/v1alpha2"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		access.AddToScheme, outrigger.AddToScheme, policy.AddToScheme, specs.AddToScheme, split.AddToScheme, splitv1alpha2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// readFile returns the objects of a YAML file.
func readFile(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := apiserver.Decode(content)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return objects
}

// samples returns all objects in testdata.
func samples(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no objects in testdata: %v", err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		objects = append(objects, readFile(t, file)...)
	}
	return objects
}

func title(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + object.GetName()
}

// TestSamplesSurviveTheGoTypes reads objects without an API server, as the offline
// commands do, and writes them back.
func TestSamplesSurviveTheGoTypes(t *testing.T) {
	decoder := serializer.NewCodecFactory(newScheme(t), serializer.EnableStrict).UniversalDeserializer()
	for _, object := range samples(t) {
		t.Run(title(object), func(t *testing.T) {
			sent, err := object.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			typed, _, err := decoder.Decode(sent, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			written, err := json.Marshal(typed)
			if err != nil {
				t.Fatal(err)
			}
			var got unstructured.Unstructured
			if err := got.UnmarshalJSON(written); err != nil {
				t.Fatal(err)
			}
			// A null is the same as an absent field.
			null := cmpopts.IgnoreMapEntries(func(_ string, value any) bool { return value == nil })
			if diff := cmp.Diff(object.Object, got.Object, null); diff != "" {
				t.Errorf("written back (-read +written):\n%s", diff)
			}
		})
	}
}

// TestSamplesSetEveryField checks that the samples, which other tests use, set every field of the
// CRDs.
func TestSamplesSetEveryField(t *testing.T) {
	set := make(map[string]bool)
	for _, object := range samples(t) {
		for _, path := range setFields(object.GetKind()+".spec", object.Object["spec"]) {
			set[path] = true
		}
	}
	for _, crd := range crds(t) {
		kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, version := range versions {
			spec, ok, err := unstructured.NestedMap(version.(map[string]any), "schema", "openAPIV3Schema", "properties", "spec")
			if err != nil || !ok {
				t.Fatalf("%s has no schema of a spec: %v", kind, err)
			}
			for _, path := range schemaFields(kind+".spec", spec) {
				if !set[path] && !strings.HasPrefix(path, "ClusterAccessPolicy.spec.rules.token") { // which its validation refuses
					t.Errorf("no object in testdata sets %s", path)
				}
			}
		}
	}
}

// crds returns the CRDs of the traffic policies.
func crds(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("../charts/outrigger/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		objects = append(objects, readFile(t, file)...)
	}
	objects = slices.DeleteFunc(objects, func(crd *unstructured.Unstructured) bool {
		return strings.HasSuffix(crd.GetName(), ".config.openservicemesh.io")
	})
	if len(objects) != 11 {
		t.Fatalf("there are %d CRDs of traffic policies, want 11", len(objects))
	}
	return objects
}

// setFields returns the path of every field in a value, those of list items without
// their index.
func setFields(path string, value any) []string {
	var paths []string
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			paths = append(paths, path+"."+name)
			paths = append(paths, setFields(path+"."+name, field)...)
		}
	case []any:
		for _, item := range value {
			paths = append(paths, setFields(path, item)...)
		}
	}
	return paths
}

// schemaFields returns the path of every field that a schema has, as setFields does.
func schemaFields(path string, schema map[string]any) []string {
	var paths []string
	if properties, ok := schema["properties"].(map[string]any); ok {
		for name, field := range properties {
			paths = append(paths, path+"."+name)
			paths = append(paths, schemaFields(path+"."+name, field.(map[string]any))...)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		paths = append(paths, schemaFields(path, items)...)
	}
	return paths
}

func TestWeightParse(t *testing.T) {
	for w, want := range map[split.Weight]uint32{0: 0, 1: 1, 100: 100, 4294967295: 4294967295} {
		if got, err := w.Parse(); err != nil || got != want {
			t.Errorf("Weight(%v).Parse() = %d, %v, want %d", w, got, err, want)
		}
	}
	for _, w := range []split.Weight{-1, 0.5, 33.4, 4294967296, 1e300} {
		if got, err := w.Parse(); err == nil {
			t.Errorf("Weight(%v).Parse() = %d, want an error", w, got)
		}
	}
}

func TestPolicyDurationParse(t *testing.T) {
	for d, want := range map[policy.Duration]time.Duration{"": 0, "50ms": 50 * time.Millisecond, "1h30m": 90 * time.Minute} {
		if got, err := d.Parse(); err != nil || got != want {
			t.Errorf("Duration(%q).Parse() = %v, %v, want %v", d, got, err, want)
		}
	}
	for _, d := range []policy.Duration{"5", "-1s", "soon"} {
		if got, err := d.Parse(); err == nil {
			t.Errorf("Duration(%q).Parse() = %v, want an error", d, got)
		}
	}
}

func TestResource(t *testing.T) {
	for got, want := range map[schema.GroupResource]string{
		access.Resource("traffictargets"):       "traffictargets.access.smi-spec.io",
		specs.Resource("tcproutes"):             "tcproutes.specs.smi-spec.io",
		split.Resource("trafficsplits"):         "trafficsplits.split.smi-spec.io",
		splitv1alpha2.Resource("trafficsplits"): "trafficsplits.split.smi-spec.io",
		policy.Resource("retries"):              "retries.policy.openservicemesh.io",
	} {
		if got.String() != want {
			t.Errorf("resource %s, want %s", got, want)
		}
	}
}
