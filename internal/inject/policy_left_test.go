package inject_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
)

// TestPoliciesLeft has settings for which no policy may be made, because it would inject something
// else than the webhook.
func TestPoliciesLeft(t *testing.T) {
	template := func(text string) string {
		return "defaultTemplates: [more, sidecar]\ntemplates:\n  more: |\n    " + strings.ReplaceAll(text, "\n", "\n    ")
	}
	container := "spec:\n  containers:\n  - {name: more, image: more, args: [%s]}"
	with := func(arg string) string { return template(strings.Replace(container, "%s", arg, 1)) }
	for name, test := range map[string]struct{ class, config, want string }{
		"prints":              {"envoy", with("{{ .Namespace }}"), ""},
		"a label":             {"envoy", with(`"{{ .Pod.Label "a" }}"`), "the template more depends on more of a pod"},
		"computes":            {"envoy", with("{{ .Namespace | plain | upper }}"), "the template more depends on more of a pod"},
		"tests":               {"envoy", with(`{{ if eq .Namespace "shop" }}a{{ end }}`), "the template more depends on more of a pod"},
		"containers":          {"envoy", with(`{{ range .Pod.Containers }}{{ .Name }}{{ end }}`), "the template more depends on more of a pod"},
		"a field of the spec": {"envoy", template("spec:\n  dnsPolicy: None"), "its templates set the field spec.dnsPolicy"},
		"first container":     {"envoy", template("spec:\n  containers:\n  - name: more\n    image: more\n    lifecycle: {postStart: {exec: {command: [a]}}}"), "its templates put a container before the pod's own"},
		"only fields":         {"envoy", template("spec:\n  containers:\n  - name: more\n    args: [a]"), "only add fields to the container more"},
		"ordinary containers": {"envoy", "nativeSidecars: \"false\"", "an admission policy injects native sidecars only"},
		"istio":               {"envoy", "compat: {istio: true}", "does not read Istio's labels"},
		"without a proxy":     {"grpc", "", "the template grpc depends on more of a pod"},
		"a driver's code":     {"scripted", "", "depends on more of a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			w := ordinary()
			w.config, w.configurator.class = test.config, test.class
			p := policies(t, w, policy.ModePolicy, test.class)
			if got := p.Left[test.class]; (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("the class is left because of %q, want %q", got, test.want)
			}
			// Without a policy for the class the guard is alone.
			if want := map[bool]int{true: 4, false: 2}[test.want == ""]; len(p.Objects) != want {
				t.Errorf("there are %d objects, want %d", len(p.Objects), want)
			}
		})
	}
}

// TestPoliciesAreStable checks that equal settings give equal policies, and others do not.
func TestPoliciesAreStable(t *testing.T) {
	w := ordinary()
	first := policies(t, w, policy.ModePolicy, "envoy", "haproxy", "pipy", "null")
	for range 5 {
		if d := cmp.Diff(first, policies(t, w, policy.ModePolicy, "envoy", "haproxy", "pipy", "null")); d != "" {
			t.Fatalf("two runs differ:\n%s", d)
		}
	}
	w.config = "policy: enabled"
	names := func(p *policy.Policies) map[string]bool {
		all := make(map[string]bool)
		for _, o := range p.Objects {
			all[o.(interface{ GetName() string }).GetName()] = true
		}
		return all
	}
	before := names(first)
	for name := range names(policies(t, w, policy.ModePolicy, "envoy", "haproxy", "pipy", "null")) {
		if before[name] {
			t.Errorf("%s has the same name with another policy", name)
		}
	}
}
