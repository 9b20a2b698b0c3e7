package drivertest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// hostile are texts with a special meaning for YAML, templates, the kubelet or package
// podtemplate.
var hostile = []string{
	"a\nprivileged: true",
	"a\n    hostNetwork: true\n",
	"a\r\n- name: evil\n  image: evil",
	`a"b`, `a", "evil": "b`, `a'b`, `a', evil: 'b`, "a`b",
	"a: b", "a : {", "}, evil: {", "], evil: [", "a #b", "- a", "? a", "| a", "> a", "&a *a", "!!binary a", "%a", "@a", "---", "...",
	"{{ .Image }}", "{{", "}}", "${POD_NAME}", "$(POD_NAME)", "$$(POD_NAME)", "$$",
	"null", "true", "0x1", "1e3", "~", "", " a ", "\t", "\\", `\n`, "é\u2028\u0085",
	"OUTRIGGERv0v", "OUTRIGGERv61v", "OUTRIGGERv",
	strings.Repeat("long ", 2000),
}

func patchScalars(s subject) error {
	// The pod for a hostile text is compared with that for a harmless one.
	with := func(text string) func(*driver.InjectorContext) {
		return func(inj *driver.InjectorContext) {
			inj.Sidecar.Image, inj.Sidecar.InitImage = text, text
			inj.MeshName, inj.OsmNamespace, inj.PodNamespace = text, text, text
			inj.Identity.ServiceAccount, inj.Identity.Namespace, inj.Identity.TrustDomain = text, text, text
			inj.Pod.Labels["app"], inj.Pod.Annotations["example.com/team"] = text, text
			inj.OutboundIPRangeExclusionList = []string{text}
			inj.Redirection.ExcludeOutboundRanges, inj.Redirection.ExcludeInterfaces = []string{text}, []string{text}
			inj.AppProbes = []agentspec.Probe{{
				Path: "/app-health/" + text, Kind: agentspec.HTTP, URL: text, Host: text, TimeoutSeconds: 1,
				Headers: []agentspec.Header{{Name: text, Value: text}},
			}}
		}
	}
	plain := situation{pod: plainPod(), change: with("plain")}.context()
	harmless, err := s.patch(plain)
	if err != nil {
		return err
	}
	var errs []error
	for _, text := range hostile {
		inj := situation{pod: plainPod(), change: with(text)}.context()
		before := inj.Pod.DeepCopy()
		after, err := s.patch(inj)
		if err == nil {
			err = scalarsOnly(inj, before, after)
		}
		// A pod's JSON omits empty texts and their keys.
		if err == nil && text != "" {
			err = sameShape(harmless, after)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("with the text %.40q: %w", text, err))
		}
	}
	return errors.Join(errs...)
}

// sameShape returns an error if the pod differs from the harmless one in more than its
// texts.
func sameShape(harmless, after *corev1.Pod) error {
	if diff := cmp.Diff(shape(tree(harmless)), shape(tree(after))); diff != "" {
		return fmt.Errorf("it changed the pod's structure (- harmless, + hostile):\n%s", diff)
	}
	return nil
}

// scalarsOnly returns an error if a text was changed.
func scalarsOnly(inj *driver.InjectorContext, before, after *corev1.Pod) error {
	for _, c := range addedContainers(before, after) {
		if c.Image != inj.Sidecar.Image {
			return fmt.Errorf("the image of %s is %q", c.Name, c.Image)
		}
		for _, e := range c.Env {
			if e.Name == agentspec.EnvSpec {
				var spec agentspec.Spec
				if err := decode(e.Value, &spec); err != nil {
					return fmt.Errorf("%s: %w", e.Name, err)
				}
				if !reflect.DeepEqual(spec.Probes, inj.AppProbes) {
					return fmt.Errorf("%s: the probes are %s, want %s", e.Name, toJSON(spec.Probes), toJSON(inj.AppProbes))
				}
			}
		}
	}
	return nil
}

// shape returns v with every text replaced by a constant.
func shape(v any) any {
	switch v := v.(type) {
	case map[string]any:
		s := make(map[string]any, len(v))
		for key, value := range v {
			s[key] = shape(value)
		}
		return s
	case []any:
		s := make([]any, len(v))
		for i := range v {
			s[i] = shape(v[i])
		}
		return s
	case string:
		return "text"
	default:
		return v
	}
}
