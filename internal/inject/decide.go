package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// candidate is the input of the rules: a pod, its namespace and the configuration.
type candidate struct {
	opts      *Options
	config    *Config
	namespace *Namespace
	pod       *corev1.Pod
	// istio is set after the decision to inject.
	istio istioSettings
}

// rule is one row of the decision table in docs/injection.md. It returns an empty
// outcome if it does not decide, and always a text on what it saw.
type rule struct {
	name  string
	apply func(c *candidate) (outcome Outcome, reason Reason, saw string)
}

// rules is the decision table: the first rule that decides wins.
var rules = []rule{
	{"namespace_exempt", namespaceExempt},
	{"namespace_ignored", namespaceIgnored},
	{"namespace_not_monitored", namespaceNotMonitored},
	{"other_revision", otherRevision},
	{"host_network", hostNetwork},
	{"mirror_pod", mirrorPod},
	{"sidecar_exists", sidecarExists},
	{"label", func(c *candidate) (Outcome, Reason, string) {
		return switched("label", "pod label "+metadata.Injection, c.pod.Labels, metadata.Injection)
	}},
	{"annotation", func(c *candidate) (Outcome, Reason, string) {
		return switched("annotation", "pod annotation "+metadata.Injection, c.pod.Annotations, metadata.Injection)
	}},
	{"istio_label", istioPod("istio_label", "label", func(p *corev1.Pod) map[string]string { return p.Labels })},
	{"istio_annotation", istioPod("istio_annotation", "annotation", func(p *corev1.Pod) map[string]string { return p.Annotations })},
	{"never_inject_selector", func(c *candidate) (Outcome, Reason, string) {
		return selected(Skip, "never_inject_selector", "neverInjectSelector", c.config.never, c.pod)
	}},
	{"always_inject_selector", func(c *candidate) (Outcome, Reason, string) {
		return selected(Inject, "always_inject_selector", "alwaysInjectSelector", c.config.always, c.pod)
	}},
	{"namespace_label", func(c *candidate) (Outcome, Reason, string) {
		return switched("namespace_label", "label "+metadata.Injection+" of namespace "+c.namespace.Name, c.namespace.Labels, metadata.Injection)
	}},
	{"namespace_annotation", func(c *candidate) (Outcome, Reason, string) {
		return switched("namespace_annotation", "annotation "+metadata.Injection+" of namespace "+c.namespace.Name, c.namespace.Annotations, metadata.Injection)
	}},
	{"istio_namespace", istioNamespace},
	{"policy", policy},
}

// decide applies the rules in order. With steps it records what each rule saw.
func decide(c *candidate, steps bool) Decision {
	var d Decision
	for _, r := range rules {
		outcome, reason, saw := r.apply(c)
		if steps {
			d.Steps = append(d.Steps, Step{Rule: r.name, Saw: saw, Decided: outcome != ""})
		}
		if outcome != "" {
			d.Outcome, d.Reason, d.Message = outcome, reason, saw
			return d
		}
	}
	// The last rule always decides.
	panic("inject: the decision table has no end")
}

var exemptNamespaces = []string{"kube-system", "kube-public", "kube-node-lease"}

// NamespaceExempt reports whether a namespace belongs to Kubernetes or the control plane, so
// that its pods never get a sidecar.
func NamespaceExempt(name, meshNamespace string) bool {
	return name == meshNamespace || slices.Contains(exemptNamespaces, name)
}

func namespaceExempt(c *candidate) (Outcome, Reason, string) {
	name := c.namespace.Name
	switch {
	case slices.Contains(exemptNamespaces, name):
		return Skip, "namespace_exempt", "namespace " + name + " is Kubernetes' own"
	case name == c.opts.MeshNamespace:
		return Skip, "namespace_exempt", "namespace " + name + " is the control plane's own"
	}
	return "", "", "namespace " + name + " is an ordinary one"
}

func namespaceIgnored(c *candidate) (Outcome, Reason, string) {
	if _, ok := c.namespace.Labels[metadata.Ignore]; ok {
		return Skip, "namespace_ignored", "namespace " + c.namespace.Name + " has the label " + metadata.Ignore
	}
	return "", "", "no label " + metadata.Ignore
}

func namespaceNotMonitored(c *candidate) (Outcome, Reason, string) {
	meshName, labelled := c.namespace.Labels[metadata.MonitoredBy]
	if labelled && meshName == c.opts.MeshName {
		return "", "", "namespace " + c.namespace.Name + " is monitored by mesh " + meshName
	}
	if istioMonitored(c) {
		return "", "", "namespace " + c.namespace.Name + " or the pod has labels of Istio that ask for injection"
	}
	saw := fmt.Sprintf("namespace %s has no label %s=%s", c.namespace.Name, metadata.MonitoredBy, c.opts.MeshName)
	if labelled {
		saw = fmt.Sprintf("namespace %s is monitored by mesh %s, not by %s", c.namespace.Name, meshName, c.opts.MeshName)
	}
	return Skip, "namespace_not_monitored", saw
}

func otherRevision(c *candidate) (Outcome, Reason, string) {
	revision, from := defaultRevision, "neither pod nor namespace chooses a revision"
	if r, ok := c.revision(c.namespace.Labels); ok {
		revision, from = r, "namespace "+c.namespace.Name+" chooses revision "+r
	}
	if r, ok := c.revision(c.pod.Labels); ok {
		revision, from = r, "the pod chooses revision "+r
	}
	if !c.own(revision) {
		return Skip, "other_revision", from + "; this is revision " + c.opts.Revision
	}
	return "", "", from
}

// own reports whether the name is the injector's revision or one of its tags.
func (c *candidate) own(revision string) bool {
	return revision == c.opts.Revision || slices.Contains(c.config.settings.RevisionTags, revision)
}

// revision returns the revision that the labels choose.
func (c *candidate) revision(in map[string]string) (string, bool) {
	if r, ok := in[metadata.Revision]; ok {
		return r, true
	}
	if c.config.settings.Compat.Istio {
		// Istio ignores the revision of a namespace that has both labels.
		if _, plain := in[istioInjectionLabel]; !plain {
			r, ok := in[istioRevisionLabel]
			return r, ok
		}
	}
	return "", false
}

func hostNetwork(c *candidate) (Outcome, Reason, string) {
	if c.pod.Spec.HostNetwork {
		return Skip, "host_network", "the pod uses the host's network, where redirection would catch the whole node"
	}
	return "", "", "the pod has a network of its own"
}

func mirrorPod(c *candidate) (Outcome, Reason, string) {
	if _, ok := c.pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return Skip, "mirror_pod", "the pod shows a static pod, which its kubelet runs as the node's file has it"
	}
	return "", "", "the pod is not that of a static pod"
}

// foreignSidecars are the container names of other meshes' sidecars, with the meshes.
var foreignSidecars = map[string]string{
	"istio-proxy": "Istio", "linkerd-proxy": "Linkerd", "kuma-sidecar": "Kuma", "osm-init": "Open Service Mesh",
}

func sidecarExists(c *candidate) (Outcome, Reason, string) {
	if s, ok := c.pod.Annotations[StatusAnnotation]; ok {
		status, err := parseStatus(s)
		if err != nil {
			return Deny, "status_invalid", err.Error()
		}
		if status.Revision != c.opts.Revision {
			return Skip, "sidecar_exists", "revision " + status.Revision + " has injected the pod already"
		}
	}
	for container := range containersOf(c.pod) {
		owner, ok := foreignSidecars[container.Name]
		if !ok {
			continue
		}
		if image := container.Image; image == "" || image == podtemplate.AutoImage {
			return Skip, "sidecar_exists", "container " + container.Name + " sets fields of " + owner + "'s sidecar; call it " +
				driver.ProxyContainer + " to set those of this mesh's"
		}
		return Skip, "sidecar_exists", "container " + container.Name + " is a sidecar of " + owner
	}
	return "", "", "no sidecar of another mesh or revision"
}

// switched reads an injection label or annotation. It accepts the values of Open
// Service Mesh.
func switched(rule Reason, what string, in map[string]string, key string) (Outcome, Reason, string) {
	value, ok := in[key]
	if !ok {
		return "", "", "no " + what
	}
	switch strings.ToLower(value) {
	case "enabled", "yes", "true":
		return Inject, rule + "_enabled", what + " is " + value
	case "disabled", "no", "false":
		return Skip, rule + "_disabled", what + " is " + value
	}
	return Deny, rule + "_invalid", fmt.Sprintf("%s is %q; it must be enabled, yes, true, disabled, no or false", what, value)
}

func selected(outcome Outcome, reason Reason, field string, selectors []labels.Selector, pod *corev1.Pod) (Outcome, Reason, string) {
	for _, s := range selectors {
		if s.Matches(labels.Set(pod.Labels)) {
			return outcome, reason, "the pod's labels match " + field + " " + s.String()
		}
	}
	return "", "", "no match in " + field
}

func policy(c *candidate) (Outcome, Reason, string) {
	if c.config.settings.Policy == "enabled" {
		return Inject, "policy_enabled", "nothing else decides, and the policy is enabled"
	}
	return Skip, "policy_disabled", "nothing asks for a sidecar: neither pod nor namespace " + c.namespace.Name +
		" has " + metadata.Injection + ", and the policy is disabled"
}
