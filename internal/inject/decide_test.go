package inject_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// decision is one row of TestDecide: settings for a pod, and the expected decision.
type decision struct {
	name string
	// namespace, labels and annotations are YAML maps; spec is that of the pod.
	// By default the namespace is called shop and monitored.
	namespace, labels, annotations, spec string
	// config is the injection config, revision the injector's; "default" if empty.
	config, revision string

	outcome inject.Outcome
	reason  inject.Reason
	// message is a part of the decision's message.
	message string
}

const istioOn = "compat: {istio: true}"

// statusOf is the status annotation of a pod that a revision has injected.
func statusOf(revision string) string {
	return `{openservicemesh.io/sidecar-status: '{"version":1,"revision":"` + revision + `","templates":["envoy"]}'}`
}

// TestDecide checks every rule of the decision table with all of its inputs;
// docs/injection.md has one example for each reason.
func TestDecide(t *testing.T) {
	on := "{annotations: {openservicemesh.io/sidecar-injection: enabled}}"
	rows := []decision{
		// Namespaces that are exempt, whatever their labels.
		{name: "kube-system", namespace: "{name: kube-system}", outcome: inject.Skip, reason: "namespace_exempt", message: "kube-system is Kubernetes' own"},
		{name: "kube-public", namespace: "{name: kube-public}", outcome: inject.Skip, reason: "namespace_exempt", message: "kube-public is Kubernetes' own"},
		{name: "kube-node-lease", namespace: "{name: kube-node-lease}", outcome: inject.Skip, reason: "namespace_exempt", message: "kube-node-lease is Kubernetes' own"},
		{name: "the control plane's own", namespace: "{name: osm-system}", outcome: inject.Skip, reason: "namespace_exempt", message: "osm-system is the control plane's own"},
		{name: "exempt although the pod asks", namespace: "{name: kube-system}", labels: "{openservicemesh.io/sidecar-injection: enabled}", outcome: inject.Skip, reason: "namespace_exempt"},
		{name: "a name that only begins so", namespace: "{name: kube-system-2, annotations: {openservicemesh.io/sidecar-injection: enabled}}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},

		// Ignored: the value of the label does not matter.
		{name: "ignored", namespace: `{labels: {openservicemesh.io/ignore: "true"}}`, outcome: inject.Skip, reason: "namespace_ignored"},
		{name: "ignored with an empty value", namespace: `{labels: {openservicemesh.io/ignore: ""}}`, outcome: inject.Skip, reason: "namespace_ignored"},
		{name: "ignored with the value false", namespace: `{labels: {openservicemesh.io/ignore: "false"}}`, outcome: inject.Skip, reason: "namespace_ignored"},
		{name: "an annotation of that name means nothing", namespace: `{annotations: {openservicemesh.io/ignore: "true", openservicemesh.io/sidecar-injection: enabled}}`, outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "nor does the pod's label", namespace: on, labels: `{openservicemesh.io/ignore: "true"}`, outcome: inject.Inject, reason: "namespace_annotation_enabled"},

		// Monitored by this mesh, by another, by none.
		{name: "no mesh", namespace: "{labels: {openservicemesh.io/monitored-by: null}}", outcome: inject.Skip, reason: "namespace_not_monitored", message: "has no label openservicemesh.io/monitored-by=osm"},
		{name: "another mesh", namespace: "{labels: {openservicemesh.io/monitored-by: mesh2}}", outcome: inject.Skip, reason: "namespace_not_monitored", message: "monitored by mesh mesh2, not by osm"},
		{name: "a mesh without a name", namespace: `{labels: {openservicemesh.io/monitored-by: ""}}`, outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "the mesh's name in capitals is another", namespace: "{labels: {openservicemesh.io/monitored-by: OSM}}", outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "an annotation does not monitor", namespace: "{labels: {openservicemesh.io/monitored-by: null}, annotations: {openservicemesh.io/monitored-by: osm}}", outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "not monitored although the pod asks", namespace: "{labels: {openservicemesh.io/monitored-by: null}}", labels: "{openservicemesh.io/sidecar-injection: enabled}", outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "Istio's labels mean nothing without compat.istio", namespace: "{labels: {openservicemesh.io/monitored-by: null, istio-injection: enabled}}", outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "Istio's label brings the namespace", config: istioOn, namespace: "{labels: {openservicemesh.io/monitored-by: null, istio-injection: enabled}}", outcome: inject.Inject, reason: "istio_namespace_enabled"},
		{name: "Istio's label forbids", config: istioOn, namespace: "{labels: {openservicemesh.io/monitored-by: null, istio-injection: disabled}}", labels: `{sidecar.istio.io/inject: "true"}`, outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "Istio's label of the pod brings it", config: istioOn, namespace: "{labels: {openservicemesh.io/monitored-by: null}}", labels: `{sidecar.istio.io/inject: "true"}`, outcome: inject.Inject, reason: "istio_label_enabled"},
		{name: "Istio's annotation of the pod does not", config: istioOn, namespace: "{labels: {openservicemesh.io/monitored-by: null}}", annotations: `{sidecar.istio.io/inject: "true"}`, outcome: inject.Skip, reason: "namespace_not_monitored"},
		{name: "Istio's revision of the namespace", config: istioOn, revision: "canary", namespace: "{labels: {openservicemesh.io/monitored-by: null, istio.io/rev: canary}}", outcome: inject.Inject, reason: "istio_namespace_enabled"},
		{name: "Istio's revision of the pod", config: istioOn, revision: "canary", namespace: "{labels: {openservicemesh.io/monitored-by: null}}", labels: "{istio.io/rev: canary}", outcome: inject.Inject, reason: "istio_namespace_enabled"},
		{name: "another revision of Istio's", config: istioOn, namespace: "{labels: {openservicemesh.io/monitored-by: null, istio.io/rev: canary}}", outcome: inject.Skip, reason: "namespace_not_monitored"},

		// The revision: the pod's, the namespace's, or the default.
		{name: "no revision, default injector", namespace: on, outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "no revision, another injector", namespace: on, revision: "canary", outcome: inject.Skip, reason: "other_revision", message: "neither pod nor namespace chooses a revision; this is revision canary"},
		{name: "the namespace's revision", namespace: "{labels: {openservicemesh.io/rev: canary}}", outcome: inject.Skip, reason: "other_revision", message: "namespace shop chooses revision canary; this is revision default"},
		{name: "the namespace's revision is this one", revision: "canary", namespace: "{labels: {openservicemesh.io/rev: canary}, annotations: {openservicemesh.io/sidecar-injection: enabled}}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "the pod's revision", namespace: on, labels: "{openservicemesh.io/rev: canary}", outcome: inject.Skip, reason: "other_revision", message: "the pod chooses revision canary; this is revision default"},
		{name: "the pod's revision beats the namespace's, to this one", revision: "canary", namespace: "{labels: {openservicemesh.io/rev: stable}, annotations: {openservicemesh.io/sidecar-injection: enabled}}", labels: "{openservicemesh.io/rev: canary}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "the pod's revision beats the namespace's, to another", revision: "stable", namespace: "{labels: {openservicemesh.io/rev: stable}, annotations: {openservicemesh.io/sidecar-injection: enabled}}", labels: "{openservicemesh.io/rev: canary}", outcome: inject.Skip, reason: "other_revision", message: "the pod chooses revision canary"},
		{name: "the pod goes back to default", namespace: "{labels: {openservicemesh.io/rev: canary}, annotations: {openservicemesh.io/sidecar-injection: enabled}}", labels: "{openservicemesh.io/rev: default}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "an empty revision is none of anybody's", namespace: on, labels: `{openservicemesh.io/rev: ""}`, outcome: inject.Skip, reason: "other_revision"},
		{name: "an annotation chooses no revision", namespace: on, annotations: "{openservicemesh.io/rev: canary}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "ours beats Istio's", config: istioOn, namespace: "{labels: {openservicemesh.io/rev: default, istio.io/rev: canary}, annotations: {openservicemesh.io/sidecar-injection: enabled}}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "Istio's revision without compat.istio", namespace: on, labels: "{istio.io/rev: canary}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "Istio's revision of the monitored pod", config: istioOn, namespace: on, labels: "{istio.io/rev: canary}", outcome: inject.Skip, reason: "other_revision", message: "the pod chooses revision canary"},
		{name: "istio-injection beats istio.io/rev on a namespace", config: istioOn, namespace: "{labels: {istio-injection: enabled, istio.io/rev: canary}}", outcome: inject.Inject, reason: "istio_namespace_enabled"},

		{name: "the host's network", namespace: on, spec: "{hostNetwork: true}", outcome: inject.Skip, reason: "host_network"},
		{name: "the host's network although the pod asks", labels: "{openservicemesh.io/sidecar-injection: enabled}", spec: "{hostNetwork: true}", outcome: inject.Skip, reason: "host_network"},
		{name: "the host's PIDs do not matter", namespace: on, spec: "{hostPID: true}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},

		// Existing sidecars: each of the other meshes', in either list.
		{name: "Istio's container", namespace: on, spec: "{containers: [{name: istio-proxy, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists", message: "container istio-proxy is a sidecar of Istio"},
		{name: "Istio's native sidecar", namespace: on, spec: "{initContainers: [{name: istio-proxy, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists", message: "container istio-proxy is a sidecar of Istio"},
		{name: "Linkerd's container", namespace: on, spec: "{containers: [{name: linkerd-proxy, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists", message: "container linkerd-proxy is a sidecar of Linkerd"},
		{name: "Linkerd's native sidecar", namespace: on, spec: "{initContainers: [{name: linkerd-proxy, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists", message: "container linkerd-proxy is a sidecar of Linkerd"},
		{name: "Kuma's container", namespace: on, spec: "{containers: [{name: kuma-sidecar, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists", message: "container kuma-sidecar is a sidecar of Kuma"},
		{name: "Open Service Mesh's init container", namespace: on, spec: "{initContainers: [{name: osm-init, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists", message: "container osm-init is a sidecar of Open Service Mesh"},
		{name: "Open Service Mesh's, although the pod asks", labels: "{openservicemesh.io/sidecar-injection: enabled}", spec: "{initContainers: [{name: osm-init, image: a}]}", outcome: inject.Skip, reason: "sidecar_exists"},
		{name: "a name that only begins so", namespace: on, spec: "{containers: [{name: istio-proxy-2, image: a}]}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},

		// Already injected: again by this revision, but not by another.
		{name: "injected by this revision", namespace: on, annotations: statusOf("default"), outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "injected by another revision", namespace: on, annotations: statusOf("canary"), outcome: inject.Skip, reason: "sidecar_exists", message: "revision canary has injected the pod already"},
		{name: "injected by another revision although the pod asks", labels: "{openservicemesh.io/sidecar-injection: enabled}", annotations: statusOf("canary"), outcome: inject.Skip, reason: "sidecar_exists", message: "revision canary"},
		{name: "injected by default, seen by another revision", revision: "canary", namespace: "{labels: {openservicemesh.io/rev: canary}}", annotations: statusOf("default"), outcome: inject.Skip, reason: "sidecar_exists", message: "revision default has injected the pod already"},
		{name: "injected by the revision that the pod chooses", revision: "canary", namespace: on, labels: "{openservicemesh.io/rev: canary}", annotations: statusOf("canary"), outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "injected by the namespace's revision, which the pod has left", namespace: "{labels: {openservicemesh.io/rev: canary}, annotations: {openservicemesh.io/sidecar-injection: enabled}}", labels: "{openservicemesh.io/rev: default}", annotations: statusOf("canary"), outcome: inject.Skip, reason: "sidecar_exists", message: "revision canary"},
		{name: "injected by nobody", namespace: on, annotations: `{openservicemesh.io/sidecar-status: '{"version":1}'}`, outcome: inject.Skip, reason: "sidecar_exists"},
		{name: "a status that is no JSON", namespace: on, annotations: "{openservicemesh.io/sidecar-status: injected}", outcome: inject.Deny, reason: "status_invalid"},
		{name: "a status of another version", namespace: on, annotations: `{openservicemesh.io/sidecar-status: '{"version":2,"revision":"default"}'}`, outcome: inject.Deny, reason: "status_invalid"},
		{name: "an empty status", namespace: on, annotations: `{openservicemesh.io/sidecar-status: ""}`, outcome: inject.Deny, reason: "status_invalid"},
		{name: "a status on the namespace means nothing", namespace: "{annotations: {openservicemesh.io/sidecar-status: injected, openservicemesh.io/sidecar-injection: enabled}}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},

		// Selectors: the first of several that matches; never beats always.
		{name: "the second selector", config: "neverInjectSelector: [{matchLabels: {a: b}}, {matchExpressions: [{key: job, operator: Exists}]}]", namespace: on, labels: "{job: x}", outcome: inject.Skip, reason: "never_inject_selector", message: "job"},
		{name: "no selector", config: "neverInjectSelector: [{matchLabels: {job: build}}]", namespace: on, labels: "{job: run}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},
		{name: "never beats always", config: "{neverInjectSelector: [{matchLabels: {a: b}}], alwaysInjectSelector: [{matchLabels: {a: b}}]}", labels: "{a: b}", outcome: inject.Skip, reason: "never_inject_selector"},
		{name: "always beats the namespace", config: "alwaysInjectSelector: [{matchLabels: {a: b}}]", namespace: "{annotations: {openservicemesh.io/sidecar-injection: disabled}}", labels: "{a: b}", outcome: inject.Inject, reason: "always_inject_selector"},
		{name: "annotations are not selected", config: "neverInjectSelector: [{matchLabels: {a: b}}]", namespace: on, annotations: "{a: b}", outcome: inject.Inject, reason: "namespace_annotation_enabled"},

		// Istio's own switches, and the policy.
		{name: "Istio's label of a monitored namespace", config: istioOn, namespace: "{labels: {istio-injection: enabled}}", outcome: inject.Inject, reason: "istio_namespace_enabled"},
		{name: "Istio's label against ours", config: istioOn, namespace: "{labels: {istio-injection: enabled}, annotations: {openservicemesh.io/sidecar-injection: disabled}}", outcome: inject.Skip, reason: "namespace_annotation_disabled"},
		{name: "Istio's label that forbids leaves it to the policy", config: "{compat: {istio: true}, policy: enabled}", namespace: "{labels: {istio-injection: disabled}}", outcome: inject.Inject, reason: "policy_enabled"},
		{name: "policy", config: "policy: enabled", outcome: inject.Inject, reason: "policy_enabled"},
		{name: "no policy", outcome: inject.Skip, reason: "policy_disabled"},
	}
	// Switches: ours and Istio's, on pod and namespace, by label and annotation, with
	// every value, against the opposite of all switches of lower precedence.
	for _, s := range []struct {
		rule   inject.Reason
		put    func(d *decision, value string)
		config string
	}{
		{"label", func(d *decision, v string) {
			d.labels, d.annotations = "{openservicemesh.io/sidecar-injection: "+v+"}", "{openservicemesh.io/sidecar-injection: perhaps}"
		}, ""},
		{"annotation", func(d *decision, v string) {
			d.annotations, d.labels = "{openservicemesh.io/sidecar-injection: "+v+"}", "{sidecar.istio.io/inject: perhaps}"
		}, istioOn},
		{"istio_label", func(d *decision, v string) {
			d.labels, d.annotations = "{sidecar.istio.io/inject: "+v+"}", "{sidecar.istio.io/inject: perhaps}"
		}, istioOn},
		{"istio_annotation", func(d *decision, v string) {
			d.annotations, d.namespace = "{sidecar.istio.io/inject: "+v+"}", "{labels: {openservicemesh.io/sidecar-injection: perhaps}}"
		}, istioOn},
		{"namespace_label", func(d *decision, v string) {
			d.namespace = "{labels: {openservicemesh.io/sidecar-injection: " + v + "}, annotations: {openservicemesh.io/sidecar-injection: perhaps}}"
		}, ""},
		{"namespace_annotation", func(d *decision, v string) {
			d.namespace = "{labels: {istio-injection: enabled}, annotations: {openservicemesh.io/sidecar-injection: " + v + "}}"
		}, istioOn},
	} {
		for value, want := range map[string]inject.Outcome{
			`"true"`: inject.Inject, "enabled": inject.Inject, `"yes"`: inject.Inject, "ENABLED": inject.Inject,
			`"false"`: inject.Skip, "disabled": inject.Skip, `"no"`: inject.Skip, `"No"`: inject.Skip,
			`""`: inject.Deny, `"1"`: inject.Deny, `" true"`: inject.Deny, "enable": inject.Deny,
		} {
			ends := map[inject.Outcome]inject.Reason{inject.Inject: "_enabled", inject.Skip: "_disabled", inject.Deny: "_invalid"}
			d := decision{name: string(s.rule) + " " + value, config: s.config, outcome: want, reason: s.rule + ends[want]}
			s.put(&d, value)
			rows = append(rows, d)
		}
	}
	for _, d := range rows {
		t.Run(d.name, func(t *testing.T) {
			got := d.decide(t)
			if got.Outcome != d.outcome || got.Reason != d.reason || !strings.Contains(got.Message, d.message) {
				t.Errorf("the decision is %s %s (%s), want %s %s (%s)", got.Outcome, got.Reason, got.Message, d.outcome, d.reason, d.message)
			}
		})
	}
}

func (d decision) decide(t *testing.T) inject.Decision {
	t.Helper()
	read := func(text string) map[string]any {
		var m map[string]any
		if err := yaml.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return m
	}
	e := example{Namespace: read(d.namespace), Config: read(d.config), Pod: map[string]any{
		"metadata": map[string]any{"labels": read(d.labels), "annotations": read(d.annotations)},
	}}
	if d.spec != "" {
		e.Pod["spec"] = read(d.spec)
	}
	return decideAs(t, d.revision, e).Decision
}
