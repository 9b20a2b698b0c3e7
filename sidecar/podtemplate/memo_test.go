package podtemplate

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestEveryMethodIsRemembered holds that a rendering is told apart by all that a template can
// read: each method of data is a source or a fact.
func TestEveryMethodIsRemembered(t *testing.T) {
	// Adding a method here is right only after it was added to facts.
	known := []string{
		"CNI", "CPULimit", "CertificateBundle", "CertificateSeconds", "CertificateSigner", "Class", "Concurrency", "HoldApplication", "LogLevel", "Native", "PreStopSeconds",
		"PrivilegedInit", "Proxyless", "PullPolicy", "Redirects", "Resources", "ServerPort", "Windows",
	}
	var others []string
	for m := range reflect.TypeFor[*data]().Methods() {
		_, isSource := sources[m.Name]
		isValue := kind(m.Type.Out(0)) == "value"
		if isSource != isValue {
			t.Errorf("%s returns a value: %t, and is a source: %t", m.Name, isValue, isSource)
		}
		if !isSource && m.Name != "Pod" {
			others = append(others, m.Name)
		}
	}
	slices.Sort(others)
	if diff := cmp.Diff(known, others); diff != "" {
		t.Errorf("the facts (-known +methods):\n%s", diff)
	}
}

// TestRememberedRendering renders templates for random pods in random order, and compares each
// rendering with one of a template that remembers nothing.
func TestRememberedRendering(t *testing.T) {
	everything := `{{ template "outrigger.pod" . }}
metadata:
  annotations:
    level: "{{ .LogLevel }} {{ .Class }} {{ .ServerPort 15128 }} {{ .Proxyless }} {{ .CPULimit }}"
    values: {{ quote .Namespace }}
    more: "{{ .ServiceAccount }}/{{ .MeshName }}{{ .Workload }}"
    fixed: "{{ range .Values.list }}{{ print . }}{{ end }}{{ .Values.map.shop }}"
`
	values := map[string]any{"list": []any{"shop", "bank"}, "map": map[string]any{"shop": "yes"}}
	for _, tt := range []struct {
		name, text string
		remembers  bool
	}{
		{"blocks", `{{ template "outrigger.pod" . }}`, true},
		{"values in quotes", "metadata: {annotations: {a: {{ .Namespace | quote }}, b: \"{{ .Image }}\", {{ .Workload }}x: {{ quote .ServiceAccount }}}}", true},
		{"everything but the pod", everything, false},
		{"compared", `metadata: {annotations: {a: "{{ if eq .Namespace "shop" }}x{{ end }}"}}`, false},
		{"tested", `{{ with .Workload }}metadata: {annotations: {a: "{{ . }}"}}{{ end }}`, false},
		{"in a variable", `{{ $n := .Namespace }}metadata: {annotations: {a: "{{ if eq $n "bank" }}x{{ end }}"}}`, false},
		{"of the pod", `metadata: {annotations: {a: "{{ .Pod.Label "app" }}{{ len .Pod.Containers }}"}}`, false},
		{"in a block of its own", `{{ define "own" }}{{ if ne .Namespace "shop" }}x{{ end }}{{ end }}metadata: {annotations: {a: "{{ template "own" . }}"}}`, false},
		{"by the dollar sign", `metadata: {annotations: {a: "{{ if eq $.Namespace "shop" }}x{{ end }}"}}`, false},
		{"as an argument of a block", `{{ define "own" }}{{ eq . "shop" }}{{ end }}metadata: {annotations: {a: "{{ template "own" .Namespace }}"}}`, false},
		{"in a pipeline", `metadata: {annotations: {a: "{{ .Namespace | toString | len }}"}}`, false},
		{"in parentheses", `metadata: {annotations: {a: "{{ if (eq (.Namespace) "shop") }}x{{ end }}"}}`, false},
		{"plain", `metadata: {annotations: {a: "{{ plain .Namespace }}"}}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			remembering, err := Parse("test", tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if remembering.printsOnly != tt.remembers {
				t.Errorf("it is remembered: %t", remembering.printsOnly)
			}
			other, err := Parse("test", tt.text)
			if err != nil {
				t.Fatal(err)
			}
			other.printsOnly = false
			g := rand.New(rand.NewPCG(1, 2))
			for range 300 {
				inj, spec := randomArguments(g)
				d := &data{inj: inj, agent: spec, Values: values}
				got, gotErr := remembering.render(d)
				want, wantErr := other.render(d)
				if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
					t.Fatalf("for %+v it gives the error %v, want %v", inj.Sidecar, gotErr, wantErr)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("for %+v (-want +got):\n%s", inj.Sidecar, diff)
				}
			}
			if n := len(remembering.renderings); tt.remembers && n == 0 || n > maxRenderings {
				t.Errorf("it remembers %d renderings", n)
			}
		})
	}
}

func randomArguments(g *rand.Rand) (*driver.InjectorContext, *agentspec.Spec) {
	often := func() bool { return g.IntN(4) > 0 }
	inj := arguments("a")
	inj.PodNamespace = []string{"shop", "bank", `"]}`, "kube-system"}[g.IntN(4)]
	inj.Identity.ServiceAccount = []string{"cart", "teller"}[g.IntN(2)]
	inj.MeshName = []string{"osm", "other"}[g.IntN(2)]
	inj.Pod.Name = []string{"", "pod-1", "OUTRIGGERv"}[g.IntN(3)]
	inj.PodOS = []string{"linux", "linux", "windows"}[g.IntN(3)]
	inj.ContainerPullPolicy = []corev1.PullPolicy{"Always", "IfNotPresent"}[g.IntN(2)]
	inj.Redirection.DisableInbound, inj.Redirection.DisableOutbound = !often(), !often()
	s := &inj.Sidecar
	s.Class, s.LogLevel = []string{"test", "other"}[g.IntN(2)], []string{"error", "debug"}[g.IntN(2)]
	s.Image, s.InitImage = []string{"proxy:1", "proxy:$(2)"}[g.IntN(2)], []string{"init:1", "init:2"}[g.IntN(2)]
	s.Native, s.HoldApplication, s.PrivilegedInit, s.CNI, s.DisabledMTLS = often(), often(), often(), often(), often()
	s.Concurrency, s.PreStopSeconds = int32(g.IntN(2)), int32(g.IntN(2))
	if often() {
		s.DrainSeconds = new(int32(g.IntN(3)))
	}
	amount := func() corev1.ResourceList {
		if !often() {
			return nil
		}
		return corev1.ResourceList{[]corev1.ResourceName{"cpu", "memory"}[g.IntN(2)]: resource.MustParse([]string{"1", "2", "1000m"}[g.IntN(3)])}
	}
	s.Resources = corev1.ResourceRequirements{Limits: amount(), Requests: amount()}
	if often() {
		inj.ProxyUUID = uuid.New()
	}
	switch g.IntN(4) {
	case 0:
		return inj, nil
	case 1:
		return inj, &agentspec.Spec{}
	}
	return inj, &agentspec.Spec{Command: []string{"/proxy", fmt.Sprint(g.IntN(2))}}
}
