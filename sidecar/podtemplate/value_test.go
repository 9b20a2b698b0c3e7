package podtemplate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// arguments are those of an ordinary pod with the annotation "value".
func arguments(value string) *driver.InjectorContext {
	return &driver.InjectorContext{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: "cart-", Annotations: map[string]string{"value": value}, Labels: map[string]string{"app": "cart"},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "web", Image: "cart:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 9090}}},
				{Name: "helper", Image: "helper:1"},
			}},
		},
		MeshName: "osm", OsmNamespace: "osm-system", PodNamespace: "shop", PodOS: "linux",
		ContainerPullPolicy: corev1.PullIfNotPresent,
		Identity:            mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"},
		Sidecar:             driver.Sidecar{Class: "test", Image: "proxy:1", InitImage: "init:1", LogLevel: "error"},
	}
}

// renderText returns the output of a template for the arguments.
func renderText(t testing.TB, text string, inj *driver.InjectorContext) (*corev1.Pod, error) {
	t.Helper()
	parsed, err := Parse("test", text)
	if err != nil {
		return nil, err
	}
	return parsed.render(&data{inj: inj, Values: map[string]any{"list": []any{"shop", "bank"}, "map": map[string]any{"shop": "yes"}}})
}

// everyContext prints a value in every context of YAML and with every function that
// prints. The names of the environment variables say how.
const everyContext = `{{ $v := .Pod.Annotation "value" -}}
metadata:
  annotations:
    annotation: {{ $v }}
    {{ $v }}key: {{ $v }}
  labels: {flow: {{ $v }}, {{ $v }}label: x}
spec:
  nodeName: {{ $v }}
  containers:
  - name: c
    command: [{{ $v }}, "{{ $v }}", '{{ $v }}', {{ $v | quote }}, {{ $v | squote }}]
    args:
    - {{ $v }}
    - "{{ $v }}"
    env:
    - name: plain
      value: {{ $v }}
    - name: double
      value: "{{ $v }}"
    - name: single
      value: '{{ $v }}'
    - {name: flow, value: {{ $v }}}
    - {"name": "json", "value": {{ toJson $v }}}
    - {name: quote, value: {{ quote $v }}}
    - {name: print, value: {{ print $v }}}
    - {name: printf, value: {{ printf "%s" $v }}}
    - {name: printf-v, value: {{ printf "%v" $v }}}
    - {name: printf-q, value: {{ printf "%q" $v }}}
    - {name: printf-d, value: {{ printf "%d" $v }}}
    - {name: printf-x, value: {{ printf "%#v" $v }}}
    - {name: printf-list, value: {{ index (list $v) 0 | printf "%t" }}}
    - {name: default, value: {{ default "none" $v | default $v }}}
    - {name: required, value: {{ required "there is none" (coalesce $v (print $v "x")) | print }}}
    - {name: ternary, value: {{ ternary $v "" true }}}
    - {name: join, value: {{ list $v | join "" }}}
    - {name: toString, value: {{ $v | toString }}}
    - name: literal
      value: |-
        {{ $v }}
    - name: folded
      value: >-
        {{ $v }}
    - name: comment
      value: x # {{ $v }}
    - name: inside
      value: <{{ $v }}>
    - name: twice
      value: {{ $v }}{{ $v }}
    {{- range list (dict "name" "toYaml" "value" $v) }}
    - {{ toYaml . | nindent 6 | trim }}
    {{- end }}
    # {{ $v }}
`

// wantEverywhere is the expected output of everyContext for a value.
func wantEverywhere(v string) *corev1.Pod {
	env := []corev1.EnvVar{}
	for _, name := range []string{
		"plain", "double", "single", "flow", "json", "quote", "print", "printf", "printf-v", "printf-q", "printf-d", "printf-x", "printf-list",
		"default", "required", "ternary", "join", "toString", "literal", "folded", "comment", "inside", "twice", "toYaml",
	} {
		value := v
		switch name {
		case "default", "required":
			if v == "" {
				value = map[string]string{"default": "none", "required": "x"}[name]
			}
		case "comment":
			value = "x"
		case "inside":
			value = "<" + v + ">"
		case "twice":
			value = v + v
		}
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{"annotation": v, v + "key": v},
			Labels:      map[string]string{"flow": v, v + "label": "x"},
		},
		Spec: corev1.PodSpec{NodeName: v, Containers: []corev1.Container{{
			Name: "c", Command: []string{v, v, v, v, v}, Args: []string{v, v}, Env: env,
		}}},
	}
}

// hostileValues have a meaning in YAML, in templates, for the kubelet or for this package.
var hostileValues = []string{
	"", "plain", "a\nb: c", "a\n  - name: evil\n    image: evil\n", `"`, `'`, `a"b'c`, `", value: "x`, "'}, {name: evil", "a: b", "a #b",
	"- a", "|", ">-", "&a", "*a", "!!int 5", "{{ .Image }}", "}}", "null", "true", "5", "0x5", "~", " a ", "\t", `\`, `\n`, "---\n", "...",
	"${A}", "$(A)", "OUTRIGGERv0v", "OUTRIGGERv1v", "OUTRIGGERv61v", "OUTRIGGERv", "v", "%!d", "%s", "é", "\u2028", "\u0085", "\x00", "\xff",
	strings.Repeat("x", 5000),
}

func TestValueIsOneScalar(t *testing.T) {
	parsed, err := Parse("test", everyContext)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range hostileValues {
		checkEverywhere(t, parsed, v)
	}
}

func FuzzValue(f *testing.F) {
	parsed, err := Parse("test", everyContext)
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range hostileValues {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) { checkEverywhere(t, parsed, v) })
}

// checkEverywhere uses one template for many values, which also checks that the template's
// cache contains none of them.
func checkEverywhere(t *testing.T, parsed *Template, v string) {
	t.Helper()
	got, err := parsed.render(&data{inj: arguments(v)})
	if err != nil {
		t.Fatalf("value %.40q: %v", v, err)
	}
	if diff := cmp.Diff(wantEverywhere(v), got); diff != "" {
		t.Errorf("value %.40q came out as something else (-want +got):\n%s", v, diff)
	}
}

// TestValueInFunctions calls functions with values as arguments.
func TestValueInFunctions(t *testing.T) {
	for _, tt := range []struct {
		template, value string
		// want is the output, or the error if wantErr is set.
		want    string
		wantErr bool
	}{
		{template: `{{ eq (.Pod.Annotation "value") "a" }}`, value: "a", want: "true"},
		{template: `{{ if .Pod.Annotation "value" }}yes{{ else }}no{{ end }}`, value: "", want: "no"},
		{template: `{{ if .Pod.Annotation "value" }}yes{{ else }}no{{ end }}`, value: "a", want: "yes"},
		{template: `{{ len (.Pod.Annotation "value") }}`, value: "abc", want: "3"},
		{template: `{{ has .Namespace .Values.list }}`, want: "true"},
		{template: `{{ index .Values.map (plain .Namespace) }}`, want: "yes"},
		{template: `{{ .Pod.Annotation "value" | int }}`, value: "15", want: "15"},
		{template: `{{ .Pod.Annotation "value" | int64 }}`, value: "x", want: "0"},
		{template: `{{ .Pod.Annotation "value" | float64 }}`, value: "1.5", want: "1.5"},
		{template: `{{ .Pod.Annotation "value" | plain | upper }}`, value: "reg.io/a_b@sha256+c=1-2", want: "REG.IO/A_B@SHA256+C=1-2"},
		{template: `{{ plain 5 }}`, want: "5"},
		{template: `{{ .Pod.Annotation "value" | plain }}`, value: "a b", want: `plain: value "a b" holds ' '`, wantErr: true},
		{template: `{{ plain (print .Namespace) }}`, want: "plain: the argument must be a value", wantErr: true},
		{template: `{{ plain .Redirection }}`, want: "plain: the argument must be a value", wantErr: true},
		{template: `{{ .Pod.Annotation "value" | plain }}`, value: "a,b", want: "holds ','", wantErr: true},
		{template: `{{ .Pod.Annotation "value" | plain }}`, value: "a:b", want: "holds ':'", wantErr: true},
		{template: `{{ .Pod.Annotation "value" | upper }}`, value: "a", want: "wrong type for value; expected string; got podtemplate.Value", wantErr: true},
		{template: `{{ .Pod.Annotation "value" | toString | trunc 3 }}`, value: "a", want: "expected string; got podtemplate.printed", wantErr: true},
		{template: `{{ printf "%s-x" .Namespace | trunc 63 }}`, want: "expected string; got podtemplate.printed", wantErr: true},
		{template: `{{ contains "a" (quote .Namespace) }}`, want: "expected string; got podtemplate.printed", wantErr: true},
		{template: `{{ eq (print .Namespace) "shop" }}`, want: "incompatible types for comparison", wantErr: true},
		{template: `{{ .Namespace | html }}`, want: "expected string; got podtemplate.Value", wantErr: true},
		{template: `{{ .Namespace | urlquery }}`, want: "expected string; got podtemplate.Value", wantErr: true},
		{template: `{{ printf "%w" (.Pod.Annotation "value") }}`, value: "evil", want: `printf: format "%w" does not fit its 1 arguments`, wantErr: true},
		{template: `{{ printf "%w" (list (.Pod.Annotation "value")) }}`, value: "evil", want: "does not fit", wantErr: true},
		{template: `{{ printf "%p" (.Pod.Annotation "value") }}`, value: "evil", want: "does not fit", wantErr: true},
		{template: `{{ printf "x" (.Pod.Annotation "value") }}`, value: "evil", want: "does not fit", wantErr: true},
		{template: `{{ toJson (.Pod.Annotation "value") | trunc 14 }}`, value: "evil", want: "a placeholder was cut by a template function", wantErr: true},
		{template: `{{ toJson (.Pod.Annotation "value") | replace "6" "x" }}`, value: "evil", want: "a placeholder was changed by a template function", wantErr: true},
		{template: `{{ required "name a value" (.Pod.Annotation "value") }}`, want: "name a value", wantErr: true},
		{template: `{{ required "name a value" .Values.none }}`, want: "map has no entry for key", wantErr: true},
		{template: `{{ printf "%s/%d" "a" 5 | upper }}`, want: "A/5"},
		{template: `{{ print "a" | upper }}{{ quote "b" | upper }}{{ toString 5 | repeat 2 }}{{ list "x" "y" | join "-" | upper }}`, want: `A"B"55X-Y`},
	} {
		pod, err := renderText(t, "metadata: {annotations: {got: '"+tt.template+"'}}", arguments(tt.value))
		switch {
		case err != nil && tt.wantErr:
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s of %q: error %v, want %s", tt.template, tt.value, err, tt.want)
			}
			if strings.Contains(err.Error(), "evil") {
				t.Errorf("%s: the error %v holds the value", tt.template, err)
			}
		case err != nil || tt.wantErr:
			t.Errorf("%s of %q: error %v, want %s", tt.template, tt.value, err, tt.want)
		case pod.Annotations["got"] != tt.want:
			t.Errorf("%s of %q gives %q, want %q", tt.template, tt.value, pod.Annotations["got"], tt.want)
		}
	}
}

func TestValueCannotBeAnotherType(t *testing.T) {
	for _, template := range []string{
		`spec: {hostNetwork: {{ .Pod.Annotation "value" }}}`,
		`spec: {containers: {{ .Pod.Annotation "value" }}}`,
		`spec: {containers: [{name: c, ports: [{containerPort: {{ .Pod.Annotation "value" }}}]}]}`,
		`{{ .Pod.Annotation "value" }}`,
	} {
		for _, value := range []string{"true", "5", "[{name: evil}]", "spec: {hostNetwork: true}"} {
			if pod, err := renderText(t, template, arguments(value)); err == nil {
				t.Errorf("%s with %q gives %v, want an error", template, value, pod)
			}
		}
	}
}

func TestKeyTwice(t *testing.T) {
	const text = `metadata: {annotations: {a: one, {{ .Pod.Annotation "value" }}: two}}`
	if _, err := renderText(t, text, arguments("a")); err == nil || !strings.Contains(err.Error(), `it renders the key "a" twice`) {
		t.Errorf("a key that is there twice gives the error %v", err)
	}
	// A key that looks like a placeholder is not replaced.
	got, err := renderText(t, `metadata: {annotations: { {{ .Pod.Annotation "value" }}: one, {{ .Namespace }}: two}}`, arguments("OUTRIGGERv1v"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"OUTRIGGERv1v": "one", "shop": "two"}, got.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestFunctionsAreRepeatable(t *testing.T) {
	for _, name := range []string{
		"now", "date", "ago", "env", "expandenv", "getHostByName", "uuidv4", "randAlphaNum", "randInt", "shuffle",
		"genPrivateKey", "genCA", "genSelfSignedCert", "genSignedCert", "bcrypt", "htpasswd", "encryptAES",
	} {
		if _, err := Parse("test", "{{ "+name+" }}"); err == nil || !strings.Contains(err.Error(), "function \""+name+"\" not defined") {
			t.Errorf("the function %s: error %v, want that it is not defined", name, err)
		}
	}
}
