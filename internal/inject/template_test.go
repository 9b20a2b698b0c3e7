package inject_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// twoTemplates are sidecars that are not the mesh's.
const twoTemplates = `
templates:
  logger: |
    metadata:
      labels: {logged: "yes"}
    spec:
      containers:
      - name: logger
        image: {{ .Values.images.logger }}
        args: [--pod, {{ .Pod.GenerateName }}, --level, {{ .LogLevel }}]
      volumes:
      - name: logs
        emptyDir: {}
  vault: |
    spec:
      initContainers:
      - name: vault
        image: vault
`

const twoValues = "images: {logger: logger:1}"

func TestTemplatesOfAnnotation(t *testing.T) {
	tests := []struct {
		names                 string
		class                 string
		templates             []string
		inits, containers     string
		probesRewritten, uuid bool
	}{
		{"logger", "", []string{"logger"}, "", "cart logger ", false, false},
		{"vault,logger", "", []string{"vault", "logger"}, "vault ", "cart logger ", false, false},
		{"sidecar", "envoy", []string{"envoy"}, "outrigger-init outrigger-proxy ", "cart ", true, true},
		{"sidecar, logger", "envoy", []string{"envoy", "logger"}, "outrigger-init outrigger-proxy ", "cart logger ", true, true},
		{"logger,sidecar", "envoy", []string{"logger", "envoy"}, "outrigger-init outrigger-proxy ", "cart logger ", true, true},
		{"vault,pipy", "pipy", []string{"vault", "pipy"}, "outrigger-init outrigger-proxy vault ", "cart ", true, true},
	}
	w := ordinary()
	w.config, w.values = twoTemplates, twoValues
	i := w.injector(t)
	for _, test := range tests {
		t.Run(test.names, func(t *testing.T) {
			raw := []byte(strings.Replace(smallPod, `"annotations":{`, fmt.Sprintf(`"annotations":{"openservicemesh.io/inject-templates":%q,`, test.names), 1))
			r := i.Inject(t.Context(), w.request(string(raw)))
			if r.Class != test.class || !cmp.Equal(r.Templates, test.templates) {
				t.Errorf("the class is %q, the templates are %q", r.Class, r.Templates)
			}
			injected := patched(t, raw, r.Patch)
			pod := decode(t, injected)
			if got := names(pod.Spec.InitContainers); got != test.inits {
				t.Errorf("the init containers are %s", got)
			}
			if got := names(pod.Spec.Containers); got != test.containers {
				t.Errorf("the containers are %s", got)
			}
			if got := container(pod, "cart").ReadinessProbe.HTTPGet.Port.IntValue() == driver.AgentPort; got != test.probesRewritten {
				t.Errorf("probes rewritten: %t", got)
			}
			if _, got := pod.Labels[inject.ProxyUUIDLabel]; got != test.uuid {
				t.Errorf("labels are %v", pod.Labels)
			}
			if logger := container(pod, "logger"); logger != nil {
				if d := cmp.Diff([]string{"--pod", "cart-7d9f-", "--level", "error"}, logger.Args); d != "" || logger.Image != "logger:1" {
					t.Errorf("the logger is %+v", logger)
				}
			}
			unchanged(t, i, w, injected)
			back, err := inject.Uninject(injected)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(generic(t, raw), generic(t, patched(t, injected, back))); d != "" {
				t.Errorf("uninject does not restore the pod (-was +is):\n%s", d)
			}
		})
	}
}

func TestTemplatesOfConfig(t *testing.T) {
	w := ordinary()
	w.config, w.values = twoTemplates+"defaultTemplates: [vault, sidecar]", twoValues
	r := w.injector(t).Inject(t.Context(), w.request(smallPod))
	if d := cmp.Diff([]string{"vault", "envoy"}, r.Templates); d != "" || r.Class != "envoy" {
		t.Errorf("the class is %s, the default templates differ (-want +got):\n%s", r.Class, d)
	}
	w.config, w.values = "templates: {envoy: 'spec: {containers: [{name: outrigger-proxy, image: {{ .Image }}, args: [{{ .Values.arg }}]}]}'}", "arg: mine"
	pod := decode(t, once(t, w.injector(t), w, []byte(smallPod)))
	if c := proxy(t, pod); !cmp.Equal(c.Args, []string{"mine"}) || c.Image == "" || pod.Labels[inject.ProxyUUIDLabel] == "" {
		t.Errorf("with the driver's template replaced the sidecar is %+v", c)
	}
}

func TestBrokenConfigs(t *testing.T) {
	tests := []struct{ name, config, values, want string }{
		{"no YAML", "policy: [", "", "injection config: "},
		{"an unknown field", "polices: enabled", "", `unknown field "polices"`},
		{"a policy", "policy: perhaps", "", `policy is "perhaps"; it must be enabled or disabled`},
		{"native sidecars", "nativeSidecars: sometimes", "", `nativeSidecars is "sometimes"`},
		{"a pull policy", "imagePullPolicy: always", "", `imagePullPolicy is "always"`},
		{"a selector", "neverInjectSelector: [{matchExpressions: [{key: a, operator: Is}]}]", "", "neverInjectSelector[0]: "},
		{"an empty selector", "alwaysInjectSelector: [{matchLabels: {a: b}}, {}]", "", "alwaysInjectSelector[1]: it is empty"},
		{"the name of the pod's driver", "templates: {sidecar: 'spec: {}'}", "", `"sidecar" cannot be a template's name`},
		{"an empty template", "templates: {a: ''}", "", "templates: a is empty"},
		{"a template that is none", "templates: {a: '{{ if }}'}", "", "template a: "},
		{"a template of no pod", "templates: {a: 'spec: {container: []}'}", "", "template a: "},
		{"an unknown function", "templates: {a: '{{ env \"HOME\" }}'}", "", `function "env" not defined`},
		{"a value that is missing", "templates: {a: '{{ .Values.a.b }}'}", "a: {}", `no entry for key "b"`},
		{"a template that fails in classic pods", "templates: {a: '{{ if not .Native }}{{ fail \"no\" }}{{ end }}'}", "", "template a: "},
		{"an unknown default template", "defaultTemplates: [nginx]", "", `there is no template or driver "nginx"`},
		{"values that are no YAML", "", "a: [", "injection values: "},
		{"values that are a list", "", "[a]", "injection values: "},
		{"a template without end", `templates: {a: '{{ repeat 100000000 "a" }}'}`, "", "template a: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config, err := inject.NewConfig(test.config, test.values)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "injection ") {
				t.Errorf("the error is %v, want one with %q", err, test.want)
			}
			if config != nil && err == nil {
				t.Error("there is a configuration nevertheless")
			}
		})
	}
}

// hostile are texts with a meaning in YAML, in a template, in a shell or in the
// substitution of values.
var hostile = []string{
	"a\nb: c", "a: b", "- a", "}]", "{{ .Image }}", `"`, "'", "a #", "&a", "*a", "!!binary aGk=", "|", "%YAML 1.2", "---\nkind: Pod",
	"x\n  - name: evil\n    image: evil\n", "x\"\n  securityContext: {privileged: true}\n  #", "OUTRIGGERv0v", "OUTRIGGERv61v", "OUTRIGGERvk0v", "OUTRIGGERv",
	"$(POD_NAME)", "${POD_UID}", "$$", "`id`", "null", "true", "1e3", "0x10", "2026-01-01", "~", " ", "\t", "\x00", "\u2028", "\uFEFF", "\x7f", "ä", strings.Repeat("a", 5000),
}

// TestValuesStayValues uses hostile texts in all of the user's fields: each pod must be
// denied, or have the same structure as with harmless texts.
func TestValuesStayValues(t *testing.T) {
	w := ordinary()
	w.config = `
templates:
  plain: &t |
    metadata:
      annotations:
        from-template: {{ .Pod.Annotation "text" }}
    spec:
      containers:
      - name: extra
        image: "{{ .Pod.Annotation "text" }}"
        args: ['{{ .Pod.Annotation "text" }}', {{ .Pod.Annotation "text" | toJson }}, {{ (index .Pod.Containers 0).Name }}]
        env:
        - name: TEXT
          value: |
            {{ .Pod.Annotation "text" }}
        - name: MORE
          value: {{ .Pod.Label "text" }}-{{ .ServiceAccount }}-{{ .Pod.Name }}-{{ .Namespace }}
        {{- if eq (.Pod.Annotation "text") "harmless" }}
        {{- end }}
`
	i := w.injector(t)
	pod := func(place, text string) string {
		value := func(here string) string {
			if here == place {
				return string(encode(t, text))
			}
			return `"harmless"`
		}
		annotation := prefix + "other"
		if strings.HasPrefix(place, prefix) {
			annotation = place
		}
		return fmt.Sprintf(`{"metadata":{"name":%s,"labels":{"text":%s},"annotations":{"openservicemesh.io/inject-templates":"sidecar,plain","text":%s,%q:%s}},
			"spec":{"serviceAccountName":%s,"containers":[{"name":%s,"image":%s,"ports":[{"name":%s,"containerPort":80}],
			"livenessProbe":{"httpGet":{"path":%s,"port":%s,"host":%s,"httpHeaders":[{"name":"x","value":%s}]}},
			"readinessProbe":{"grpc":{"port":80,"service":%[13]s}},"lifecycle":{"preStop":{"httpGet":{"path":%[13]s,"port":80}}}}]}}`,
			value("name"), value("label"), value("annotation"), annotation, value(place), value("account"), value("container"), value("image"),
			value("port"), value("path"), value("port"), value("host"), value("header"))
	}
	places := []string{"name", "label", "annotation", "account", "container", "image", "port", "path", "host", "header"}
	for _, name := range []string{
		"sidecar-class", "sidecar-image", "sidecar-log-level", "sidecar-resource-limits-cpu", "sidecar-resource-requests-memory", "native-sidecar",
		"hold-application-until-ready", "metrics", "inbound-port-exclusion-list", "outbound-port-exclusion-list",
		"outbound-ip-range-exclusion-list", "outbound-ip-range-inclusion-list",
	} {
		places = append(places, prefix+name)
	}
	for _, place := range places {
		t.Run(place, func(t *testing.T) {
			want := skeleton(t, once(t, i, w, []byte(pod("", ""))))
			if strings.HasPrefix(place, prefix) {
				delete(want["metadata"].(map[string]any)["annotations"].(map[string]any), prefix+"other")
			}
			for _, text := range hostile {
				raw := pod(place, text)
				if !json.Valid([]byte(raw)) {
					t.Fatalf("the test's pod is no JSON: %s", raw)
				}
				r := i.Inject(t.Context(), w.request(raw))
				if r.Decision.Outcome == inject.Deny {
					if r.Decision.Reason != "invalid_annotation" && r.Decision.Reason != "unknown_class" {
						t.Errorf("%.40q: the decision is %+v", text, r.Decision)
					}
					continue
				}
				injected := patched(t, []byte(raw), r.Patch)
				if extra := container(decode(t, injected), "extra"); place == "annotation" && (extra.Args[0] != text || extra.Args[1] != text || extra.Image != text) {
					t.Errorf("%.40q arrives as %q and as the image %q", text, extra.Args, extra.Image)
				}
				got := skeleton(t, injected)
				if strings.HasPrefix(place, prefix) {
					if text == "null" || text == "true" || text == "1e3" {
						// A driver's name, a switch and an amount.
						continue
					}
					delete(got["metadata"].(map[string]any)["annotations"].(map[string]any), place)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%.40q changes the pod's structure (-want +got):\n%s", text, d)
				}
			}
		})
	}
}

// skeleton returns the pod with every text empty.
func skeleton(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var hollow func(v any) any
	hollow = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k, value := range v {
				v[k] = hollow(value)
			}
		case []any:
			for i := range v {
				v[i] = hollow(v[i])
			}
		case string:
			return ""
		}
		return v
	}
	return hollow(generic(t, raw)).(map[string]any)
}
