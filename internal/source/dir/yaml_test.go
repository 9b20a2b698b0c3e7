package dir_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// routes returns an HTTPRoute of five lines for each text of rules.
func routes(rules ...string) string {
	var b strings.Builder
	for i, text := range rules {
		fmt.Fprintf(&b, "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r%d}\nspec: {parentRefs: [{group: \"\", kind: Service, name: cart}], rules: [%s]}\n---\n", i, text)
	}
	return b.String()
}

// TestLoadYAML checks what is said about mistakes that many make in YAML, and about routes that
// the API server refuses.
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
		{"routes that the API server refuses", cart + "---\n" + routes(`{matches: [{method: PURGE}]}`, `{timeouts: {request: 1s, backendRequest: 2s}}`, `{timeouts: {request: 1.5s}}`,
			`{name: one}, {name: one}`, `{matches: [{path: {type: Exact, value: //x}}]}`, strings.Repeat("{}, ", 17), `{matches: [{path: {type: RegularExpression, value: "//.*"}}]}`), []string{
			`HTTPRoute default/r0: Invalid: DIR/all.yaml:5: spec.rules[0].matches[0].method: "PURGE" is none of GET, HEAD, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE, PATCH; the API server refuses the object, so correct it`,
			`HTTPRoute default/r1: Invalid: DIR/all.yaml:10: spec.rules[0].timeouts.backendRequest: it is longer than the timeout of the request; the API server refuses the object, so correct it`,
			`HTTPRoute default/r2: Invalid: DIR/all.yaml:15: spec.rules[0].timeouts.request: "1.5s" is not a duration of Gateway API; write whole numbers, such as 1s500ms; the API server refuses the object, so correct it`,
			`HTTPRoute default/r3: Invalid: DIR/all.yaml:20: spec.rules[1].name: another rule has the name "one" too; the API server refuses the object, so correct it`,
			`HTTPRoute default/r4: Invalid: DIR/all.yaml:25: spec.rules[0].matches[0].path.value: "//x" has an empty element, an element of dots or an encoded slash; the API server refuses the object, so correct it`,
			`HTTPRoute default/r5: Invalid: DIR/all.yaml:30: spec.rules: there are 17, and may be 16; the API server refuses the object, so correct it`}},
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
