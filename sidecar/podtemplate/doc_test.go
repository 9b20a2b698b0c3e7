package podtemplate

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

func document(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section returns the document's text between two others.
func section(t *testing.T, from, to string) string {
	t.Helper()
	_, rest, ok := strings.Cut(document(t), from)
	text, _, okTo := strings.Cut(rest, to)
	if !ok || !okTo {
		t.Fatalf("docs/templates.md has no text from %q to %q", from, to)
	}
	return text
}

// TestDocumentedData compares the tables with the methods that templates can use.
func TestDocumentedData(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `([.A-Za-z]+)(?: \"NAME\"| DEFAULT)?` \\| (\\w+) \\|")
	documented := func(from, to string) map[string]string {
		rows := make(map[string]string)
		for _, m := range row.FindAllStringSubmatch(section(t, from, to), -1) {
			rows[m[1]] = m[2]
		}
		return rows
	}
	want := methods("", reflect.TypeFor[*data]())
	want[".Values"] = kind(reflect.TypeFor[map[string]any]())
	maps.Copy(want, methods(".Pod", reflect.TypeFor[pod]()))
	if diff := cmp.Diff(want, documented("## What a template sees", "Each of `.Pod.Containers` has:")); diff != "" {
		t.Errorf("what a template sees (-program +document):\n%s", diff)
	}
	if diff := cmp.Diff(methods("", reflect.TypeFor[container]()), documented("Each of `.Pod.Containers` has:", "## Functions")); diff != "" {
		t.Errorf("what a container has (-program +document):\n%s", diff)
	}
}

// methods returns the kinds of the results of a type's methods.
func methods(prefix string, typ reflect.Type) map[string]string {
	kinds := make(map[string]string)
	for m := range typ.Methods() {
		kinds[prefix+"."+m.Name] = kind(m.Type.Out(0))
	}
	return kinds
}

// kind returns the document's name for a type.
func kind(typ reflect.Type) string {
	if typ == reflect.TypeFor[Value]() || typ == reflect.TypeFor[keptValue]() {
		return "value"
	}
	switch typ.Kind() {
	case reflect.String:
		return "text"
	case reflect.Int32, reflect.Uint32:
		return "number"
	case reflect.Slice:
		return "list"
	case reflect.Struct:
		return "object"
	}
	return typ.Kind().String()
}

func TestDocumentedFunctions(t *testing.T) {
	known := functions()
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+) [^`]*` \\|").FindAllStringSubmatch(section(t, "## Functions", "## Values of users"), -1) {
		if known[m[1]] == nil {
			t.Errorf("the function %s is documented, and there is none", m[1])
		}
		delete(known, m[1])
	}
	for _, name := range []string{"plain", "required", "toJson", "toYaml"} {
		if known[name] != nil {
			t.Errorf("the function %s is not documented", name)
		}
	}
}

func TestDocumentedBlocks(t *testing.T) {
	names := func(pattern, text string) []string {
		var found []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		return found
	}
	defined := names(`\{\{-? define "([^"]+)"`, blocks)
	documented := names("(?m)^\\| `(outrigger\\.\\w+)` \\|", section(t, "## Blocks", "## Changing"))
	if diff := cmp.Diff(defined, documented); diff != "" {
		t.Errorf("blocks (-program +document):\n%s", diff)
	}
}

// documentedTemplates returns the templates of an example in the document.
func documentedTemplates(t *testing.T, file string) map[string]string {
	t.Helper()
	var config struct{ Templates map[string]string }
	if err := yaml.Unmarshal([]byte(section(t, "```yaml file="+file+"\n", "```")), &config); err != nil {
		t.Fatal(err)
	}
	return config.Templates
}

func TestDocumentedExample(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(section(t, "```yaml file=values.yaml\n", "```")), &values); err != nil {
		t.Fatal(err)
	}
	set, err := NewSet(documentedTemplates(t, "config.yaml"), values)
	if err != nil {
		t.Fatal(err)
	}
	inj := arguments("")
	for _, name := range set.Names() {
		if err := set.Apply(inj, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	want := corev1.Container{Name: "dump", Image: "example.com/dump:2", Args: []string{"--account", "cart", "--pod", "cart-"}}
	if diff := cmp.Diff(want, inj.Pod.Spec.Containers[2]); diff != "" || inj.Pod.Labels["region"] != "north" {
		t.Errorf("the region is %q, and the container (-want +got):\n%s", inj.Pod.Labels["region"], diff)
	}
}

func TestDocumentedChange(t *testing.T) {
	set, err := NewSet(documentedTemplates(t, "change.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, native := range []bool{true, false} {
		inj := arguments("")
		inj.Sidecar.Native = native
		// The result must not depend on the pod's earlier injection.
		for range 2 {
			if err := set.Apply(inj, "tuned", nil); err != nil {
				t.Fatal(err)
			}
			if err := Apply(inj, "test", `{{ template "outrigger.pod" . }}`, &agentspec.Spec{Command: []string{"/proxy"}}); err != nil {
				t.Fatal(err)
			}
			list := inj.Pod.Spec.Containers
			if native {
				list = inj.Pod.Spec.InitContainers
			}
			at := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == "outrigger-proxy" })
			if at < 0 {
				t.Fatalf("native %t: there is no sidecar in %v", native, list)
			}
			if c := list[at]; c.Image != "proxy:1" || c.TerminationMessagePolicy != "FallbackToLogsOnError" || c.Env[0].Name != "MALLOC_ARENA_MAX" {
				t.Errorf("native %t: the sidecar is %v", native, c)
			}
		}
	}
}
