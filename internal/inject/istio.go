package inject

import corev1 "k8s.io/api/core/v1"

// istioMonitored reports whether Istio's labels request injection: the namespace is
// enabled or chooses this revision, or the pod requests it and the namespace does not
// forbid it.
func istioMonitored(c *candidate) bool {
	if !c.config.settings.Compat.Istio {
		return false
	}
	injection, labelled := c.namespace.Labels[istioInjectionLabel]
	if labelled {
		return injection == "enabled"
	}
	if c.own(c.namespace.Labels[istioRevisionLabel]) {
		return true
	}
	return c.pod.Labels[istioInject] == "true" || c.own(c.pod.Labels[istioRevisionLabel])
}

// istioPod is the rule for sidecar.istio.io/inject on a pod.
func istioPod(name Reason, kind string, in func(*corev1.Pod) map[string]string) func(c *candidate) (Outcome, Reason, string) {
	return func(c *candidate) (Outcome, Reason, string) {
		if !c.config.settings.Compat.Istio {
			return "", "", "compat.istio is off"
		}
		return switched(name, "pod "+kind+" "+istioInject, in(c.pod), istioInject)
	}
}

func istioNamespace(c *candidate) (Outcome, Reason, string) {
	if !c.config.settings.Compat.Istio {
		return "", "", "compat.istio is off"
	}
	if c.namespace.Labels[istioInjectionLabel] == "enabled" {
		return Inject, "istio_namespace_enabled", "namespace " + c.namespace.Name + " has the label " + istioInjectionLabel + "=enabled"
	}
	// Choosing this revision by Istio's label also requests injection.
	for _, l := range []map[string]string{c.pod.Labels, c.namespace.Labels} {
		if r, ok := l[istioRevisionLabel]; ok && c.own(r) {
			return Inject, "istio_namespace_enabled", "the label " + istioRevisionLabel + "=" + r + " chooses this revision"
		}
	}
	return "", "", "no label of Istio that asks for injection"
}
