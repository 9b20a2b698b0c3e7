package chart_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

const namespace = "osm-system"

// render renders the chart with values that are YAML.
func render(t *testing.T, values string) (*chart.Release, error) {
	t.Helper()
	var v map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	return chart.Render(t.Context(), namespace, v)
}

// document is one object, as text and decoded. Its name is like
// "Role/outrigger-injector".
type document struct {
	name, text string
	object     runtime.Object
}

// documents renders the chart and decodes its objects as strictly as an API server can:
// unknown fields and duplicate keys are errors.
func documents(t *testing.T, values string) []document {
	t.Helper()
	release, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []document
	seen := map[string]bool{}
	for _, text := range append(release.CRDs, release.Objects...) {
		object, kind, err := decoder.Decode([]byte(text), nil, nil)
		if runtime.IsNotRegisteredError(err) && strings.Contains(text, "apiVersion: monitoring.coreos.com/v1\n") {
			object, kind, err = unstructured.UnstructuredJSONScheme.Decode(toJSON(t, text), nil, nil)
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		d := document{kind.Kind + "/" + accessor.GetName(), text, object}
		if seen[d.name] {
			t.Errorf("%s occurs twice", d.name)
		}
		seen[d.name] = true
		all = append(all, d)
	}
	return all
}

// TestHighAvailabilityIsTested checks that the golden file uses the values that users get.
func TestHighAvailabilityIsTested(t *testing.T) {
	golden, err := txtar.ParseFile("testdata/ha.txtar")
	if err != nil {
		t.Fatal(err)
	}
	values, err := chart.FS.ReadFile("values-ha.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(values), string(golden.Files[0].Data)); diff != "" {
		t.Errorf("testdata/ha.txtar has other values (-chart +testdata):\n%s", diff)
	}
}

// toJSON converts YAML without duplicate keys.
func toJSON(t *testing.T, text string) []byte {
	t.Helper()
	var object map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// find returns the object of that name, or the zero value.
func find[T runtime.Object](all []document, name string) (object T) {
	for _, d := range all {
		if d.name == name {
			object, _ = d.object.(T)
		}
	}
	return object
}

// TestGolden renders the values of each file in testdata. The file of the defaults contains
// all objects, the others those that differ from the defaults.
func TestGolden(t *testing.T) {
	defaults := map[string]string{}
	for _, d := range documents(t, "") {
		defaults[d.name] = d.text
	}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			want, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			values := want.Files[0]
			release, err := render(t, string(values.Data))
			if err != nil {
				t.Fatal(err)
			}
			all := documents(t, string(values.Data))
			checkPods(t, all)
			checkInjectionConfig(t, all)

			common := defaults
			if len(values.Data) == 0 {
				common = nil
			}
			got := txtar.Format(&txtar.Archive{Comment: want.Comment, Files: []txtar.File{
				values,
				{Name: "objects.yaml", Data: difference(all, common)},
				{Name: "notes.txt", Data: []byte(release.Notes)},
			}})
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(txtar.Format(want)), string(got)); diff != "" {
				t.Errorf("run UPDATE=1 go test ./charts/... and review the change (-want +got):\n%s", diff)
			}
		})
	}
}

// difference returns the names of the documents that only common has, followed by the
// documents that differ from common, without CRDs.
func difference(all []document, common map[string]string) []byte {
	var missing []string
	for name := range common {
		if find[runtime.Object](all, name) == nil {
			missing = append(missing, fmt.Sprintf("# without %s\n", name))
		}
	}
	slices.Sort(missing)
	out := bytes.NewBufferString(strings.Join(missing, ""))
	for _, d := range all {
		_, isCRD := d.object.(*apiextensionsv1.CustomResourceDefinition)
		if !isCRD && d.text != common[d.name] {
			fmt.Fprintf(out, "---\n%s\n", strings.TrimSpace(d.text))
		}
	}
	return out.Bytes()
}

// checkPods checks that all pods satisfy the Pod Security level "restricted".
func checkPods(t *testing.T, all []document) {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for _, d := range all {
		deployment, ok := d.object.(*appsv1.Deployment)
		if !ok {
			continue
		}
		pod := &deployment.Spec.Template
		for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				t.Errorf("%s: %s: %s", d.name, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
	}
}

// checkInjectionConfig checks that the injector accepts its configuration.
func checkInjectionConfig(t *testing.T, all []document) {
	t.Helper()
	for _, d := range all {
		object, ok := d.object.(*corev1.ConfigMap)
		if !ok || !strings.HasPrefix(object.Name, "outrigger-injector") {
			continue
		}
		if _, err := inject.NewConfig(object.Data["config"], object.Data["values"]); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	}
}

func TestFolderIsAChartForHelm(t *testing.T) {
	folder, err := loader.LoadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	if err := folder.Validate(); err != nil {
		t.Error(err)
	}
	embedded := map[string]bool{}
	err = fs.WalkDir(chart.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		embedded[name] = !entry.IsDir()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range folder.Raw {
		if !embedded[file.Name] && file.Name != ".helmignore" {
			t.Errorf("Helm takes %s for a part of the chart, and it is not embedded", file.Name)
		}
	}
}
