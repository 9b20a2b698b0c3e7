package dir_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/source/dir"
)

// routes returns an HTTPRoute of five lines for each text of rules.
func routes(rules ...string) string {
	var b strings.Builder
	for i, text := range rules {
		fmt.Fprintf(&b, "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r%d}\nspec: {parentRefs: [{group: \"\", kind: Service, name: cart}], rules: [%s]}\n---\n", i, text)
	}
	return b.String()
}

// TestLoadYAML checks what is said about mistakes that many make in YAML.
func TestLoadYAML(t *testing.T) {
	const cart = "apiVersion: v1\nkind: Service\nmetadata: {name: cart, namespace: shop}\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"a name that YAML takes for true", cart + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: y}\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml:5: name is true, not a text; without quotes, YAML takes y, yes, no, on, off, true, 1234 and 1e3 for something else than a text, so put the value in quotes"}},
		{"a text that YAML takes for true", cart + "---\napiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: {name: a}\nspec: {service: on}\n", []string{
			"TrafficSplit default/a: Unreadable: DIR/all.yaml:5: spec.service must be a text, and is true or false; without quotes, YAML takes y, yes, no, on, off, true, 1234 and 1e3 for something else than a text, so put the value in quotes"}},
		{"merge keys", cart + "---\napiVersion: v1\nkind: List\nitems:\n- &base {apiVersion: v1, kind: Service, metadata: &m {name: a, namespace: shop}}\n- {<<: *base, metadata: {<<: *m, name: b}}\n", nil},
		{"a key twice beside a merge key", cart + "---\n<<: {apiVersion: v1}\nkind: Pod\nkind: Pod\n", []string{
			`File DIR/all.yaml: Unreadable: DIR/all.yaml: in the document that begins on line 5: yaml: unmarshal errors: line 7: key "kind" already set in map`}},
		{"a template of Helm", cart + "---\n{{ if .Values.x }}\nkind: Pod\n---\nkind: Pod\nmetadata:\n  name: {{ .Values.name }}\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml: in the document that begins on line 5: line 5 has {{, as a template of Helm; render it first, with helm template, and read the result",
			"File DIR/all.yaml: Unreadable: DIR/all.yaml: in the document that begins on line 8: line 10 has {{, as a template of Helm; render it first, with helm template, and read the result"}},
		{"a mapping as a key", cart + "---\n? {a: b}\n: c\n", []string{
			"File DIR/all.yaml: Unreadable: DIR/all.yaml: in the document that begins on line 5: a key is a mapping or a list; write a text, and quote one that begins with { or ["}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := loadText(t, options(), tt.text)
			r.wantProblems(t, tt.want...)
			if !slices.Contains(r.names("Service"), "shop/cart") {
				t.Error("what is right is not read")
			}
		})
	}
}

// TestRefusedRoutes checks that each mistake for which the API server refuses a route is named
// once, be it known to the mesh or not.
func TestRefusedRoutes(t *testing.T) {
	const method = "spec.rules[0].matches[0].method"
	tests := []struct{ rules, want string }{
		{`{matches: [{method: PURGE}]}`, method},
		{`{timeouts: {request: 1s, backendRequest: 2s}}`, "spec.rules[0].timeouts.backendRequest"},
		{`{timeouts: {request: 1.5s}}`, "spec.rules[0].timeouts.request"},
		{`{name: one}, {name: one}`, "spec.rules[1].name"},
		{`{matches: [{path: {type: Exact, value: //x}}]}`, "spec.rules[0].matches[0].path.value"},
		{`{matches: [{path: {value: /x/../y}}]}`, "spec.rules[0].matches[0].path.value"},
		{`{matches: [{path: {value: x}}]}`, "spec.rules[0].matches[0].path.value"},
		{`{matches: [{path: {value: "/a b"}}]}`, "spec.rules[0].matches[0].path.value"},
		{`{matches: [{path: {value: /` + strings.Repeat("a", 1024) + `}}]}`, "spec.rules[0].matches[0].path.value"},
		{`{matches: [` + strings.Repeat("{}, ", 65) + `]}`, "spec.rules[0].matches"},
		{strings.Repeat("{}, ", 17), "spec.rules"},
		{`{matches: [{path: {type: RegularExpression, value: "//.*"}}]}`, ""},
		{`{matches: [{path: {value: /x}, method: GET}], timeouts: {request: 2s, backendRequest: 1500ms}, name: one}, {name: two}`, ""},
	}
	var rules []string
	for _, tt := range tests {
		rules = append(rules, tt.rules)
	}
	const cart = "apiVersion: v1\nkind: Service\nmetadata: {name: cart}\nspec: {ports: [{port: 80}]}\n---\n"
	facts, problems, err := dir.Load([]string{write(t, map[string]string{"all.yaml": cart + routes(rules...)})}, options())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts {
		problems = append(problems, f.Problems...)
	}
	for i, tt := range tests {
		var found []string
		for _, p := range problems {
			if p.Object.Kind == "HTTPRoute" && p.Object.Name == fmt.Sprintf("r%d", i) {
				found = append(found, p.Field)
			}
		}
		if strings.Join(found, " ") != tt.want {
			t.Errorf("of the rules %.60s the Problems are of the fields %q, want %q", tt.rules, found, tt.want)
		}
	}
}
