package inject_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// example is the example in a row of docs/injection.md.
type example struct {
	Namespace map[string]any `json:"namespace,omitempty"`
	Pod       map[string]any `json:"pod,omitempty"`
	Config    map[string]any `json:"config,omitempty"`
}

// row is one row of a table, without the column in the middle.
type row struct {
	rule, outcome, reason string
	example               example
}

// tables reads the tables of docs/injection.md whose last column is an example.
func tables(t *testing.T) map[string][]row {
	t.Helper()
	doc, err := os.ReadFile("../../docs/injection.md")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]row)
	section := ""
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = heading
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		last := cells[len(cells)-1]
		if !strings.HasPrefix(line, "|") || !strings.HasPrefix(last, "`") || section == "What a pod can ask for" || section == "Annotations of Istio" {
			continue
		}
		var r row
		switch len(cells) {
		case 5:
			r = row{rule: cells[0], outcome: cells[2], reason: strings.Trim(cells[3], "`")}
		case 3:
			r = row{reason: strings.Trim(cells[0], "`")}
		default:
			t.Fatalf("a row with %d columns: %s", len(cells), line)
		}
		if err := yaml.UnmarshalStrict([]byte("{"+strings.Trim(last, "`")+"}"), &r.example); err != nil {
			t.Fatalf("%s: the example is not YAML: %v", line, err)
		}
		found[section] = append(found[section], r)
	}
	return found
}

// decideExample merges the examples, the first one last, into a monitored namespace
// and an ordinary pod, and injects.
func decideExample(t *testing.T, examples ...example) inject.Result {
	t.Helper()
	return decideAs(t, "", examples...)
}

// decideAs is decideExample by the injector of a revision.
func decideAs(t *testing.T, revision string, examples ...example) inject.Result {
	t.Helper()
	namespace := []byte(`{"name":"shop","labels":{"openservicemesh.io/monitored-by":"osm"}}`)
	pod := []byte(`{"metadata":{"name":"app"},"spec":{"containers":[{"name":"app","image":"app"}]}}`)
	config := []byte(`{}`)
	for _, e := range slices.Backward(examples) {
		namespace = merge(t, namespace, e.Namespace)
		pod = merge(t, pod, e.Pod)
		config = merge(t, config, e.Config)
	}
	w := ordinary()
	w.config, w.revision = string(config), revision
	var ns struct {
		Name                string
		Labels, Annotations map[string]string
	}
	if err := json.Unmarshal(namespace, &ns); err != nil {
		t.Fatal(err)
	}
	w.namespace = inject.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}
	return w.injector(t).Explain(t.Context(), w.request(string(pod)))
}

func merge(t *testing.T, base []byte, over map[string]any) []byte {
	t.Helper()
	if over == nil {
		return base
	}
	patch, err := json.Marshal(over)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := jsonpatch.MergePatch(base, patch)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}

func TestDecisionTable(t *testing.T) {
	rows := tables(t)["Who gets a sidecar"]
	var rules []string
	for _, r := range rows {
		if len(rules) == 0 || rules[len(rules)-1] != r.rule {
			rules = append(rules, r.rule)
		}
	}
	if d := cmp.Diff(inject.RuleNames(), rules); d != "" {
		t.Fatalf("the rules in the code (-) and in docs/injection.md (+) differ:\n%s", d)
	}
	for i, r := range rows {
		t.Run(r.reason, func(t *testing.T) {
			got := decideExample(t, r.example).Decision
			if string(got.Outcome) != r.outcome || string(got.Reason) != r.reason {
				t.Errorf("decision is %s %s (%s), want %s %s", got.Outcome, got.Reason, got.Message, r.outcome, r.reason)
			}
			if got.Message == "" {
				t.Error("the decision has no message")
			}
			last := got.Steps[len(got.Steps)-1]
			if last.Rule != r.rule || !last.Decided {
				t.Errorf("the last step is %+v, want a decision of %s", last, r.rule)
			}
		})
		for _, later := range rows[i+1:] {
			if later.rule == r.rule {
				continue
			}
			t.Run(r.reason+" before "+later.reason, func(t *testing.T) {
				got := decideExample(t, r.example, later.example).Decision
				if string(got.Reason) != r.reason {
					t.Errorf("decision is %s (%s), want %s", got.Reason, got.Message, r.reason)
				}
			})
		}
	}
}

// asked enables injection for examples that do not.
var asked = example{Namespace: map[string]any{"annotations": map[string]any{metadata.Injection: "enabled"}}}

func TestDenials(t *testing.T) {
	for _, r := range tables(t)["Pods that are denied"] {
		t.Run(r.reason, func(t *testing.T) {
			got := decideExample(t, r.example, asked)
			if got.Decision.Outcome != inject.Deny || string(got.Decision.Reason) != r.reason {
				t.Errorf("decision is %+v, want deny %s", got.Decision, r.reason)
			}
			if len(got.Patch) != 0 || got.Decision.Message == "" {
				t.Errorf("a denial has the patch %v and the message %q", got.Patch, got.Decision.Message)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for _, r := range tables(t)["Warnings"] {
		t.Run(r.reason, func(t *testing.T) {
			got := decideExample(t, r.example, asked)
			if got.Decision.Outcome != inject.Inject {
				t.Fatalf("decision is %+v, want inject", got.Decision)
			}
			var codes []string
			for _, w := range got.Warnings {
				codes = append(codes, string(w.Code))
			}
			// An image may lack several features, each with a warning of its own.
			if d := cmp.Diff([]string{r.reason}, slices.Compact(codes)); d != "" {
				t.Errorf("warnings differ (-want +got):\n%s", d)
			}
		})
	}
	if quiet := decideExample(t, asked); len(quiet.Warnings) != 0 {
		t.Errorf("an ordinary pod has the warnings %v", quiet.Warnings)
	}
}
