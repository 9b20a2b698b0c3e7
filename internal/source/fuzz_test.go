package source_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// FuzzNewConfig reads MeshConfigs that no API server has validated. The result must be a Config
// with usable values, and each Problem must fit into the status.
func FuzzNewConfig(f *testing.F) {
	files, err := filepath.Glob("../../apis/config/v1alpha2/testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var obj v1alpha2.MeshConfig
		if yaml.Unmarshal(content, &obj) != nil {
			return
		}
		config := source.NewConfig(&obj, options(nil))
		problems := config.Problems()
		if config.GetSidecarClass() == "" || config.GetSidecarLogLevel() == "" || config.GetTrustDomain() == "" ||
			config.GetMaxDataPlaneConnections() < 0 || config.GetConfigResyncInterval() < 0 || config.GetProxyServerPort("pipy") > 65535 {
			t.Errorf("values %+v", read(config))
		}
		conditions := source.Conditions(nil, problems, 1, metav1.Now())
		for _, c := range conditions {
			if len(c.Message) > 32768 || len(c.Reason) > 1024 || c.Reason == "" {
				t.Errorf("condition %+v", c)
			}
		}
		for _, p := range problems {
			if p.Field == "" || p.Message == "" || strings.Contains(p.Message, "\n") {
				t.Errorf("Problem %+v", p)
			}
		}
	})
}

// FuzzFact reads objects of every kind that no API server has validated.
func FuzzFact(f *testing.F) {
	for _, text := range objects() {
		f.Add([]byte(text))
	}
	mapper := newMapper()
	f.Fuzz(func(t *testing.T, text []byte) {
		if obj, err := decode(text); err == nil {
			checkFact(t, mapper, obj)
		}
	})
}

// TestAnyValueAnywhere sets every field of every kind to values that are invalid in most fields.
func TestAnyValueAnywhere(t *testing.T) {
	values := []any{
		nil, true, "", "*", "(", ".*", "a/b", "a\nb", "\x00", "é", "A", "-", "0s", "-1s", "::ffff:10.0.0.1", "10.0.0.0/8", "fe80::1%eth0",
		strings.Repeat("a.", 200), -1, 0, 1, 65536, int64(1) << 40, 0.5, []any{}, []any{""}, []any{map[string]any{}}, map[string]any{}, map[string]any{"": ""},
	}
	mapper := newMapper()
	read := 0
	for _, text := range objects() {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		places(object, func(set func(any)) {
			for _, value := range values {
				set(value)
				changed, err := yaml.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				if obj, err := decode(changed); err == nil {
					read++
					checkFact(t, mapper, obj)
				}
			}
		})
	}
	if read < 1000 {
		t.Errorf("only %d objects were read", read)
	}
}

// places calls try with a setter for each place in a value, and restores the place afterwards.
func places(value any, try func(set func(any))) {
	visit := func(was any, set func(any)) {
		places(was, try)
		try(set)
		set(was)
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			visit(value[name], func(v any) { value[name] = v })
		}
	case []any:
		for i := range value {
			visit(value[i], func(v any) { value[i] = v })
		}
	}
}

// checkFact checks what must be true for every object: it is not changed, its Fact is the same
// each time and has sealed content or none, and each Problem fits into a status.
func checkFact(t *testing.T, mapper *source.Mapper, obj runtime.Object) {
	t.Helper()
	before := obj.DeepCopyObject()
	fact, ok := mapper.Fact(obj)
	if !equality.Semantic.DeepEqual(before, obj) {
		t.Errorf("%v was changed:\n%s", fact.Object, cmp.Diff(before, obj))
	}
	again, _ := newMapper().Fact(before)
	if !ok {
		return
	}
	if (fact.Content == nil) != (again.Content == nil) || fact.Content != nil && fact.Content.Digest() != again.Content.Digest() {
		t.Errorf("%v says two things", fact.Object)
	}
	if !slices.Equal(fact.Problems, again.Problems) {
		t.Errorf("%v has other Problems the second time:\n%s", fact.Object, cmp.Diff(fact.Problems, again.Problems))
	}
	for _, p := range fact.Problems {
		if p.Object != fact.Object || p.Reason == "" || p.Field == "" || p.Message == "" || strings.Contains(p.Message, "\n") {
			t.Errorf("Problem %+v", p)
		}
	}
	for _, c := range source.Conditions(nil, fact.Problems, 1, metav1.Now()) {
		if len(c.Message) > 32768 || len(c.Reason) > 1024 || c.Reason == "" {
			t.Errorf("condition %+v", c)
		}
	}
}
